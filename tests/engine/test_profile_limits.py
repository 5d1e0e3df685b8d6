"""What the machine gives meanwhile, and what of it the caches could hold."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.engine.profile import limits
from treadle.engine.profile.limits import LimitWatch, cache_sizes, fits_in_cache
from treadle.hardware.caches import Cache
from treadle.hardware.machine_speed import MachineSpeed


def cache(level: int, num_bytes: int, kind: str = "data", cpu: int = 0) -> Cache:
    return Cache(level, kind, num_bytes, 64, frozenset({cpu}))


CACHES = (
    cache(3, 32 << 20, "unified"),
    cache(1, 32 << 10),
    cache(1, 32 << 10, cpu=1),
    cache(1, 64 << 10, "instruction"),
    cache(2, 1 << 20, "unified"),
)


def test_caches_of_a_level_count_together_without_those_for_instructions() -> None:
    assert cache_sizes(CACHES) == {"L1": 64 << 10, "L2": 1 << 20, "L3": 32 << 20}


def test_three_quarters_of_the_largest_level_hold_weights() -> None:
    assert fits_in_cache(24 << 20, CACHES) and not fits_in_cache((24 << 20) + 1, CACHES)
    assert not fits_in_cache(1, ())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls that measure; each finds another speed, twice as fast in the caches."""
    calls: list[dict[str, Any]] = []

    def measure(cpus: list[int], **given: Any) -> MachineSpeed:
        calls.append({"cpus": cpus, **given})
        rate = 10e9 * len(calls) * (2 if "num_bytes" in given else 1)
        return MachineSpeed(rate, 1e12 + len(calls), 1e11, given["isa"])

    monkeypatch.setattr(limits, "measure_speed", measure)
    return calls


def test_the_middle_of_reading_and_the_best_of_computing_are_the_limits(measured: list[dict[str, Any]]) -> None:
    watch = LimitWatch(0.0, "avx2", None)
    for _ in range(3):
        watch.measure([0, 1])
    watch.measure([0])
    found = watch.limits(2)
    assert (found.memory_bytes, found.int8_ops, found.float_ops) == (20e9, 1e12 + 3, 1e11)
    assert (found.num_threads, found.cache_bytes, found.isa) == (2, None, "avx2")
    assert [sample.num_threads for sample in watch.samples] == [2, 2, 2, 1]
    assert all(call["isa"] == "avx2" and "num_bytes" not in call for call in measured)


def test_what_the_caches_hold_is_read_from_them(measured: list[dict[str, Any]]) -> None:
    watch = LimitWatch(0.0, "avx2", 5 << 20)
    watch.measure([0, 1])
    assert [call.get("num_bytes") for call in measured] == [None, 5 << 20]
    assert watch.limits(2).cache_bytes == watch.limits(2).read_bytes == 40e9
    assert LimitWatch(0.0, "avx2", 100).limits(2).cache_bytes is None
    small = LimitWatch(0.0, "avx2", 100)
    small.measure([0])
    assert measured[-1]["num_bytes"] == 1 << 20  # the least that can be measured


def test_a_machine_without_free_memory_has_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "measure_speed", lambda *_, **__: None)
    watch = LimitWatch(0.0, "avx2", 100)
    watch.measure([0])
    found = watch.limits(1)
    assert (found.memory_bytes, found.cache_bytes, found.int8_ops, watch.samples) == (0.0, None, 0.0, [])

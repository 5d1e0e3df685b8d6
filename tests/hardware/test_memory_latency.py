"""Latency: what is measured where, from how much memory, and what was in huge pages."""

from __future__ import annotations

from typing import ClassVar

import pytest
from machines import FakeRoot

from treadle import _native
from treadle.hardware.memory_latency import Latency, MemoryLatency, measure_latency

MIB = 1 << 20


class FakeProbe:
    made: ClassVar[list[tuple[int, int]]] = []
    measured: ClassVar[list[int]] = []

    def __init__(self, cpu: int, num_bytes: int) -> None:
        self.made.append((cpu, num_bytes))

    def measure(self, num_bytes: int, seconds: float) -> float:
        assert seconds == 0.02
        self.measured.append(num_bytes)
        return num_bytes * (3 - self.measured.count(num_bytes) % 3)


@pytest.fixture(autouse=True)
def _fake_probe(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(_native, "LatencyProbe", FakeProbe)
    FakeProbe.made.clear()
    FakeProbe.measured.clear()


def machine(*caches: tuple[int, str, str], available_mib: int = 4096) -> dict[str, str]:
    files = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_mib * 1024} kB\n"}
    for index, (level, kind, num_bytes) in enumerate(caches):
        folder = f"sys/devices/system/cpu/cpu1/cache/index{index}"
        files |= {f"{folder}/level": f"{level}\n", f"{folder}/type": f"{kind}\n", f"{folder}/size": f"{num_bytes}\n"}
    return files


CACHES = ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1024K"), (3, "Unified", "32M"))


def test_a_real_machine_waits_longer_for_memory_than_for_its_first_cache() -> None:
    found = measure_latency(-1)
    assert found is not None
    assert found.places[-1].place == "memory"
    for place in found.places:
        assert 1e-11 < place.seconds < 1e-3
    assert found.huge_page_share is None or 0 <= found.huge_page_share <= 1


def test_a_part_of_each_cache_and_a_multiple_of_the_last_one_is_read(fake_root: FakeRoot) -> None:
    said: list[str] = []
    found = measure_latency(1, root=fake_root(machine(*CACHES)), progress=said.append)
    sizes = {"L1": 8192, "L2": 256 << 10, "L3": 8 * MIB, "memory": 256 * MIB}
    expected = tuple(Latency(place, num_bytes, num_bytes) for place, num_bytes in sizes.items())
    assert found == MemoryLatency(expected, None)
    assert FakeProbe.made == [(1, 256 * MIB)]
    assert FakeProbe.measured[0] == 256 * MIB  # so that every page is there when they are counted
    assert said == ["the latency of caches and memory"]


@pytest.mark.parametrize(("size", "num_mib"), [("1M", 128), ("96M", 512), ("4096M", 1024)])
def test_memory_is_far_larger_than_the_last_cache_within_bounds(fake_root: FakeRoot, size: str, num_mib: int) -> None:
    measure_latency(1, root=fake_root(machine((3, "Unified", size))))
    assert FakeProbe.made == [(1, num_mib * MIB)]


def test_without_known_caches_only_memory_is_measured(fake_root: FakeRoot) -> None:
    found = measure_latency(-1, root=fake_root(machine()))
    assert found is not None and [place.place for place in found.places] == ["memory"]


def test_nothing_is_borrowed_where_memory_is_short(fake_root: FakeRoot) -> None:
    assert measure_latency(1, root=fake_root(machine(available_mib=511))) is None
    assert FakeProbe.made == []


def test_huge_pages_are_counted(fake_root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fake_root(machine() | {"proc/self/smaps_rollup": "AnonHugePages:      2048 kB\n"})

    def allocate(*_: object) -> float:
        (root / "proc/self/smaps_rollup").write_text(f"AnonHugePages: {2048 + 96 * 1024} kB\n")
        return 1.0

    monkeypatch.setattr(FakeProbe, "measure", allocate)
    found = measure_latency(1, root=root)
    assert found is not None and found.huge_page_share == 0.75

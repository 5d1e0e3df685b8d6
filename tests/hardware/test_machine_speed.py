"""Measuring the machine: plausible speeds, the memory borrowed for it, and ends before its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from machines import FakeRoot, cpus

from treadle import _native
from treadle.hardware.machine_speed import MachineSpeed, measure_speed

MIB = 1 << 20


class FakeProbe:
    made: ClassVar[list[tuple[list[int], int]]] = []

    def __init__(self, cpus: list[int], num_bytes: int, isa: str) -> None:
        self.made.append((cpus, num_bytes))
        self.isa = isa or "best"
        self.num_unfilled = 3
        self._speeds = iter([(3.0, 1.0, 7.0), (5.0, 0.5, 6.0), (4.0, 2.0, 8.0)] * 20)

    def fill(self) -> bool:
        self.num_unfilled -= 1
        return self.num_unfilled > 0

    def measure(self, windows: int, seconds: float) -> tuple[float, float, float]:
        assert (self.num_unfilled, windows, seconds) == (0, 1, 0.002)
        return next(self._speeds)


@pytest.fixture(autouse=True)
def _fake_probe(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(_native, "LimitProbe", FakeProbe)
    FakeProbe.made.clear()


def machine(available_mib: int, *, cache_mib: int) -> dict[str, str]:
    cache = "sys/devices/system/cpu/cpu0/cache/index3"
    return cpus(1) | {
        "proc/self/status": "Cpus_allowed_list:\t0\n",
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_mib * 1024} kB\n",
        f"{cache}/level": "3\n",
        f"{cache}/size": f"{cache_mib * 1024}K\n",
        f"{cache}/shared_cpu_list": "0\n",
    }


def test_a_real_machine_has_plausible_speeds() -> None:
    speed = measure_speed([-1])
    assert speed is not None
    assert 1e8 < speed.read_bytes_per_second < 1e13
    assert 1e8 < speed.int8_ops_per_second < 1e15
    assert 1e7 < speed.float_ops_per_second < 1e15
    assert speed.isa in _native.kernels.runnable_isas()


def test_the_best_of_all_windows_counts(fake_root: FakeRoot) -> None:
    root = fake_root(machine(4096, cache_mib=1))
    assert measure_speed([0, 1], root=root) == MachineSpeed(5.0, 2.0, 8.0, "best")
    assert measure_speed([0, 1], isa="avx2", root=root) == MachineSpeed(5.0, 2.0, 8.0, "avx2")
    assert FakeProbe.made[0][0] == [0, 1]


@pytest.mark.parametrize(("cache_mib", "probe_mib"), [(1, 64), (32, 128), (4096, 1024)])
def test_the_memory_read_is_several_times_the_caches_within_bounds(
    fake_root: FakeRoot, cache_mib: int, probe_mib: int
) -> None:
    measure_speed([0], root=fake_root(machine(100_000, cache_mib=cache_mib)))
    assert [num_bytes for _, num_bytes in FakeProbe.made] == [probe_mib * MIB]


def test_nothing_is_borrowed_where_memory_is_short(fake_root: FakeRoot) -> None:
    assert measure_speed([0], root=fake_root(machine(255, cache_mib=1))) is None
    assert FakeProbe.made == []


@pytest.mark.parametrize(
    ("num_allowed", "expected"),
    [(0, None), (1, None), (2, None), (3, None), (4, MachineSpeed(3.0, 1.0, 7.0, "best"))],
)
def test_it_ends_as_soon_as_it_is_told(fake_root: FakeRoot, num_allowed: int, expected: MachineSpeed | None) -> None:
    answers: Any = iter([True] * num_allowed + [False] * 99)
    root: Path = fake_root(machine(4096, cache_mib=1))
    assert measure_speed([0], goes_on=lambda: next(answers), root=root) == expected

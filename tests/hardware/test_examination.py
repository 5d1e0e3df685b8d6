"""Measuring a machine: which numbers of threads, how long, the disk; on imaginary machines and on this one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machines import FakeRoot, cpus

from treadle.hardware import examination
from treadle.hardware.disk_speed import measure_disk
from treadle.hardware.examination import examine
from treadle.hardware.machine_speed import MachineSpeed
from treadle.hardware.memory_latency import MemoryLatency


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads each probe had; the first one of two threads is disturbed."""
    counts: list[int] = []

    def measure(cpus: Sequence[int], *, isa: str, root: Path) -> MachineSpeed:
        counts.append(len(cpus))
        return MachineSpeed(1.0 if counts == [1, 2] else 10.0 * len(cpus), 5.0)

    monkeypatch.setattr(examination, "measure_speed", measure)
    monkeypatch.setattr(examination, "measure_latency", lambda cpu, **_: MemoryLatency((), cpu))
    return counts


def test_every_number_of_threads_on_a_small_machine_in_turn(fake_root: FakeRoot, probes: list[int]) -> None:
    said: list[str] = []
    found = examine(root=fake_root(cpus(3) | {"proc/loadavg": "1.50 1.00 0.50 1/99 7\n"}), progress=said.append)
    assert probes == [1, 2, 3] * 3
    assert {count: speed.read_bytes_per_second for count, speed in found.speeds.items()} == {1: 10.0, 2: 20.0, 3: 30.0}
    assert found.load == 1.5
    assert found.latency == MemoryLatency((), 0)  # of the first CPU
    assert said[0] == "round 1 of 3: bandwidth and arithmetic, 1 of 3 threads"


def test_only_some_numbers_on_a_large_one(fake_root: FakeRoot, probes: list[int]) -> None:
    examine(root=fake_root(cpus(24, threads_per_core=2)))
    assert probes[:5] == [1, 2, 4, 8, 12]


def test_slow_probes_end_in_time(fake_root: FakeRoot, probes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(examination.time, "monotonic", lambda: next(clock))
    assert list(examine(root=fake_root(cpus(16))).speeds) == [1, 2]


def test_memory_too_short_for_probes(fake_root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "measure_speed", lambda *_, **__: None)
    assert examine(root=fake_root(cpus(2))).speeds == {}


def test_steal_during_the_probes(fake_root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fake_root(cpus(2) | {"proc/stat": "cpu  0 0 0 0 0 0 0 100 0 0\n"})

    def measure(*_: Any, **__: Any) -> None:
        (root / "proc/stat").write_text("cpu  0 0 0 0 0 0 0 99999 0 0\n")

    monkeypatch.setattr(examination, "measure_speed", measure)
    assert examine(root=root).steal_share == 1.0


@pytest.mark.parametrize("garbage", ["", "x", "nan x"])
def test_garbled_files(fake_root: FakeRoot, probes: list[int], garbage: str) -> None:
    files = dict.fromkeys(
        ("proc/loadavg", "proc/meminfo", "proc/self/status", "proc/sys/kernel/numa_balancing"), garbage
    )
    found = examine(root=fake_root(cpus(1) | files))
    assert found.total_bytes is None and found.numa_balancing is None


def test_disk(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(17 << 20))
    speed = measure_disk(path)
    assert speed is None or speed > 1e5  # None: a file system without direct reads, such as tmpfs
    path.write_bytes(bytes(1 << 20))
    assert measure_disk(path) is None
    assert measure_disk(tmp_path / "missing") is None
    assert measure_disk(tmp_path) is None

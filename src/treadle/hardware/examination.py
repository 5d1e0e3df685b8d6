"""Everything a judgement of the machine rests on: its description, and what it gave when it was measured.

Leaves to others: judging it (``findings``) and showing it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware.disk_speed import measure_disk
from treadle.hardware.kernel_files import parse_integer, read_fields, read_integer, read_text
from treadle.hardware.machine import Machine, read_machine
from treadle.hardware.machine_speed import MachineSpeed, measure_speed
from treadle.hardware.memory_latency import MemoryLatency, measure_latency
from treadle.hardware.throttling import Throttling, read_throttling

__all__ = ["Examination", "examine", "read_machine_state"]

# Probes of the bandwidth take turns, for what disturbs one of them is often gone at the next.
_NUM_ROUNDS = 3
_MOST_SECONDS = 7.0
_LOCKS_MEMORY = 14  # the bit of CAP_IPC_LOCK, which sets a process free of the limit on locked memory


@dataclass(frozen=True)
class Examination:
    """A machine, its settings and its measured speeds; None where something is not known or was not measured.

    ``speeds`` holds the best speed by number of threads. ``throttling`` are the counters since the system started,
    ``steal_share`` is what the host took of the CPU time while the probes ran, and ``load`` how many threads of all
    programs wanted to run in the minute before them.
    """

    machine: Machine
    total_bytes: int | None
    frequency_driver: str | None
    numa_balancing: bool | None
    may_lock_all: bool
    throttling: Throttling
    load: float | None
    speeds: dict[int, MachineSpeed]
    latency: MemoryLatency | None
    steal_share: float | None
    disk_path: Path | None
    disk_bytes_per_second: float | None


def examine(
    *,
    disk_path: Path | None = None,
    isa: str = "",
    progress: Callable[[str], None] = lambda _: None,
    root: Path = Path("/"),
) -> Examination:
    """Describe the machine and measure it, for up to about ten seconds.

    Args:
        disk_path: The file to measure the disk with.
        isa: The kernel table whose arithmetic is measured, by default the best one here.
        progress: Hears what is being measured.
        root: The folder that holds ``proc`` and ``sys``.

    Raises:
        UsageError: This processor does not run the table.
    """
    load = _load(root)
    machine = read_machine(root)
    cpus = [core.cpus[0] for core in machine.topology.performance_cores]
    started, stolen = time.monotonic(), read_throttling(root).steal_seconds
    speeds = _measure_speeds(cpus, isa, progress, root)
    latency = measure_latency(cpus[0] if cpus else -1, progress=progress, root=root)
    elapsed, throttling = time.monotonic() - started, read_throttling(root)
    if disk_path is not None:
        progress("reading from disk")
    return read_machine_state(
        machine,
        root,
        throttling=throttling,
        load=load,
        speeds=speeds,
        latency=latency,
        steal_share=_steal_share(stolen, throttling.steal_seconds, elapsed * len(machine.topology.online)),
        disk_path=disk_path,
        disk_bytes_per_second=None if disk_path is None else measure_disk(disk_path),
    )


def read_machine_state(
    machine: Machine,
    root: Path,
    *,
    throttling: Throttling | None = None,
    load: float | None = None,
    speeds: dict[int, MachineSpeed] | None = None,
    latency: MemoryLatency | None = None,
    steal_share: float | None = None,
    disk_path: Path | None = None,
    disk_bytes_per_second: float | None = None,
) -> Examination:
    """Return what was measured together with the settings of the system that no ``Machine`` holds."""
    total = parse_integer(read_fields(root / "proc/meminfo").get("MemTotal", "").removesuffix("kB").strip())
    balancing = read_integer(root / "proc/sys/kernel/numa_balancing")
    first_cpu = min(machine.topology.usable, default=0)
    return Examination(
        machine=machine,
        total_bytes=None if total is None else total * 1024,
        frequency_driver=read_text(root / f"sys/devices/system/cpu/cpu{first_cpu}/cpufreq/scaling_driver"),
        numa_balancing=None if balancing is None else balancing > 0,
        may_lock_all=_may_lock_all(root),
        throttling=throttling or read_throttling(root),
        load=load,
        speeds=speeds or {},
        latency=latency,
        steal_share=steal_share,
        disk_path=disk_path,
        disk_bytes_per_second=disk_bytes_per_second,
    )


def _measure_speeds(
    cpus: Sequence[int], isa: str, progress: Callable[[str], None], root: Path
) -> dict[int, MachineSpeed]:
    counts = _thread_counts(len(cpus))
    best: dict[int, MachineSpeed] = {}
    deadline = time.monotonic() + _MOST_SECONDS
    for round_number in range(1, _NUM_ROUNDS + 1):
        for count in counts:
            if time.monotonic() > deadline:
                return best
            progress(
                f"round {round_number} of {_NUM_ROUNDS}: bandwidth and arithmetic, {count} of {counts[-1]} threads"
            )
            speed = measure_speed(cpus[:count], isa=isa, root=root)
            if speed is not None:
                best[count] = speed.best_of(best.get(count, speed))
    return best


def _thread_counts(most: int) -> list[int]:
    """All counts of a small machine; powers of two and all threads of a large one."""
    if most <= 4:
        return list(range(1, most + 1))
    return sorted({1, most, *(2**power for power in range(1, most.bit_length()) if 2**power < most)})


def _load(root: Path) -> float | None:
    words = (read_text(root / "proc/loadavg") or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _steal_share(before: float | None, after: float | None, cpu_seconds: float) -> float | None:
    if before is None or after is None or cpu_seconds <= 0:
        return None
    return min(1.0, max(0.0, after - before) / cpu_seconds)


def _may_lock_all(root: Path) -> bool:
    words = read_fields(root / "proc/self/status").get("CapEff", "")
    try:
        return bool(int(words, 16) >> _LOCKS_MEMORY & 1)
    except ValueError:
        return hasattr(os, "geteuid") and os.geteuid() == 0

"""How much memory this process may use, lock, and has used at most; what to spend it on is the engine's decision."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treadle.hardware import other_systems
from treadle.hardware.kernel_files import parse_integer, read_chosen, read_fields, read_integer, read_text
from treadle.hardware.limits import control_group_directories

if sys.platform != "win32":
    import resource

__all__ = [
    "ADDRESS_SPACE_FILE",
    "HugePages",
    "MemoryBudget",
    "Swap",
    "memlock_limit_bytes",
    "memory_budget",
    "peak_memory_bytes",
    "read_huge_pages",
    "read_swap",
    "resident_memory_bytes",
    "set_huge_pages",
    "swapped_bytes",
]

# (limit, usage, reclaimable page cache in memory.stat) of version 2 and version 1
GROUP_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.high", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)

ADDRESS_SPACE_FILE = "/proc/self/limits"
# Of the address space, for libraries that are loaded later, the stacks of threads and what the allocator reserves.
_ADDRESS_SPACE_RESERVE = 128 * 2**20

_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE = 41, 42  # of prctl


@dataclass(frozen=True)
class MemoryBudget:
    """Memory this process may still use, out of what it could ever have, and which of the limits decided.

    ``limit_file`` is the file that has ``limit_bytes``: a control group's, or ``ADDRESS_SPACE_FILE``, which tells what
    `ulimit -v` allows; None where the machine sets the limit.
    """

    available_bytes: int
    limit_bytes: int
    reason: str
    limit_file: str | None = None


@dataclass(frozen=True)
class HugePages:
    """How the system gives huge pages: to ``always``, on ``madvise`` or ``never``; None where it knows none.

    ``reserved`` holds the free and all pages of the pools set aside for programs that ask for those, by page size.
    """

    mode: str | None
    defrag: str | None
    page_bytes: int | None
    reserved: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Swap:
    """Swap space of the machine, and how eagerly the kernel uses it (0 to 200, None where it does not say)."""

    total_bytes: int
    free_bytes: int
    swappiness: int | None


def memory_budget(root: Path = Path("/")) -> MemoryBudget:
    """The tightest of the machine's available memory and each limit of this process and its control groups.

    Of a limit counts what is not in use, or could be freed.
    """
    budgets = [_machine_budget(root), *_address_space_budget(root)]
    for directory in control_group_directories(root, "memory"):
        budgets += _group_budgets(root, directory)
    tightest = min(budgets, key=lambda budget: budget.available_bytes)
    lowest = min(budgets, key=lambda budget: budget.limit_bytes)
    return MemoryBudget(tightest.available_bytes, lowest.limit_bytes, tightest.reason, lowest.limit_file)


def _machine_budget(root: Path) -> MemoryBudget:
    if other_systems.is_here(root):
        free_bytes = other_systems.available_bytes()
        return MemoryBudget(free_bytes, max(free_bytes, other_systems.total_bytes()), "available memory of the machine")
    fields = read_fields(root / "proc/meminfo")
    total, available = (_kibibytes(fields.get(name)) for name in ("MemTotal", "MemAvailable"))
    if available is not None:
        return MemoryBudget(available, max(available, total or 0), "available memory of the machine")
    total = total or _physical_bytes()
    if total is not None:
        return MemoryBudget(total, total, "total memory of the machine; the system does not tell how much is free")
    return MemoryBudget(sys.maxsize, sys.maxsize, "unknown: the system does not tell how much memory it has")


def _address_space_budget(root: Path) -> list[MemoryBudget]:
    """What `ulimit -v` leaves: batch systems and shared hosts set it where they have no control groups."""
    for line in (read_text(root / ADDRESS_SPACE_FILE[1:]) or "").splitlines():
        if line.startswith("Max address space"):
            limit_bytes = parse_integer(line.split()[3])
            held_bytes = _kibibytes(read_fields(root / "proc/self/status").get("VmSize"))
            if limit_bytes is None or held_bytes is None:
                break
            held_bytes += _ADDRESS_SPACE_RESERVE
            reason = f"address space of {limit_bytes / 2**20:.0f} MiB (ulimit -v), {held_bytes / 2**20:.0f} MiB taken"
            return [MemoryBudget(max(0, limit_bytes - held_bytes), limit_bytes, reason, ADDRESS_SPACE_FILE)]
    return []


def _group_budgets(root: Path, directory: Path) -> list[MemoryBudget]:
    budgets = []
    for limit_name, usage_name, cache_names in GROUP_FILES:
        limit_bytes = read_integer(directory / limit_name)
        if limit_bytes is None or limit_bytes < 0:
            continue
        usage_bytes = max(0, read_integer(directory / usage_name) or 0)
        stat = read_fields(directory / "memory.stat")
        cache_bytes = sum(parse_integer(stat.get(name, "")) or 0 for name in cache_names)
        held_bytes = max(0, usage_bytes - max(0, cache_bytes))
        source = f"/{(directory / limit_name).relative_to(root).as_posix()}"
        reason = f"limit of {limit_bytes / 2**20:.0f} MiB in {source}, {held_bytes / 2**20:.0f} MiB of it in use"
        budgets.append(MemoryBudget(max(0, limit_bytes - held_bytes), limit_bytes, reason, source))
    return budgets


def _kibibytes(field: str | None) -> int | None:
    number = parse_integer((field or "").removesuffix("kB").strip())
    return None if number is None or number < 0 else number * 1024


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf; others may not know these names
        return None


def read_huge_pages(root: Path = Path("/")) -> HugePages:
    """Describe the huge pages of the machine."""
    folder = root / "sys/kernel/mm/transparent_hugepage"
    reserved = {}
    for pool in sorted((root / "sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        kib = parse_integer(pool.name.removeprefix("hugepages-").removesuffix("kB"))
        total, free = (read_integer(pool / name) for name in ("nr_hugepages", "free_hugepages"))
        if kib and total:
            reserved[kib * 1024] = (free or 0, total)
    return HugePages(
        read_chosen(folder / "enabled"),
        read_chosen(folder / "defrag"),
        read_integer(folder / "hpage_pmd_size"),
        reserved,
    )


def set_huge_pages(on: bool) -> None:
    """Let memory that this process touches from now on have huge pages or none; does nothing where there are none."""
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None)
        if library.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0) == int(on):
            library.prctl(_PR_SET_THP_DISABLE, int(not on), 0, 0, 0)


def read_swap(root: Path = Path("/")) -> Swap:
    """Describe the swap space of the machine."""
    fields = read_fields(root / "proc/meminfo")
    total, free = (_kibibytes(fields.get(name)) or 0 for name in ("SwapTotal", "SwapFree"))
    return Swap(total, free, read_integer(root / "proc/sys/vm/swappiness"))


def swapped_bytes(root: Path = Path("/")) -> int | None:
    """Return how much of this process is in swap, None where the system does not tell."""
    return _kibibytes(read_fields(root / "proc/self/status").get("VmSwap"))


def memlock_limit_bytes() -> int | None:
    """The limit on memory this process may lock, None when there is none; a privileged process is not held to it."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def resident_memory_bytes(root: Path = Path("/")) -> int:
    """The physical memory this process holds now, 0 where the system does not tell."""
    return _kibibytes(read_fields(root / "proc/self/status").get("VmRSS")) or 0


def peak_memory_bytes(root: Path = Path("/")) -> int:
    """The most physical memory this process ever held, 0 where the system does not tell."""
    peak = _kibibytes(read_fields(root / "proc/self/status").get("VmHWM"))
    if peak is not None or sys.platform == "win32":
        return peak or 0
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if sys.platform == "darwin" else usage * 1024

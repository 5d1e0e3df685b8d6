"""What would make a cell faster, as things to type; what follows a # is why.

Leaves to others: what bounds it (``verdict``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from treadle.engine.profile.evidence import Evidence
    from treadle.engine.profile.record import Cell, VerdictKind
    from treadle.engine.profile.setup import MachineFacts, ProfileSettings

__all__ = ["Case", "advise"]

_MANY_KV_BYTES = 0.25  # of what a pass reads
_POOR_READING = 0.7  # of the limit, where others reach 0.8 and more
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"


class Case(NamedTuple):
    """What bounds a cell, and all that is known of it."""

    kind: VerdictKind
    cell: Cell
    evidence: Evidence
    machine: MachineFacts
    settings: ProfileSettings


def advise(case: Case) -> tuple[str, ...]:
    """Return what would help, the most useful first."""
    return tuple(_ADVISERS[case.kind](case))


def _against_throttling(case: Case) -> Iterator[str]:
    threads = max(1, int(case.machine.quota or 1))
    yield f"treadle serve MODEL --threads {threads}  # as many as the quota has whole CPUs"
    yield "docker update --cpus 4 CONTAINER  # or resources.limits.cpu of the pod, or cpu.max of the control group"


def _against_robbery(case: Case) -> Iterator[str]:
    evidence, num_threads = case.evidence, case.cell.limits.num_threads
    if (evidence.stolen_share or 0.0) >= (evidence.other_share or 0.0):
        yield "vmstat 1 5  # column st; a machine type with dedicated CPUs ends it"
        return
    yield "ps aux --sort=-%cpu | head  # what else runs; end it, or move it with taskset -cp CPUS PID"
    if num_threads > 1:
        yield f"treadle serve MODEL --threads {num_threads - 1}  # leaves a core to the others"


def _against_swapping(_: Case) -> Iterator[str]:
    yield "treadle serve MODEL --mlock  # keeps weights and KV blocks in memory"
    yield "treadle plan MODEL --compare Q4_K_M,Q4_0  # what would fit"
    yield "swapon --show; free -m  # what takes the memory"


def _for_pages(case: Case) -> Iterator[str]:
    if case.machine.huge_pages == "never":
        yield f"echo madvise | sudo tee {_THP}  # lets programs ask for huge pages"
    if not case.settings.huge_pages:
        yield "treadle serve MODEL --huge-pages"
    yield "grep -E 'AnonHuge|HugePages' /proc/meminfo  # whether there are free ones; memory may be in too small pieces"


def _against_waiting(case: Case) -> Iterator[str]:
    cell = case.cell
    if cell.limits.num_threads > case.machine.num_cores:
        yield f"treadle serve MODEL --threads {case.machine.num_cores}  # one for each core"
        return
    if cell.limits.num_threads > 1:
        yield "treadle tune MODEL  # tries fewer threads, and keeps what is faster"
    if cell.kind == "decode":
        yield "treadle serve MODEL  # more streams give each step more to do"


def _for_arithmetic(case: Case) -> Iterator[str]:
    cell, machine = case.cell, case.machine
    if cell.limits.num_threads < machine.num_cores:
        option = "--prompt-threads" if cell.kind == "prompt" else "--threads"
        yield f"treadle serve MODEL {option} {machine.num_cores}  # one for each core"
    if cell.kind == "prompt":
        yield "treadle serve MODEL --disk-cache 8GiB  # what prompts begin with in common is read once"
    else:
        yield "treadle plan MODEL  # from how many streams on more of them no longer add to the rate"


def _for_reading(case: Case) -> Iterator[str]:
    cell, evidence, settings = case.cell, case.evidence, case.settings
    if (evidence.read_share or 0.0) < _POOR_READING:
        yield "treadle tune MODEL  # tries other numbers of threads, pinning and huge pages"
    if case.kind == "DRAM-bound" and (not settings.huge_pages or case.machine.huge_pages == "never"):
        yield from _for_pages(case)
    if evidence.kv_share > _MANY_KV_BYTES and settings.kv_type == "f16":
        yield "treadle serve MODEL --kv-type q8_0  # the context takes half of the bytes"
    if cell.kind == "decode":
        yield "treadle serve MODEL  # requests that run together share each reading of the weights"
    yield "treadle plan MODEL --compare Q4_K_M,Q4_0  # fewer bytes per weight are read in less time"


_ADVISERS: Mapping[VerdictKind, Callable[[Case], Iterator[str]]] = {
    "throttled": _against_throttling,
    "robbed": _against_robbery,
    "swapped": _against_swapping,
    "TLB-bound": _for_pages,
    "barrier-bound": _against_waiting,
    "compute-bound": _for_arithmetic,
    "cache-bound": _for_reading,
    "DRAM-bound": _for_reading,
}

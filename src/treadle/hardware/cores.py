"""Physical cores: which CPUs are hardware threads of one, where it sits, and whether it is of the slow kind.

Leaves to others: which CPUs this process may use (``topology``) and how many cores to use (``plan``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from treadle.hardware import other_systems
from treadle.hardware.kernel_files import parse_integer, read_cpu_list, read_integer, read_text

__all__ = ["Core", "usable_cores"]

# Below this share of the fastest core's speed a core is of the slow kind. Favoured cores of one kind differ by a few
# per cent; slow kinds reach a third of the fast ones (little Arm cores) to somewhat more than half.
_EFFICIENCY_SHARE = 2 / 3
# Where the kernel lists the slow cores of a hybrid processor.
_EFFICIENCY_LISTS = ("sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")


@dataclass(frozen=True)
class Core:
    """One physical core; ``cpus`` are those of its hardware threads that this process may run on.

    ``capacity`` is the kernel's measure of speed, 1024 for the fastest core, ``max_khz`` the highest frequency,
    ``package`` the socket, ``node`` that of its memory; each None where the system does not tell.
    """

    cpus: tuple[int, ...]
    is_efficiency: bool  # the slow kind of a processor with two kinds
    knows_siblings: bool  # False: the system does not tell which CPUs share a core, so this one counts alone
    package: int | None = None
    node: int | None = None
    capacity: int | None = None
    max_khz: int | None = None


def usable_cores(root: Path, cpus: Collection[int], node_of: Mapping[int, int]) -> tuple[Core, ...]:
    """The physical cores behind ``cpus``, in the order of their lowest CPU; ``node_of`` gives the node of a CPU."""
    if other_systems.is_here(root):
        return _cores_elsewhere(cpus)
    places = _places_in_cpuinfo(root)
    cores: list[Core] = []
    counted: set[int] = set()
    for cpu in sorted(cpus):
        if cpu in counted:
            continue
        siblings = _siblings(root, cpu) or _siblings_in_cpuinfo(places, cpu)
        threads = tuple(sorted((siblings or frozenset()) & frozenset(cpus) - counted)) or (cpu,)
        counted.update(threads)
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        package = read_integer(folder / "topology/physical_package_id")
        if package is None and cpu in places:
            package = places[cpu].package
        core = Core(
            threads,
            is_efficiency=False,
            knows_siblings=siblings is not None,
            package=None if package == -1 else package,  # -1: the firmware does not say
            node=node_of.get(cpu),
            capacity=read_integer(folder / "cpu_capacity"),
            max_khz=read_integer(folder / "cpufreq/cpuinfo_max_freq"),
        )
        cores.append(core)
    return _classified(root, cores)


def _siblings(root: Path, cpu: int) -> frozenset[int] | None:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = read_cpu_list(topology / name)
        if siblings is not None and cpu in siblings:
            return siblings
    return None


@dataclass(frozen=True)
class _Place:
    """Where a CPU sits according to /proc/cpuinfo, which containers without a full sysfs still have."""

    package: int
    core: int
    has_siblings: bool


def _places_in_cpuinfo(root: Path) -> dict[int, _Place]:
    places: dict[int, _Place] = {}
    if (root / "sys/devices/system/cpu/cpu0/topology").is_dir():
        return places  # it says the same and more
    for block in (read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        fields = {name.strip(): parse_integer(value.strip()) for name, _, value in lines}
        cpu, package, core = (fields.get(name) for name in ("processor", "physical id", "core id"))
        if cpu is None or package is None or core is None:
            return {}
        places[cpu] = _Place(package, core, fields.get("siblings") != fields.get("cpu cores"))
    return places


def _siblings_in_cpuinfo(places: Mapping[int, _Place], cpu: int) -> frozenset[int] | None:
    place = places.get(cpu)
    if place is None:
        return None
    if not place.has_siblings:  # some hypervisors give every CPU the same core
        return frozenset({cpu})
    return frozenset(other for other, its in places.items() if its == place)


def _classified(root: Path, cores: list[Core]) -> tuple[Core, ...]:
    """The same cores, those of the slow kind marked as such."""
    listed = frozenset[int]().union(*(read_cpu_list(root / name) or () for name in _EFFICIENCY_LISTS))
    lowest_capacity = _EFFICIENCY_SHARE * max((core.capacity or 0 for core in cores), default=0)
    lowest_khz = _EFFICIENCY_SHARE * max((core.max_khz or 0 for core in cores), default=0)

    def is_slow(core: Core) -> bool:
        if listed:
            return core.cpus[0] in listed
        is_weak = core.capacity is not None and core.capacity < lowest_capacity
        return is_weak or (core.max_khz is not None and core.max_khz < lowest_khz)

    return tuple(replace(core, is_efficiency=is_slow(core)) for core in cores)


def _cores_elsewhere(cpus: Collection[int]) -> tuple[Core, ...]:
    """Without sysfs only numbers are known: threads of a core are neighbours, and the slow cores come last."""
    counts = other_systems.core_counts()
    ordered = sorted(cpus)
    if counts is None or not 0 < counts.physical <= len(ordered):
        return tuple(Core((cpu,), is_efficiency=False, knows_siblings=False) for cpu in ordered)
    width = len(ordered) // counts.physical
    return tuple(
        Core(
            tuple(ordered[index * width : (index + 1) * width]),
            is_efficiency=index >= counts.performance,
            knows_siblings=True,
        )
        for index in range(counts.physical)
    )

"""Judges a machine: what costs models speed or memory on it, and what to type against it.

Leaves to others: the facts (``examination``), judging what was measured (``measured_findings``), showing the findings.
"""

from __future__ import annotations

from treadle.hardware.examination import Examination
from treadle.hardware.finding import LEVELS, Finding, Level, format_size
from treadle.hardware.measured_findings import disk, memory_channels, memory_latency, neighbours, stolen_time
from treadle.hardware.memory import ADDRESS_SPACE_FILE

__all__ = ["RULES", "find"]

# The kernel table with the fastest products needs all of these.
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})
_AVX2 = frozenset({"avx2", "fma", "f16c"})
_GIB = 1 << 30


def find(facts: Examination) -> list[Finding]:
    """Return what every rule that applies has found, the worst first."""
    findings = [finding for rule in RULES if (finding := rule(facts)) is not None]
    return sorted(findings, key=lambda finding: (LEVELS.index(finding.level), -finding.effect))


def governor(facts: Examination) -> Finding | None:
    """The kernel's policy for the clock of the cores; ``powersave`` means the lowest clock only under some drivers."""
    found = facts.machine.processor.governor
    if found is None:
        return None
    driver = facts.frequency_driver or "unknown driver"
    if "powersave" not in found and "conservative" not in found:
        return Finding("governor", "green", f"{found} ({driver})")
    is_slowest = "powersave" in found and not driver.startswith(("intel_pstate", "amd-pstate"))
    return Finding(
        "governor",
        "red" if is_slowest else "amber",
        f"{found} ({driver})",
        "the cores stay at their lowest clock" if is_slowest else "the clock rises late, and not always to the top",
        _on_host(facts, "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
        0.5 if is_slowest else 0.1,
    )


def huge_pages(facts: Examination) -> Finding | None:
    """Transparent huge pages: what weights and KV blocks ask for."""
    mode = facts.machine.huge_pages.mode
    if mode is None:
        return None
    if mode != "never":
        return Finding("huge pages", "green", mode)
    why = "first prompts of small models take up to half as long again, and decoding loses a few per cent"
    fix = _on_host(facts, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
    return Finding("huge pages", "amber", "never", why, fix, 0.15)


def locked_memory(facts: Examination) -> Finding | None:
    """The limit on locked memory, which matters where there is swap to be kept out of."""
    limit = facts.machine.memlock_bytes
    if limit is None or facts.may_lock_all:
        return Finding("locked memory", "green", "no limit")
    found = f"at most {format_size(limit)}"
    if facts.machine.swap.total_bytes == 0 or limit >= facts.machine.memory.limit_bytes // 2:
        return Finding("locked memory", "green", f"{found}; no swap to be kept out of" if limit < _GIB else found)
    fix = 'echo "$USER - memlock unlimited" | sudo tee /etc/security/limits.d/90-memlock.conf  # then log in again'
    if facts.machine.container in ("Docker", "Podman"):
        fix = f"{facts.machine.container.lower()} run --ulimit memlock=-1 ..."
    return Finding("locked memory", "amber", found, "--mlock cannot keep a model out of swap", fix, 0.02)


def cpu_quota(facts: Examination) -> Finding | None:
    """A control group's limit on CPU time, and how often it stopped this process and others under it."""
    quota, throttling = facts.machine.quota, facts.throttling
    if quota is None:
        return Finding("CPU quota", "green", "none")
    num_cores = len(facts.machine.topology.performance_cores)
    missing = max(0.0, 1 - quota.num_cpus / num_cores)
    share = (throttling.num_throttled or 0) / throttling.num_periods if throttling.num_periods else 0.0
    found = f"{quota.num_cpus:g} CPUs for {num_cores} cores, used up in {share:.0%} of the periods ({quota.source})"
    if missing == 0 and share < 0.05:
        return Finding("CPU quota", "green", found)
    return Finding(
        "CPU quota",
        "red" if share >= 0.05 else "amber",
        found,
        "threads stand still once it is used up; Treadle runs as many as it allows",
        _quota_fix(quota.source, facts.machine.container, len(facts.machine.topology.usable)),
        max(missing, min(share, 1.0)),
    )


def _quota_fix(source: str, container: str | None, num_cpus: int) -> str:
    if container == "Kubernetes":
        return f"kubectl set resources deployment NAME --limits=cpu={num_cpus}"
    if container in ("Docker", "Podman"):
        return f"{container.lower()} update --cpus {num_cpus} CONTAINER  # on the host"
    return f"echo {'max' if source.endswith('cpu.max') else -1} | sudo tee {source}"


def _memory_fix(limit_file: str, container: str | None, total_bytes: int) -> str:
    num_gib = total_bytes // _GIB
    if container == "Kubernetes":
        return f"kubectl set resources deployment NAME --limits=memory={num_gib}Gi"
    if container in ("Docker", "Podman"):
        return f"{container.lower()} update --memory {num_gib}g --memory-swap {num_gib}g CONTAINER  # on the host"
    if limit_file == ADDRESS_SPACE_FILE:
        return "ulimit -v unlimited"
    return f"echo {-1 if limit_file.endswith('limit_in_bytes') else 'max'} | sudo tee {limit_file}"


def affinity(facts: Examination) -> Finding | None:
    """The CPUs that the affinity mask and cpusets leave."""
    topology = facts.machine.topology
    found = f"{len(topology.usable)} of {len(topology.online)} CPUs"
    missing = 1 - len(topology.usable) / max(1, len(topology.online))
    if missing <= 0:
        return Finding("CPUs", "green", found)
    every = f"0-{max(topology.online)}"
    fix = f"taskset -cp {every} $$  # then start Treadle from this shell"
    if facts.machine.container in ("Docker", "Podman"):
        fix = f"{facts.machine.container.lower()} update --cpuset-cpus {every} CONTAINER  # on the host"
    return Finding("CPUs", "amber", found, "affinity mask or cpuset keep this process from the rest", fix, missing)


def siblings(facts: Examination) -> Finding | None:
    """Hardware threads of one core: Treadle starts one thread on each core, and says so."""
    cores = facts.machine.topology.cores
    num_left_out = sum(len(core.cpus) - 1 for core in cores)
    if not facts.machine.topology.knows_siblings:
        found = f"{len(cores)} CPUs; the system does not say which share a core"
        why = "if two of them do, two threads take turns on one core and hold up the rest"
        return Finding("SMT siblings", "amber", found, why, "treadle tune MODEL  # tries fewer threads", 0.1)
    if num_left_out == 0:
        return Finding("SMT siblings", "green", f"none: {len(cores)} cores, one CPU each")
    return Finding("SMT siblings", "green", f"{num_left_out} left out: one thread on each of {len(cores)} cores")


def instructions(facts: Examination) -> Finding | None:
    """What the processor, or its hypervisor, lets products of int8 be computed with."""
    features = facts.machine.processor.features
    if not features:
        return None
    is_virtual = facts.machine.hypervisor is not None
    if facts.machine.processor.architecture in ("aarch64", "arm64"):
        return _arm_instructions(features)
    if features >= _AVX512:
        return Finding("instructions", "green", "AVX-512 VNNI")
    fix = "lscpu | grep -i flags  # Ice Lake, Zen 4 and newer have AVX-512 VNNI, Alder Lake and newer AVX-VNNI"
    if is_virtual:
        fix = "qemu-system-x86_64 -cpu host ...  # on the host; in libvirt <cpu mode='host-passthrough'/>"
    if features >= _AVX2:
        if "avx_vnni" in features:
            return Finding("instructions", "green", "AVX2 with VNNI")
        return Finding(
            "instructions", "amber", "AVX2 without VNNI", "prompts take two to three times as long", fix, 0.4
        )
    why = "only the portable kernels run, many times slower"
    return Finding("instructions", "red", "no AVX2", why, fix, 0.9)


def _arm_instructions(features: frozenset[str]) -> Finding:
    fix = "grep -m1 Features /proc/cpuinfo  # Graviton 3, Ampere One, Apple M2 and newer have i8mm"
    if {"asimddp", "i8mm"} <= features:
        return Finding("instructions", "green", "NEON with int8 matrix products")
    if "asimddp" in features:
        return Finding("instructions", "amber", "NEON without i8mm", "prompts take about twice as long", fix, 0.3)
    return Finding("instructions", "red", "no dot products", "only the portable kernels run", fix, 0.9)


def memory_limit(facts: Examination) -> Finding | None:
    """What control groups leave of the memory, and how much is free."""
    budget = facts.machine.memory
    share = budget.available_bytes / max(1, facts.total_bytes or budget.limit_bytes)
    found = f"{format_size(budget.available_bytes)} to be had: {budget.reason}"
    if budget.limit_file is None or facts.total_bytes is None:
        if budget.available_bytes >= _GIB:
            return Finding("memory", "green", found)
        return Finding("memory", "red", found, "only the smallest models fit", "ps aux --sort=-rss | head", 1 - share)
    if budget.limit_bytes >= facts.total_bytes // 2 and budget.available_bytes >= _GIB:
        return Finding("memory", "green", found)
    fix = _memory_fix(budget.limit_file, facts.machine.container, facts.total_bytes)
    why = f"of the machine's {format_size(facts.total_bytes)}; larger models and contexts are refused"
    level: Level = "red" if budget.available_bytes < _GIB else "amber"
    return Finding("memory", level, found, why, fix, max(0.0, 1 - share))


def swap(facts: Examination) -> Finding | None:
    """Whether parts of programs have been swapped out."""
    found = facts.machine.swap
    used = found.total_bytes - found.free_bytes
    if used < max(found.total_bytes // 20, 64 << 20):
        return Finding(
            "swap", "green", "none" if found.total_bytes == 0 else f"{format_size(found.total_bytes)}, unused"
        )
    is_short = facts.machine.memory.available_bytes < used
    return Finding(
        "swap",
        "red" if is_short else "amber",
        f"{format_size(used)} of {format_size(found.total_bytes)} in use (swappiness {found.swappiness})",
        "weights that are swapped out come back from disk, thousands of times slower",
        "ps aux --sort=-rss | head" if is_short else _on_host(facts, "sudo swapoff -a && sudo swapon -a"),
        0.8 if is_short else 0.1,
    )


def numa_balancing(facts: Examination) -> Finding | None:
    """The kernel moving pages between memory nodes, on a machine that has several."""
    if len(facts.machine.topology.nodes) < 2 or facts.numa_balancing is None:
        return None
    if not facts.numa_balancing:
        return Finding("NUMA balancing", "green", "off")
    why = "the kernel keeps unmapping weights to see who reads them; Treadle has placed them already"
    return Finding("NUMA balancing", "amber", "on", why, _on_host(facts, "sudo sysctl kernel.numa_balancing=0"), 0.1)


RULES = (
    governor,
    huge_pages,
    locked_memory,
    cpu_quota,
    affinity,
    siblings,
    instructions,
    memory_limit,
    swap,
    numa_balancing,
    memory_channels,
    memory_latency,
    stolen_time,
    neighbours,
    disk,
)


def _on_host(facts: Examination, command: str) -> str:
    """Containers see these settings of their host, and cannot change them."""
    return f"{command}  # on the host" if facts.machine.container else command

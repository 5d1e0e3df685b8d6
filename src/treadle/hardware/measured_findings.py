"""Judges what was measured on a machine; one rule per function.

Leaves to others: measuring (``examination``), and the rules about settings and limits (``findings``).
"""

from __future__ import annotations

from treadle.hardware.examination import Examination
from treadle.hardware.finding import Finding

__all__ = ["disk", "is_busy", "memory_channels", "memory_latency", "neighbours", "stolen_time"]

# Of one channel of DDR5-5600; what is read faster comes from several.
_CHANNEL_BYTES_PER_SECOND = 45e9
# Servers of several sockets take 150 ns at the most, small pages and virtual machines half as long again.
_SLOW_LOAD_SECONDS = 250e-9
# Other programs with so many threads per CPU may have held up a probe.
_BUSY_SHARE = 0.5


def memory_channels(facts: Examination) -> Finding | None:
    """Infers from the bandwidth of one thread and of all whether memory has one channel only."""
    if len(facts.speeds) < 2 or is_busy(facts):
        return None
    one, most = facts.speeds[min(facts.speeds)].read_bytes_per_second, max(facts.speeds)
    best = max(speed.read_bytes_per_second for speed in facts.speeds.values())
    found = f"1 thread reads {one / 1e9:.1f} GB/s, the best number of threads {best / 1e9:.1f} GB/s"
    if best > 1.25 * one or best > _CHANNEL_BYTES_PER_SECOND:
        return Finding("memory channels", "green", found)
    if facts.machine.hypervisor is not None:
        why = "one thread takes all that this virtual machine gets of its host's memory: more threads decode no faster"
        fix = "treadle tune MODEL  # one thread for answers may be enough; larger machine types read faster"
        return Finding("memory channels", "amber", found, why, fix, 0.1)
    why = f"{most} threads read no faster than one: probably one memory channel is in use; two read twice as fast"
    return Finding("memory channels", "amber", found, why, "sudo dmidecode -t memory | grep -E 'Locator|Size'", 0.5)


def memory_latency(facts: Examination) -> Finding | None:
    """How long a load from memory takes."""
    if facts.latency is None or is_busy(facts):
        return None
    share = facts.latency.huge_page_share
    memory = facts.latency.places[-1].seconds
    found = f"{1e9 * memory:.0f} ns" + ("" if share is None else f", with {share:.0%} of it in huge pages")
    if memory <= _SLOW_LOAD_SECONDS:
        return Finding("memory latency", "green", found)
    why = "slow memory, that of another node, or neighbours who read as well; threads wait longer for each other too"
    return Finding("memory latency", "amber", found, why, "numactl --hardware  # and what else runs: top", 0.1)


def stolen_time(facts: Examination) -> Finding | None:
    """What the host of a virtual machine took of its CPUs while the probes ran."""
    share = facts.steal_share
    if share is None or facts.machine.hypervisor is None:
        return None
    found = f"{share:.1%} of the CPU time"
    if share < 0.02:
        return Finding("stolen time", "green", found)
    why = "the host runs others on these CPUs, and all threads wait for the one that is held up"
    fix = "vmstat 1 5  # column st; a machine type with dedicated CPUs ends it"
    return Finding("stolen time", "red" if share >= 0.1 else "amber", found, why, fix, min(1.0, 2 * share))


def neighbours(facts: Examination) -> Finding | None:
    """What other programs ran before the probes did."""
    if facts.load is None:
        return None
    found = f"{facts.load:.1f} threads of other programs for {len(facts.machine.topology.online)} CPUs"
    if not is_busy(facts):
        return Finding("other programs", "green", found)
    why = "they share cores and memory with models, and with the measurements above"
    return Finding("other programs", "amber", found, why, "ps aux --sort=-%cpu | head", 0.3)


def disk(facts: Examination) -> Finding | None:
    """How fast models come from disk, which matters when they are loaded."""
    speed = facts.disk_bytes_per_second
    if speed is None:
        return None
    found = f"{speed / 1e6:,.0f} MB/s from {facts.disk_path}"
    if speed >= 200e6:
        return Finding("disk", "green", found)
    why = f"5 GB of weights take {5e9 / speed:.0f} s to load"
    return Finding("disk", "amber", found, why, "export TREADLE_HOME=/a/folder/on/a/faster/disk", 0.01)


def is_busy(facts: Examination) -> bool:
    """Tell whether other programs may have held up the probes."""
    return facts.load is not None and facts.load >= _BUSY_SHARE * len(facts.machine.topology.online)

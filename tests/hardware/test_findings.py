"""Each rule of the doctor on imaginary machines: what is red, amber and green, and what to type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from machines import FakeRoot, cpuinfo, cpus, two_sockets, v1, v2

from treadle.hardware import findings, measured_findings
from treadle.hardware.examination import Examination, read_machine_state
from treadle.hardware.finding import Finding, worst_level
from treadle.hardware.findings import RULES, find
from treadle.hardware.machine import read_machine
from treadle.hardware.machine_speed import MachineSpeed
from treadle.hardware.memory_latency import Latency, MemoryLatency

GB = 10**9
MEMINFO = {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\n"}
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"

Look = Callable[..., Examination]


@pytest.fixture
def look(fake_root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> Look:
    """A function that writes files, looks at the machine, and takes the place of what was measured."""

    def look_at(
        files: Mapping[str, str], *, memlock: int | None = None, architecture: str = "x86_64", **measured: Any
    ) -> Examination:
        monkeypatch.setattr("treadle.hardware.machine.memlock_limit_bytes", lambda: memlock)
        root = fake_root(MEMINFO | files)
        found = read_machine(root)
        found = replace(found, processor=replace(found.processor, architecture=architecture))
        return read_machine_state(found, root, **measured)

    return look_at


def brief(finding: Finding | None) -> tuple[str, str] | None:
    """The level and what is to be typed."""
    return None if finding is None else (finding.level, finding.fix.partition("  #")[0])


PERFORMANCE = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


@pytest.mark.parametrize(
    ("governor", "driver", "expected"),
    [
        ("performance", "acpi-cpufreq", ("green", "")),
        ("schedutil", "acpi-cpufreq", ("green", "")),
        ("powersave", "acpi-cpufreq", ("red", PERFORMANCE)),
        ("powersave", "intel_pstate", ("amber", PERFORMANCE)),
        ("powersave", "amd-pstate-epp", ("amber", PERFORMANCE)),
        ("conservative", "acpi-cpufreq", ("amber", PERFORMANCE)),
        (None, None, None),
    ],
)
def test_governor(look: Look, governor: str | None, driver: str | None, expected: Any) -> None:
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    files = {f"{folder}/scaling_governor": f"{governor}\n", f"{folder}/scaling_driver": f"{driver}\n"}
    assert brief(findings.governor(look(cpus(1) | (files if governor else {})))) == expected


@pytest.mark.parametrize(
    ("modes", "level"), [("[always] madvise never", "green"), ("always [madvise] never", "green"), ("[never]", "amber")]
)
def test_huge_pages(look: Look, modes: str, level: str) -> None:
    found = findings.huge_pages(look({HUGE_PAGES: modes}))
    assert found is not None and found.level == level
    assert (found.fix == f"echo madvise | sudo tee /{HUGE_PAGES}") == (level == "amber")


def test_a_kernel_without_huge_pages_is_not_judged(look: Look) -> None:
    assert findings.huge_pages(look({})) is None


def test_in_a_container_the_host_is_to_be_changed(look: Look) -> None:
    found = findings.huge_pages(look({HUGE_PAGES: "[never]", ".dockerenv": ""}))
    assert found is not None and found.fix.endswith("  # on the host")


SWAP = "MemTotal: 16000000 kB\nMemAvailable: {available} kB\nSwapTotal: 8000000 kB\nSwapFree: {free} kB\n"


@pytest.mark.parametrize(
    ("memlock", "capabilities", "has_swap", "level"),
    [
        (8 << 20, "0", True, "amber"),
        (8 << 20, "0", False, "green"),
        (8 << 20, "000001ffffffffff", True, "green"),
        (None, "0", True, "green"),
        (12 * GB, "0", True, "green"),
    ],
)
def test_locked_memory(look: Look, memlock: int | None, capabilities: str, has_swap: bool, level: str) -> None:
    files = {"proc/self/status": f"CapEff:\t{capabilities}\n"}
    if has_swap:
        files["proc/meminfo"] = SWAP.format(available=12000000, free=8000000)
    found = findings.locked_memory(look(files, memlock=memlock))
    assert found is not None and found.level == level
    assert ("memlock unlimited" in found.fix) == (level == "amber")


def test_no_quota(look: Look) -> None:
    assert brief(findings.cpu_quota(look(cpus(4)))) == ("green", "")


@pytest.mark.parametrize(
    ("quota", "throttled", "extra", "expected"),
    [
        ("400000", 0, {}, ("green", "")),
        ("200000", 1, {}, ("amber", "echo max | sudo tee /sys/fs/cgroup/job/cpu.max")),
        ("200000", 80, {}, ("red", "echo max | sudo tee /sys/fs/cgroup/job/cpu.max")),
        ("400000", 80, {".dockerenv": ""}, ("red", "docker update --cpus 4 CONTAINER")),
        (
            "200000",
            80,
            {"proc/1/cgroup": "0::/kubepods.slice"},
            ("red", "kubectl set resources deployment NAME --limits=cpu=4"),
        ),
    ],
)
def test_cpu_quota(look: Look, quota: str, throttled: int, extra: dict[str, str], expected: Any) -> None:
    files = cpus(4) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": f"{quota} 100000"} | extra
    files["sys/fs/cgroup/job/cpu.stat"] = f"nr_periods 100\nnr_throttled {throttled}\nthrottled_usec 5\n"
    assert brief(findings.cpu_quota(look(files))) == expected


def test_a_quota_of_version_1_is_lifted_otherwise(look: Look) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {f"{folder}/cpu.cfs_quota_us": "50000", f"{folder}/cpu.cfs_period_us": "100000"}
    found = findings.cpu_quota(look(cpus(2) | v1("/job") | files))
    assert brief(found) == ("amber", f"echo -1 | sudo tee /{folder}/cpu.cfs_quota_us")
    assert found is not None and found.effect == pytest.approx(0.75)


def test_affinity(look: Look) -> None:
    files = cpus(8) | {"proc/self/status": "Cpus_allowed_list:\t0-1\n"}
    found = findings.affinity(look(files))
    assert brief(found) == ("amber", "taskset -cp 0-7 $$")
    assert found is not None and found.found == "2 of 8 CPUs" and found.effect == 0.75
    docker = ("amber", "docker update --cpuset-cpus 0-7 CONTAINER")
    assert brief(findings.affinity(look(files | {".dockerenv": ""}))) == docker
    assert brief(findings.affinity(look(cpus(8) | {"proc/self/status": "Cpus_allowed_list:\t0-7\n"}))) == ("green", "")


def test_siblings_are_left_out(look: Look) -> None:
    found = findings.siblings(look(cpus(8, threads_per_core=2)))
    assert found is not None and (found.level, found.found) == ("green", "4 left out: one thread on each of 4 cores")


def test_unknown_siblings(look: Look) -> None:
    found = findings.siblings(look({"sys/devices/system/cpu/online": "0-3\n"}))
    assert brief(found) == ("amber", "treadle tune MODEL")


AVX2 = "avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("flags", "level", "fix"),
    [
        (AVX512, "green", ""),
        (f"{AVX2} avx_vnni", "green", ""),
        (f"{AVX2} avx512f avx512bw avx512dq avx512vl", "amber", "lscpu"),
        (AVX2, "amber", "lscpu"),
        (f"{AVX2} hypervisor", "amber", "qemu-system-x86_64 -cpu host"),
        ("sse4_2 hypervisor", "red", "qemu-system-x86_64 -cpu host"),
    ],
)
def test_instructions(look: Look, flags: str, level: str, fix: str) -> None:
    found = findings.instructions(look(cpuinfo([(0, 0)], siblings=1, cores=1, extra=f"flags : {flags}\n")))
    assert found is not None and found.level == level and found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("features", "level"), [("asimd asimddp i8mm", "green"), ("asimd asimddp", "amber"), ("asimd", "red")]
)
def test_instructions_of_the_other_family(look: Look, features: str, level: str) -> None:
    files = {"proc/cpuinfo": f"processor : 0\nFeatures : {features}\n"}
    found = findings.instructions(look(files, architecture="aarch64"))
    assert found is not None and found.level == level


def test_free_memory(look: Look) -> None:
    assert brief(findings.memory_limit(look({}))) == ("green", "")
    short = {"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 500000 kB\n"}
    assert brief(findings.memory_limit(look(short))) == ("red", "ps aux --sort=-rss | head")


@pytest.mark.parametrize(
    ("limit", "extra", "expected"),
    [
        (12 * GB, {}, ("green", "")),
        (4 * GB, {}, ("amber", "echo max | sudo tee /sys/fs/cgroup/job/memory.max")),
        (GB // 2, {}, ("red", "echo max | sudo tee /sys/fs/cgroup/job/memory.max")),
        (4 * GB, {".dockerenv": ""}, ("amber", "docker update --memory 15g --memory-swap 15g CONTAINER")),
    ],
)
def test_memory_limit(look: Look, limit: int, extra: dict[str, str], expected: Any) -> None:
    files = v2("/job") | {"sys/fs/cgroup/job/memory.max": f"{limit}"} | extra
    assert brief(findings.memory_limit(look(files))) == expected


@pytest.mark.parametrize(
    ("available", "free", "expected"),
    [
        (12_000_000, 8_000_000, ("green", "")),
        (12_000_000, 7_990_000, ("green", "")),
        (12_000_000, 6_000_000, ("amber", "sudo swapoff -a && sudo swapon -a")),
        (1_000_000, 1_000_000, ("red", "ps aux --sort=-rss | head")),
    ],
)
def test_swap(look: Look, available: int, free: int, expected: Any) -> None:
    assert brief(findings.swap(look({"proc/meminfo": SWAP.format(available=available, free=free)}))) == expected


def test_numa_balancing(look: Look) -> None:
    setting = "proc/sys/kernel/numa_balancing"
    assert findings.numa_balancing(look(cpus(2) | {setting: "1\n"})) is None
    assert brief(findings.numa_balancing(look(two_sockets(2) | {setting: "0\n"}))) == ("green", "")
    fix = "sudo sysctl kernel.numa_balancing=0"
    assert brief(findings.numa_balancing(look(two_sockets(2) | {setting: "1\n"}))) == ("amber", fix)


@pytest.mark.parametrize(
    ("nanoseconds", "share", "level", "found"),
    [
        (90, 1.0, "green", "90 ns, with 100% of it in huge pages"),
        (249, None, "green", "249 ns"),
        (400, 0.0, "amber", "400 ns, with 0% of it in huge pages"),
    ],
)
def test_memory_latency(look: Look, nanoseconds: float, share: float | None, level: str, found: str) -> None:
    latency = MemoryLatency((Latency("L1", 8192, 1e-9), Latency("memory", 1 << 28, 1e-9 * nanoseconds)), share)
    finding = measured_findings.memory_latency(look(cpus(2), latency=latency))
    assert finding is not None and (finding.level, finding.found) == (level, found)
    assert measured_findings.memory_latency(look(cpus(2), latency=latency, load=2.0)) is None
    assert measured_findings.memory_latency(look(cpus(2))) is None


def speeds(*gigabytes: float) -> dict[int, MachineSpeed]:
    return {count: MachineSpeed(speed * GB, 1e12) for count, speed in enumerate(gigabytes, 1)}


@pytest.mark.parametrize(
    ("measured", "flags", "level", "fix"),
    [
        (speeds(15, 30, 38), "fpu", "green", ""),
        (speeds(19, 20, 21, 20), "fpu", "amber", "sudo dmidecode -t memory"),
        (speeds(19, 20, 21, 20), "hypervisor", "amber", "treadle tune MODEL"),
        (speeds(60, 62), "fpu", "green", ""),
    ],
)
def test_memory_channels(look: Look, measured: dict[int, MachineSpeed], flags: str, level: str, fix: str) -> None:
    files = cpuinfo([(0, 0)], siblings=1, cores=1, extra=f"flags : {flags}\n")
    found = measured_findings.memory_channels(look(files, speeds=measured))
    assert found is not None and found.level == level and found.fix.startswith(fix)


def test_memory_channels_are_not_judged_on_a_busy_machine_or_by_one_thread(look: Look) -> None:
    assert measured_findings.memory_channels(look(cpus(4), speeds=speeds(19, 20), load=3.0)) is None
    assert measured_findings.memory_channels(look(cpus(1), speeds=speeds(19))) is None


@pytest.mark.parametrize(("share", "level"), [(0.0, "green"), (0.05, "amber"), (0.4, "red")])
def test_stolen_time(look: Look, share: float, level: str) -> None:
    files = cpuinfo([(0, 0)], siblings=1, cores=1, extra="flags : hypervisor\n")
    found = measured_findings.stolen_time(look(files, steal_share=share))
    assert found is not None and found.level == level
    assert found.fix.startswith("vmstat") == (level != "green")


def test_stolen_time_is_for_virtual_machines(look: Look) -> None:
    files = cpuinfo([(0, 0)], siblings=1, cores=1, extra="flags : fpu\n")
    assert measured_findings.stolen_time(look(files, steal_share=0.5)) is None


def test_neighbours(look: Look) -> None:
    assert brief(measured_findings.neighbours(look(cpus(4), load=1.0))) == ("green", "")
    assert brief(measured_findings.neighbours(look(cpus(4), load=4.0))) == ("amber", "ps aux --sort=-%cpu | head")


def test_disk(look: Look) -> None:
    assert brief(measured_findings.disk(look({}, disk_bytes_per_second=2e9))) == ("green", "")
    slow = measured_findings.disk(look({}, disk_bytes_per_second=50e6))
    assert slow is not None and (slow.level, slow.why) == ("amber", "5 GB of weights take 100 s to load")
    assert measured_findings.disk(look({})) is None


def test_findings_come_worst_first(look: Look) -> None:
    files = cpus(4) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": "100000 100000", HUGE_PAGES: "[never]"}
    files["sys/fs/cgroup/job/cpu.stat"] = "nr_periods 100\nnr_throttled 50\n"
    files["proc/self/status"] = "Cpus_allowed_list:\t0-1\n"
    found = find(look(files))
    assert [(finding.name, finding.level) for finding in found[:3]] == [
        ("CPU quota", "red"),
        ("CPUs", "amber"),
        ("huge pages", "amber"),
    ]
    assert {finding.level for finding in found[3:]} == {"green"}
    assert worst_level(found) == "red" and worst_level(found[1:]) == "amber" and worst_level([]) == "green"


def test_an_empty_machine_is_judged_too(look: Look) -> None:
    for finding in find(look({})):
        assert finding.found
        assert (finding.level == "green") == (not finding.why) == (not finding.fix)


def test_every_rule_is_named_once(look: Look) -> None:
    assert len(set(RULES)) == len(RULES) == 15

"""Processor, hypervisor, container, huge pages, swap; and what other systems than Linux tell."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from machines import FakeRoot, cpuinfo, cpus, v2

from treadle.hardware import other_systems
from treadle.hardware.machine import read_machine
from treadle.hardware.memory import HugePages, Swap, read_huge_pages, read_swap
from treadle.hardware.surroundings import find_container, find_hypervisor, read_processor
from treadle.hardware.topology import read_topology


def test_processor(fake_root: FakeRoot) -> None:
    files = cpuinfo([(0, 0)], siblings=1, cores=1, extra="flags\t\t: fpu avx2 avx512_vnni\n")
    files |= {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "powersave\n" for cpu in range(2)}
    files["sys/devices/system/cpu/cpu2/cpufreq/scaling_governor"] = "performance\n"
    root = fake_root(files)
    processor = read_processor(root, [0, 1])
    assert (processor.name, processor.governor) == ("Imaginary 9000", "powersave")
    assert processor.features == {"fpu", "avx2", "avx512_vnni"}
    assert read_processor(root, [0, 2]).governor == "performance,powersave"


def test_processor_of_the_other_family(fake_root: FakeRoot) -> None:
    files = {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n", "proc/device-tree/model": "Pi\0"}
    processor = read_processor(fake_root(files), [0])
    assert (processor.name, processor.governor) == ("Pi", None)
    assert "i8mm" in processor.features


@pytest.mark.parametrize(
    ("files", "hypervisor"),
    [
        ({}, None),
        ({"sys/class/dmi/id/sys_vendor": "Dell Inc.\n"}, None),
        ({"sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n"}, None),  # a machine they sell
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, "QEMU"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/cpuinfo": "flags : fpu hypervisor\n"}, "unknown"),
        ({"proc/cpuinfo": "flags : hypervisor\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "Amazon EC2"),
        ({"proc/cpuinfo": "flags : hypervisor\n", "sys/class/dmi/id/sys_vendor": "Microsoft Corporation"}, "Hyper-V"),
    ],
)
def test_hypervisor(fake_root: FakeRoot, files: dict[str, str], hypervisor: str | None) -> None:
    assert find_hypervisor(fake_root(files)) == hypervisor


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({}, None),
        ({"proc/1/cgroup": "0::/init.scope\n"}, None),
        ({".dockerenv": ""}, "Docker"),
        ({"run/.containerenv": ""}, "Podman"),
        ({"proc/1/environ": "TERM=linux\0container=lxc\0"}, "LXC"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-burstable.slice\n"}, "Kubernetes"),
        ({"proc/1/cgroup": "4:cpu:/docker/abc\n"}, "Docker"),
    ],
)
def test_container(fake_root: FakeRoot, files: dict[str, str], container: str | None) -> None:
    assert find_container(fake_root(files)) == container


def test_huge_pages(fake_root: FakeRoot) -> None:
    folder = "sys/kernel/mm/transparent_hugepage"
    files = {f"{folder}/enabled": "always [madvise] never\n", f"{folder}/defrag": "always defer [never]\n"}
    files[f"{folder}/hpage_pmd_size"] = "2097152\n"
    for size, total in (("2048", 10), ("1048576", 0)):
        files |= {f"sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages": f"{total}\n"}
    files["sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"] = "7\n"
    root = fake_root(files)
    assert read_huge_pages(root) == HugePages("madvise", "never", 2 << 20, {2 << 20: (7, 10)})
    assert read_huge_pages(root / "nowhere") == HugePages(None, None, None, {})


def test_swap(fake_root: FakeRoot) -> None:
    root = fake_root({"proc/meminfo": "SwapTotal: 8 kB\nSwapFree: 4 kB\n", "proc/sys/vm/swappiness": "60\n"})
    assert read_swap(root) == Swap(8192, 4096, 60)
    assert read_swap(root / "nowhere") == Swap(0, 0, None)


def test_a_whole_machine(fake_root: FakeRoot) -> None:
    files = cpus(4) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": "250000 100000\n", ".dockerenv": ""}
    files |= {"proc/sys/kernel/osrelease": "6.1.0\n", "proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\n"}
    machine = read_machine(fake_root(files), range(4))
    assert machine.quota is not None and machine.quota.num_cpus == 2.5
    assert (machine.kernel, machine.container, machine.hypervisor) == ("6.1.0", "Docker", None)
    assert len(machine.topology.cores) == 4 and machine.memory.available_bytes == 4096


def test_an_empty_root_is_a_machine_too(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert machine.topology.cores and machine.caches == () and machine.quota is None


def test_this_machine() -> None:
    machine = read_machine()
    assert machine.topology.usable <= machine.topology.online
    assert sum(len(core.cpus) for core in machine.topology.cores) == len(machine.topology.usable)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """This machine, were it none with Linux: eight CPUs, four cores."""
    memory = types.SimpleNamespace(available=5 << 30, total=8 << 30)
    process = types.SimpleNamespace(cpu_affinity=lambda: list(range(8)))
    psutil = types.SimpleNamespace(cpu_count=lambda **_: 4, virtual_memory=lambda: memory, Process=lambda: process)
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("treadle.hardware.topology.allowed_cpus", lambda _: None)
    return psutil


def test_other_systems(elsewhere: types.SimpleNamespace) -> None:
    topology = read_topology()
    assert [core.cpus for core in topology.cores] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert topology.knows_siblings and topology.efficiency_cores == ()


def test_other_systems_that_know_nothing(elsewhere: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere.cpu_count = lambda **_: None
    elsewhere.Process = types.SimpleNamespace
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    topology = read_topology()
    assert [core.cpus for core in topology.cores] == [(0,), (1,)]
    assert not topology.knows_siblings


def test_slow_cores_of_a_mac_come_last(elsewhere: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(other_systems, "_sysctl", {"hw.perflevel0.physicalcpu": 3}.get)
    topology = read_topology()
    assert [core.cpus for core in topology.performance_cores] == [(0, 1), (2, 3), (4, 5)]
    assert len(topology.efficiency_cores) == 1

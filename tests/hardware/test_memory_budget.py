"""The memory budget on imaginary machines, and what the kernel says of this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from machines import FakeRoot, v1, v2

from patience import PATIENCE_SECONDS
from treadle.hardware.memory import memlock_limit_bytes, memory_budget, peak_memory_bytes

MIB = 2**20
MEMINFO = f"MemTotal: {1024 * 8} kB\nMemFree: 1 kB\nMemAvailable:    {1024 * 6} kB\nHugePages_Total: 0\n"  # 8 and 6 MiB


def test_machine_without_limits(fake_root: FakeRoot) -> None:
    budget = memory_budget(fake_root({"proc/meminfo": MEMINFO} | v2("/job")))
    assert (budget.available_bytes, budget.limit_bytes) == (6 * MIB, 8 * MIB)
    assert budget.reason == "available memory of the machine"


def test_version_2_limit_counts_page_cache_as_free(fake_root: FakeRoot) -> None:
    group = {
        "memory.max": f"{4 * MIB}",
        "memory.current": f"{3 * MIB}",
        "memory.stat": f"anon {MIB}\ninactive_file {MIB}\nactive_file {MIB // 2}\nshmem 5\n",
    }
    files = {f"sys/fs/cgroup/job/{name}": text for name, text in group.items()}
    budget = memory_budget(fake_root({"proc/meminfo": MEMINFO} | v2("/job") | files))
    assert (budget.available_bytes, budget.limit_bytes) == (4 * MIB - 3 * MIB + MIB + MIB // 2, 4 * MIB)
    assert budget.reason == "limit of 4 MiB in /sys/fs/cgroup/job/memory.max, 2 MiB of it in use"


def test_version_1_limit(fake_root: FakeRoot) -> None:
    group = {
        "memory.limit_in_bytes": f"{5 * MIB}",
        "memory.usage_in_bytes": f"{3 * MIB}",
        "memory.stat": f"inactive_file 7\ntotal_inactive_file {MIB}\ntotal_active_file 0\n",
    }
    files = {f"sys/fs/cgroup/memory/job/{name}": text for name, text in group.items()}
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712"  # how version 1 says "none"
    budget = memory_budget(fake_root({"proc/meminfo": MEMINFO} | v1("/job") | files))
    assert (budget.available_bytes, budget.limit_bytes) == (3 * MIB, 5 * MIB)


@pytest.mark.parametrize(("folder", "name"), [("", "memory.max"), ("a/", "memory.max"), ("a/b/", "memory.high")])
def test_limit_of_any_ancestor_counts(fake_root: FakeRoot, folder: str, name: str) -> None:
    files = {"sys/fs/cgroup/a/b/memory.max": "max", f"sys/fs/cgroup/{folder}{name}": f"{2 * MIB}"}
    budget = memory_budget(fake_root({"proc/meminfo": MEMINFO} | v2("/a/b") | files))
    assert (budget.available_bytes, budget.limit_bytes) == (2 * MIB, 2 * MIB)


def test_machine_short_of_memory_beats_a_roomy_group(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/job/memory.max": f"{7 * MIB}"}
    budget = memory_budget(fake_root({"proc/meminfo": MEMINFO} | v2("/job") | files))
    assert (budget.available_bytes, budget.limit_bytes) == (6 * MIB, 7 * MIB)


def test_group_over_its_limit_has_nothing_left(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/job/memory.max": f"{MIB}", "sys/fs/cgroup/job/memory.current": f"{2 * MIB}"}
    assert memory_budget(fake_root({"proc/meminfo": MEMINFO} | v2("/job") | files)).available_bytes == 0


def test_address_space_is_memory_less_what_is_mapped(fake_root: FakeRoot) -> None:
    limit = "Limit                     Soft Limit           Hard Limit           Units     \n"
    limit += f"Max address space         {600 * MIB}           unlimited            bytes     \n"
    meminfo = f"MemTotal: {4096 * 1024} kB\nMemAvailable: {4096 * 1024} kB\n"
    files = {"proc/meminfo": meminfo, "proc/self/limits": limit, "proc/self/status": f"VmSize:\t{100 * 1024} kB\n"}
    budget = memory_budget(fake_root(files))
    assert (budget.available_bytes, budget.limit_bytes) == ((600 - 100 - 128) * MIB, 600 * MIB)
    assert "address space of 600 MiB (ulimit -v)" in budget.reason
    files["proc/self/limits"] = limit.replace(f"{600 * MIB}", "unlimited")
    assert memory_budget(fake_root(files)).available_bytes == 4096 * MIB


def test_old_kernel_tells_only_the_total(fake_root: FakeRoot) -> None:
    budget = memory_budget(fake_root({"proc/meminfo": "MemTotal: 8192 kB\n"}))
    assert (budget.available_bytes, budget.limit_bytes) == (8 * MIB, 8 * MIB)
    assert "does not tell how much is free" in budget.reason


def test_no_procfs_asks_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory_budget(tmp_path).available_bytes == 40960
    monkeypatch.delattr("os.sysconf")
    budget = memory_budget(tmp_path)
    assert budget.available_bytes == sys.maxsize
    assert budget.reason.startswith("unknown")


@pytest.mark.parametrize(
    "garbage", ["", "x", "-5", "MemTotal:", "MemAvailable: -3 kB", "inactive_file", "\0", "1" * 5000]
)
def test_garbage_never_stops_the_budget(fake_root: FakeRoot, garbage: str) -> None:
    names = ("memory.current", "memory.stat", "memory.max", "memory/memory.limit_in_bytes")
    files = {f"sys/fs/cgroup/{name}": garbage for name in names} | v2("/")
    assert memory_budget(fake_root({"proc/meminfo": MEMINFO} | files)).available_bytes == 6 * MIB
    assert memory_budget(fake_root({"proc/meminfo": garbage} | files)).available_bytes > 0


def test_this_machine_has_a_budget() -> None:
    budget = memory_budget()
    assert 0 < budget.available_bytes <= budget.limit_bytes


def test_memlock_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="this platform has no resource limits")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, resource.RLIM_INFINITY))
    assert memlock_limit_bytes() == 65536
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memlock_limit_bytes() is None


def test_peak_memory(fake_root: FakeRoot) -> None:
    assert peak_memory_bytes(fake_root({"proc/self/status": "VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"})) == 2 * MIB


PEAKS = """
import sys
from pathlib import Path
from treadle.hardware.memory import peak_memory_bytes
for root in map(Path, sys.argv[1:]):
    before = peak_memory_bytes(root)
    held = bytearray(before + (64 << 20))
    held[::4096] = b"x" * len(held[::4096])
    print(before, peak_memory_bytes(root))
    del held
"""


def test_peak_memory_grows_with_use(tmp_path: Path) -> None:
    # Of a process of its own, as that of the tests may have taken much already.
    roots = ["/", str(tmp_path)]  # procfs, and the system call where procfs does not tell
    run = subprocess.run(
        [sys.executable, "-c", PEAKS, *roots], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    for line in run.stdout.splitlines():
        before, after = map(int, line.split())
        assert before > MIB
        assert after - before > 32 * MIB
    assert run.stdout.count("\n") == len(roots)

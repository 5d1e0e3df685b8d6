"""The thread plan on imaginary machines: quotas, cpusets, masks, shared cores, and files that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machines import FakeRoot, cpus, v1, v2

from treadle.errors import UsageError
from treadle.hardware.cores import Core
from treadle.hardware.plan import assign_threads, plan_threads
from treadle.hardware.topology import Topology, lending_order

ALL_16 = frozenset(range(16))


@pytest.mark.parametrize(
    ("cpu_max", "num_threads"),
    [
        ("765000 100000", 7),
        ("max 100000", 16),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("199999 100000", 1),
        ("200000", 2),
        ("max", 16),
        ("9900000 100000", 16),
    ],
)
def test_version_2_quota(fake_root: FakeRoot, cpu_max: str, num_threads: int) -> None:
    root = fake_root(cpus(16) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": f"{cpu_max}\n"})
    assert plan_threads(root=root, affinity=ALL_16).num_threads == num_threads


@pytest.mark.parametrize(
    ("quota", "period", "num_threads"),
    [("765000", "100000", 7), ("-1", "100000", 16), ("0", "100000", 16), ("50000", "50000", 1), ("300000", "0", 16)],
)
def test_version_1_quota(fake_root: FakeRoot, quota: str, period: str, num_threads: int) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    files = {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}
    root = fake_root(cpus(16) | v1("/job") | files)
    assert plan_threads(root=root, affinity=ALL_16).num_threads == num_threads


@pytest.mark.parametrize("limited", ["", "a.slice/", "a.slice/b.scope/", "a.slice/b.scope/c/"])
def test_limit_of_any_ancestor_counts(fake_root: FakeRoot, limited: str) -> None:
    files = {f"sys/fs/cgroup/{folder}cpu.max": "max 100000\n" for folder in ("a.slice/", "a.slice/b.scope/")}
    files[f"sys/fs/cgroup/{limited}cpu.max"] = "300000 100000\n"
    plan = plan_threads(root=fake_root(cpus(16) | v2("/a.slice/b.scope/c") | files), affinity=ALL_16)
    assert plan.num_threads == 3
    assert f"CPU quota 3 in /sys/fs/cgroup/{limited}cpu.max" in plan.reason


def test_tightest_of_several_limits_counts(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/a/cpu.max": "250000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "900000 100000\n"}
    assert plan_threads(root=fake_root(cpus(16) | v2("/a/b") | files), affinity=ALL_16).num_threads == 2


def test_limit_of_a_sibling_group_does_not_count(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/other/cpu.max": "100000 100000\n"}
    assert plan_threads(root=fake_root(cpus(4) | v2("/mine") | files), affinity=range(4)).num_threads == 4


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/", "/"),  # a cgroup namespace: the container's group is the root of what it sees
        ("/docker/abc", "/docker/abc"),  # no namespace: the mount starts at the container's group
        ("/../..", "/"),  # moved out of the namespace's root
        ("/../other", "/"),
        ("/", "/../.."),  # the mount is older than the namespace
        ("/elsewhere", "/docker/abc"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_quota_of_a_container(fake_root: FakeRoot, path: str, group: str, version: int) -> None:
    if version == 2:
        files = v2(path, group=group) | {"sys/fs/cgroup/cpu.max": "200000 100000\n"}
    else:
        files = v1(path, group=group) | {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
    assert plan_threads(root=fake_root(cpus(8) | files), affinity=range(8)).num_threads == 2


def test_groups_mounted_for_another_container_do_not_bind(fake_root: FakeRoot) -> None:
    files = v2("/user.slice")
    files["proc/self/mountinfo"] += "90 1 0:26 /docker/abc /var/lib/abc/cgroup rw - cgroup2 cgroup2 rw\n"
    files["var/lib/abc/cgroup/cpu.max"] = "100000 100000\n"
    assert plan_threads(root=fake_root(cpus(4) | files), affinity=range(4)).num_threads == 4


def test_mount_points_with_blanks(fake_root: FakeRoot) -> None:
    files = v2("/job")
    files["proc/self/mountinfo"] = "25 1 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n"
    files["my groups/job/cpu.max"] = "200000 100000\n"
    assert plan_threads(root=fake_root(cpus(4) | files), affinity=range(4)).num_threads == 2


@pytest.mark.parametrize("folder", ["", "cpu/", "cpu,cpuacct/"])
def test_usual_places_when_procfs_says_nothing(fake_root: FakeRoot, folder: str) -> None:
    names = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"} if folder else {"cpu.max": "200000 100000"}
    root = fake_root(cpus(4) | {f"sys/fs/cgroup/{folder}{name}": text for name, text in names.items()})
    assert plan_threads(root=root, affinity=range(4)).num_threads == 2


@pytest.mark.parametrize("name", ["cpuset.cpus.effective", "cpuset.cpus"])
def test_cpuset_and_quota_together(fake_root: FakeRoot, name: str) -> None:
    files = {f"sys/fs/cgroup/job/{name}": "0-3\n", "sys/fs/cgroup/job/cpu.max": "200000 100000\n"}
    assert plan_threads(root=fake_root(cpus(8) | v2("/job") | files), affinity=range(8)).num_threads == 2


def test_cpuset_alone_limits_and_places(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/job/cpuset.cpus.effective": "2-3,6\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n"}
    assert plan_threads(root=fake_root(cpus(8) | v2("/job") | files), affinity=range(8)).cpus == [2, 3, 6]


def test_version_1_cpuset(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/cpuset/job/cpuset.cpus": "1,4-5\n"}
    assert plan_threads(root=fake_root(cpus(8) | v1("/job") | files), affinity=range(8)).cpus == [1, 4, 5]


def test_cpuset_that_contradicts_the_mask_is_ignored(fake_root: FakeRoot) -> None:
    files = {"sys/fs/cgroup/job/cpuset.cpus.effective": "6-7\n"}
    assert plan_threads(root=fake_root(cpus(8) | v2("/job") | files), affinity=[0, 1]).cpus == [0, 1]


@pytest.mark.parametrize(
    ("split", "affinity", "places"),
    [
        (False, range(8), [0, 2, 4, 6]),
        (True, range(8), [0, 1, 2, 3]),
        (False, [1, 2, 3, 7], [1, 2, 7]),  # cores 0 and 3 by their second thread only
        (True, [4, 5], [4, 5]),
        (True, [0, 4], [0]),
    ],
)
def test_hardware_threads_of_a_core_count_once(
    fake_root: FakeRoot, split: bool, affinity: Any, places: list[int]
) -> None:
    plan = plan_threads(root=fake_root(cpus(8, threads_per_core=2, split=split)), affinity=affinity)
    assert plan.cpus == places
    assert f"{len(places)} physical core" in plan.reason


def test_newer_sibling_file_is_preferred(fake_root: FakeRoot) -> None:
    files = cpus(2) | {f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": "0-1" for cpu in range(2)}
    assert plan_threads(root=fake_root(files), affinity=[0, 1]).cpus == [0]


def test_efficiency_cores_are_left_out(fake_root: FakeRoot) -> None:
    files = cpus(4, threads_per_core=2) | {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu}" for cpu in range(4, 8)
    }
    files |= {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-7"}
    root = fake_root(files)
    plan = plan_threads(root=root, affinity=range(8))
    assert plan.cpus == [0, 2]
    assert "4 efficiency cores left out" in plan.reason
    assert plan_threads(root=root, affinity=[4, 5]).cpus == [4, 5]  # nothing else to run on
    assert plan_threads(9, root, range(8)).cpus == [0, 2, 4, 5, 6, 7, 1, 3, -1]


def test_explicit_number_wins(fake_root: FakeRoot) -> None:
    root = fake_root(cpus(4) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": "200000 100000\n"})
    plan = plan_threads(4, root, range(4))
    assert plan.cpus == [0, 1, 2, 3]
    assert "as asked for, above the 2 usable" in plan.reason
    assert plan_threads(6, root, range(4)).cpus == [0, 1, 2, 3, -1, -1]
    assert "above" not in plan_threads(1, root, range(4)).reason


def test_fewer_workers_than_cores_are_not_pinned(fake_root: FakeRoot) -> None:
    root = fake_root(cpus(4) | v2("/job") | {"sys/fs/cgroup/job/cpu.max": "200000 100000\n"})
    plan = plan_threads(root=root, affinity=range(4))
    assert plan.cpus == [-1, -1]
    assert plan.reason.endswith("not pinned")
    assert plan_threads(3, root, range(4)).cpus == [-1, -1, -1]


@pytest.mark.parametrize("explicit", [0, -1, 1025, 1.5, "2"])
def test_impossible_numbers_are_refused(explicit: Any) -> None:
    with pytest.raises(UsageError, match=r"threads is .*, expected a whole number, 1 to 1024"):
        plan_threads(explicit)


def test_mask_comes_from_the_root_unless_given(fake_root: FakeRoot) -> None:
    root = fake_root(cpus(8) | {"proc/self/status": "Name:\tx\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-7\n"})
    assert plan_threads(root=root).cpus == [4, 5, 6, 7]
    (root / "proc/self/status").write_text("Name:\tx\n")
    assert plan_threads(root=root).cpus == list(range(8))


def test_empty_root_still_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    plan = plan_threads(root=tmp_path)
    assert plan.num_threads == 3
    assert "3 CPUs in the affinity mask (which share a core is not known), no CPU quota" in plan.reason


@pytest.mark.parametrize(
    "garbage", ["", "\n", "x", "-", "a 1 b", "::", "0:", "9-1", "0-99999999999", "\0\0", "𝟙 𝟚", "1e9 0"]
)
def test_garbage_never_stops_the_plan(fake_root: FakeRoot, garbage: str) -> None:
    files = dict.fromkeys(cpus(4) | v2("/") | {"proc/self/status": "", "sys/devices/cpu_atom/cpus": ""}, garbage)
    for name in ("cpu.max", "cpuset.cpus", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"):
        files[f"sys/fs/cgroup/{name}"] = garbage
    root = fake_root(files)
    assert plan_threads(root=root, affinity=range(4)).cpus == [0, 1, 2, 3]
    assert plan_threads(root=root).num_threads >= 1


def test_undecodable_bytes_and_folders_in_place_of_files(fake_root: FakeRoot) -> None:
    root = fake_root(cpus(2) | v2("/job"))
    (root / "proc/self/cgroup").write_bytes(b"0::/\xff\xfe\n")
    (root / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert plan_threads(root=root, affinity=range(2)).cpus == [0, 1]


def test_this_machine_has_a_plan() -> None:
    plan = plan_threads()
    assert plan.num_threads >= 1
    assert str(plan.num_threads) in plan.reason


def test_reserved_cores_are_the_last_ones_but_never_all() -> None:
    cores = [Core((cpu, cpu + 4), is_efficiency=cpu == 0, knows_siblings=True) for cpu in range(4)]
    topology = Topology(frozenset(range(8)), frozenset(range(8)), tuple(cores), ())
    assert assign_threads(topology, None, num_reserved=1).cpus == [1, 2, 3]  # the slow one first
    plan = assign_threads(topology, None, num_reserved=2)
    assert (plan.cpus, plan.reason) == (
        [1, 2],
        "2 threads: 2 physical cores in the affinity mask, no CPU quota, 2 cores reserved for others; pinned to CPU 1, 2",
    )
    assert assign_threads(topology, None, num_reserved=9).cpus == [1]
    assert assign_threads(topology, None, 3, num_reserved=2).cpus == [1, 2, 5]


def test_cores_without_threads_are_lent_first() -> None:
    cores = [Core((cpu, cpu + 4), is_efficiency=cpu == 0, knows_siblings=True) for cpu in range(4)]
    topology = Topology(frozenset(range(8)), frozenset(range(8)), tuple(cores), ())

    def order(threads: list[int]) -> list[int]:
        return [min(core) for core in lending_order(topology, threads)]

    assert lending_order(topology, [1]) == [{0, 4}, {3, 7}, {2, 6}, {1, 5}]
    assert order([1, 2, 3]) == [0, 3, 2, 1]
    assert order([3, 1]) == [0, 2, 1, 3]
    assert order([1, 5]) == [0, 3, 2, 1]
    assert order([-1, -1]) == [0, 3, 2, 1]

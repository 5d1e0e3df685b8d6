"""What imaginary machines are made of: cores, kinds of cores, sockets, nodes, caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import FakeRoot, cpuinfo, cpus, two_sockets, v2

from treadle.hardware.caches import Cache, read_caches
from treadle.hardware.cores import Core
from treadle.hardware.numa import memory_from, neighbourhood, read_nodes
from treadle.hardware.topology import read_topology

CPU = "sys/devices/system/cpu"


def places(cores: tuple[Core, ...]) -> list[tuple[int, ...]]:
    return [core.cpus for core in cores]


def test_two_sockets_with_interleaved_numbers(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(two_sockets(2)))
    assert topology.online == topology.usable == frozenset(range(8))
    assert topology.cores == tuple(
        Core((cpu, cpu + 4), is_efficiency=False, knows_siblings=True, package=cpu % 2, node=cpu % 2)
        for cpu in range(4)
    )
    assert topology.packages == {0, 1}
    first, second = topology.nodes
    assert (first.cpus, second.cpus) == ({0, 2, 4, 6}, {1, 3, 5, 7})
    assert (first.distances, second.distances) == ({0: 10, 1: 21}, {0: 21, 1: 10})
    assert (first.memory_bytes, second.free_bytes) == (64 << 30, (32 << 30) + 1024)
    assert first.is_allowed and second.is_allowed


def test_memory_of_a_node_may_be_forbidden(fake_root: FakeRoot) -> None:
    files = two_sockets(2) | {"proc/self/status": "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t1\n"}
    assert [node.is_allowed for node in read_nodes(fake_root(files))] == [False, True]


@pytest.mark.parametrize(("distance", "near"), [(11, [0, 1]), (15, [0, 1]), (16, [0]), (32, [0])])
def test_parts_of_a_socket_are_near_and_other_sockets_are_not(
    fake_root: FakeRoot, distance: int, near: list[int]
) -> None:
    nodes = read_nodes(fake_root(two_sockets(2, distance=distance)))
    assert [node.node_id for node in neighbourhood(nodes[0], nodes)] == near


def test_a_node_without_processors_or_files_is_still_a_node(fake_root: FakeRoot) -> None:
    root = fake_root({"sys/devices/system/node/node2/cpulist": "\n", "sys/devices/system/node/node0/cpulist": "0-1\n"})
    nodes = read_nodes(root)
    assert [(node.node_id, sorted(node.cpus), dict(node.distances)) for node in nodes] == [(0, [0, 1], {}), (2, [], {})]
    assert neighbourhood(nodes[0], nodes) == (nodes[0],)


def test_hybrid_processor_by_list(fake_root: FakeRoot) -> None:
    files = cpus(6, threads_per_core=2)
    files |= {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu}" for cpu in (4, 5)}
    files |= {"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4\n"}
    files |= {"sys/devices/cpu_lowpower/cpus": "5\n"}
    topology = read_topology(fake_root(files))
    assert places(topology.performance_cores) == [(0, 1), (2, 3)]
    assert places(topology.efficiency_cores) == [(4,), (5,)]


@pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_hybrid_processor_by_speed(fake_root: FakeRoot, name: str) -> None:
    speeds = [1024, 1024, 870, 690, 680, 340]  # in kHz, thousands of them; what counts is the relation
    files = cpus(6) | {f"{CPU}/cpu{cpu}/{name}": f"{speed}\n" for cpu, speed in enumerate(speeds)}
    topology = read_topology(fake_root(files))
    assert places(topology.efficiency_cores) == [(4,), (5,)]
    core = topology.cores[2]
    assert (core.capacity if name == "cpu_capacity" else core.max_khz) == 870


def test_slow_cores_alone_are_all_there_is(fake_root: FakeRoot) -> None:
    files = cpus(4) | {"sys/devices/cpu_atom/cpus": "2-3"}
    topology = read_topology(fake_root(files), affinity=[2, 3])
    assert places(topology.performance_cores) == [(2,), (3,)]
    assert topology.efficiency_cores == ()


def test_offline_cpus_do_not_count(fake_root: FakeRoot) -> None:
    files = cpus(8) | {f"{CPU}/online": "0-3,6\n", "proc/self/status": "Cpus_allowed_list:\t2-7\n"}
    topology = read_topology(fake_root(files))
    assert (topology.online, topology.usable) == ({0, 1, 2, 3, 6}, {2, 3, 6})


def test_mask_and_cpuset_together(fake_root: FakeRoot) -> None:
    files = cpus(8) | v2("/job") | {"proc/self/status": "Cpus_allowed_list:\t0-5\n"}
    files["sys/fs/cgroup/job/cpuset.cpus.effective"] = "4-7\n"
    assert read_topology(fake_root(files)).usable == {4, 5}


def test_container_without_topology_reads_cpuinfo(fake_root: FakeRoot) -> None:
    files = cpuinfo([(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)], siblings=4, cores=2)
    topology = read_topology(fake_root(files | {f"{CPU}/online": "0-7"}), affinity=range(8))
    assert places(topology.cores) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [core.package for core in topology.cores] == [0, 0, 1, 1]
    assert topology.knows_siblings


def test_cpuinfo_without_hyper_threads_is_not_misread(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(cpuinfo([(0, 0)] * 4, siblings=1, cores=1)), affinity=range(4))
    assert places(topology.cores) == [(0,), (1,), (2,), (3,)]


def test_cpuinfo_of_another_family_leaves_the_question_open(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root({"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50\n"}), affinity=range(2))
    assert places(topology.cores) == [(0,), (1,)]
    assert not topology.knows_siblings


def test_no_sysfs_and_no_procfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    topology = read_topology(tmp_path)
    assert topology.usable == topology.online == {0, 1, 2}
    assert topology.nodes == () and topology.packages == frozenset()


def test_caches_are_counted_once(fake_root: FakeRoot) -> None:
    files = {}
    for cpu in range(4):
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", f"{cpu}"),
                (2, "Unified", "1024K", f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}"),
                (3, "Unified", "32M", "0-3"),
            ]
        ):
            folder = f"{CPU}/cpu{cpu}/cache/index{index}"
            values = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared, "coherency_line_size": 64}
            files |= {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}
    files[f"{CPU}/cpu3/cache/index9/level"] = "4\n"  # without a size
    assert read_caches(fake_root(files), [1, 2, 3]) == (
        Cache(1, "data", 48 << 10, 64, frozenset({1})),
        Cache(1, "data", 48 << 10, 64, frozenset({2})),
        Cache(1, "data", 48 << 10, 64, frozenset({3})),
        Cache(2, "unified", 1 << 20, 64, frozenset({0, 1})),
        Cache(2, "unified", 1 << 20, 64, frozenset({2, 3})),
        Cache(3, "unified", 32 << 20, 64, frozenset({0, 1, 2, 3})),
    )


def test_memory_policy_on_the_node_of_this_machine() -> None:
    node_ids = [node.node_id for node in read_nodes() if node.is_allowed and node.memory_bytes]
    if not node_ids:
        pytest.skip("this machine does not know its memory nodes")
    for mode in ("preferred", "interleave"):
        with memory_from(node_ids, mode=mode) as problem:
            assert problem is None or "not permitted" in problem or "no memory policies" in problem


def test_memory_policy_that_the_system_refuses_says_why() -> None:
    with memory_from([1000], mode="interleave") as problem:
        assert problem is not None

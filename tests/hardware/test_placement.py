"""Which memory nodes a model is placed on, and on which cores its threads then run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from machines import FakeRoot, cpus, two_sockets

from treadle.errors import CapacityError, UsageError
from treadle.hardware.placement import Placement, num_copies, plan_placement
from treadle.hardware.plan import assign_threads
from treadle.hardware.topology import Topology, read_topology

GIB = 2**30  # each socket below has 64 of them, half of them free


@pytest.fixture
def sockets(fake_root: FakeRoot) -> Topology:
    return read_topology(fake_root(two_sockets(4)))


def test_a_model_that_fits_stays_on_one_socket(sockets: Topology) -> None:
    placement = plan_placement(sockets, 8 * GIB)
    assert (placement.policy, placement.nodes) == ("node", (1,))  # one kilobyte more is free there
    assert placement.cpus == {1, 3, 5, 7, 9, 11, 13, 15}
    assert "distance 21" in placement.reason
    plan = assign_threads(sockets, None, cpus=placement.cpus)
    assert plan.cpus == [1, 3, 5, 7]
    assert "4 cores on other memory nodes left out" in plan.reason


def test_a_model_too_large_for_a_socket_is_spread_over_both(sockets: Topology) -> None:
    placement = plan_placement(sockets, 40 * GIB)
    assert (placement.policy, placement.nodes, placement.cpus) == ("interleave", (0, 1), None)
    assert assign_threads(sockets, None, cpus=placement.cpus).num_threads == 8


def test_more_threads_than_a_socket_has_cores_use_both(sockets: Topology) -> None:
    placement = plan_placement(sockets, GIB, num_threads=6)
    assert (placement.policy, placement.cpus) == ("interleave", None)
    assert "6 threads asked for, one socket has 4 usable cores" in placement.reason
    assert plan_placement(sockets, GIB, num_threads=4).policy == "node"


def test_the_socket_with_more_usable_cores_wins(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(two_sockets(4)), affinity=[0, 2, 4, 1])
    assert plan_placement(topology, GIB).nodes == (0,)


def test_cpus_on_one_node_leave_no_choice(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(two_sockets(4)), affinity=[0, 2])
    assert plan_placement(topology, GIB) == Placement("default", (), None, "usable CPUs are on 1 memory node")


def test_parts_of_a_socket_are_used_together(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(two_sockets(4, distance=12)))
    placement = plan_placement(topology, 40 * GIB)
    assert (placement.policy, placement.nodes, placement.cpus) == ("interleave", (0, 1), None)
    assert placement.reason == "the nodes are parts of one socket"


def test_forbidden_memory_is_left_out(fake_root: FakeRoot) -> None:
    files = two_sockets(4) | {"proc/self/status": "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n"}
    assert plan_placement(read_topology(fake_root(files)), GIB).policy == "default"


@pytest.mark.parametrize(
    ("wanted", "policy", "nodes"),
    [("default", "default", ()), ("interleave", "interleave", (0, 1)), ("node", "node", (1,))],
)
def test_what_is_asked_for_is_done(sockets: Topology, wanted: str, policy: str, nodes: tuple[int, ...]) -> None:
    placement = plan_placement(sockets, 40 * GIB, wanted=wanted)
    assert (placement.policy, placement.nodes, placement.reason) == (policy, nodes, "as asked for")


def test_each_node_gets_a_copy_for_the_cpus_beside_it(sockets: Topology) -> None:
    assert (num_copies(sockets, "replicated"), num_copies(sockets, "interleave")) == (2, 1)
    placement = plan_placement(sockets, 50 * GIB, weight_bytes=20 * GIB, wanted="replicated")
    assert (placement.policy, placement.nodes, placement.cpus) == ("replicated", (0, 1), None)
    assert placement.copies == ((0, tuple(range(0, 16, 2))), (1, tuple(range(1, 16, 2))))
    assert assign_threads(sockets, None, cpus=placement.cpus).num_threads == 8


def test_a_copy_that_does_not_fit_beside_its_share_of_the_rest_is_refused(sockets: Topology) -> None:
    assert plan_placement(sockets, 63 * GIB, weight_bytes=30 * GIB, wanted="replicated").copies
    with pytest.raises(CapacityError, match=r"take 34.9 GB on each node, node 0 has 34.4 GB free\nhint: --numa inter"):
        plan_placement(sockets, 65 * GIB, weight_bytes=30 * GIB, wanted="replicated")


def test_usable_cpus_alone_get_copies(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(two_sockets(4)), affinity=[0, 2, 3])
    assert plan_placement(topology, GIB, weight_bytes=GIB // 4, wanted="replicated").copies == ((0, (0, 2)), (1, (3,)))
    one = read_topology(fake_root(two_sockets(4)), affinity=[0, 2])
    assert num_copies(one, "replicated") == 1
    assert plan_placement(one, GIB, weight_bytes=GIB // 4, wanted="replicated").policy == "default"


def test_what_has_no_copies_comes_from_all_nodes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Collection[int], str]] = []

    @contextmanager
    def memory_from(nodes: Collection[int], *, mode: str) -> Iterator[None]:
        asked.append((nodes, mode))
        yield None

    monkeypatch.setattr("treadle.hardware.placement.memory_from", memory_from)
    for policy in ("node", "interleave", "replicated", "default"):
        with Placement(policy, (0, 1), None, "a test").applied() as problem:
            assert problem is None
    assert asked == [((0, 1), "preferred"), ((0, 1), "interleave"), ((0, 1), "interleave")]


def test_unknown_policies_are_refused(sockets: Topology) -> None:
    with pytest.raises(
        UsageError, match="numa: expected one of auto, node, interleave, replicated, default, found 'both'"
    ):
        plan_placement(sockets, GIB, wanted="both")


def test_machines_without_nodes(fake_root: FakeRoot) -> None:
    topology = read_topology(fake_root(cpus(4)))
    assert plan_placement(topology, GIB, wanted="interleave").reason == "the system does not know memory nodes"


def test_default_placement_changes_nothing_while_applied() -> None:
    with Placement("default", (), None, "").applied() as problem:
        assert problem is None


def test_refused_placement_says_why() -> None:
    with Placement("node", (1000,), None, "").applied() as problem:
        assert problem is not None


@pytest.mark.parametrize(("pin", "expected"), [(None, [-1]), (True, [0]), (False, [-1])])
def test_pinning_can_be_chosen(fake_root: FakeRoot, pin: bool | None, expected: list[int]) -> None:
    topology = read_topology(fake_root(cpus(2)), affinity=range(2))
    assert assign_threads(topology, None, 1, pin=pin).cpus == expected
    assert assign_threads(topology, None, pin=pin).cpus == ([-1, -1] if pin is False else [0, 1])

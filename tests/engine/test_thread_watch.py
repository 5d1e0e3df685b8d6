"""How many threads run while quotas, neighbours and hosts take CPU time: constructed counters, no real time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from treadle.engine.plan import StepPlan, StepResult
from treadle.engine.thread_watch import ThreadGovernor, ThreadWatch
from treadle.hardware.cpu_time import CpuTime
from treadle.hardware.plan import ThreadPlan

START = CpuTime(100.0, 0.0, 0.0, 0.0, 0.0, None, None, frozenset(range(8)))
LOOK = 0.5


class Machine:
    """A group with a quota that this process shares with others, or a virtual machine whose host is busy."""

    def __init__(self, governor: ThreadGovernor, *, quota: float | None = None, tells_usage: bool = True) -> None:
        self.governor = governor
        self.sample = dataclasses.replace(START, quota_cpus=quota, group_seconds=0.0 if quota and tells_usage else None)
        governor.update(self.sample)

    def run(self, seconds: float, *, others: float = 0.0, stolen: float = 0.0, host: float = float("inf")) -> list[int]:
        """Run all threads at full tilt; the number of them after each look.

        ``others`` take so many CPUs of the quota; the host takes this share of the time, or leaves so many CPUs.
        """
        limits = []
        for _ in range(round(seconds / LOOK)):
            limit, last = self.governor.limit, self.sample
            share = max(stolen, 1 - host / limit)
            own = float(limit) if last.quota_cpus is None else min(limit, max(0.0, last.quota_cpus - others))
            self.sample = dataclasses.replace(
                last,
                now=last.now + LOOK,
                own_seconds=last.own_seconds + own * LOOK,
                throttled_seconds=last.throttled_seconds + (limit - own) * LOOK,
                wanted_seconds=last.wanted_seconds + limit * LOOK,
                stolen_seconds=last.stolen_seconds + share * limit * LOOK,
                group_seconds=None if last.group_seconds is None else last.group_seconds + (own + others) * LOOK,
            )
            limits.append(self.governor.update(self.sample))
        return limits


def changes(limits: list[int]) -> int:
    return sum(one != two for one, two in itertools.pairwise(limits))


def test_nothing_happens_while_all_is_well() -> None:
    assert set(Machine(ThreadGovernor(4), quota=4.0).run(60, others=0.0)) == {4}
    assert set(Machine(ThreadGovernor(4)).run(60, stolen=0.05)) == {4}


def test_a_quota_too_small_for_the_threads_is_met_at_the_first_look_and_never_tried_again() -> None:
    assert set(Machine(ThreadGovernor(8), quota=3.5).run(120)) == {3}
    assert set(Machine(ThreadGovernor(2), quota=0.5).run(120)) == {1}


@pytest.mark.parametrize("tells_usage", [True, False])
def test_threads_give_way_to_others_under_the_quota_and_return_within_two_seconds(tells_usage: bool) -> None:
    machine = Machine(ThreadGovernor(4), quota=4.0, tells_usage=tells_usage)
    assert set(machine.run(5)) == {4}
    assert machine.run(1, others=2.0)[-1] == 2
    assert machine.run(2)[-1] == 4


def test_without_knowing_the_usage_trials_grow_rare() -> None:
    machine = Machine(ThreadGovernor(2), quota=2.0, tells_usage=False)
    limits = machine.run(120, others=1.0)
    assert limits.count(2) <= 10  # half a second each
    assert changes(limits[-80:]) <= 6


def test_with_knowing_the_usage_there_are_no_trials() -> None:
    assert set(Machine(ThreadGovernor(2), quota=2.0).run(120, others=1.0)) == {1}


def test_a_quota_that_is_just_met_does_not_flap() -> None:
    for others in (0.85, 0.95, 1.05, 1.15):
        assert changes(Machine(ThreadGovernor(4), quota=4.0).run(120, others=others)) <= 1


def test_a_host_with_fewer_cpus_free_gets_fewer_threads_until_it_has_more() -> None:
    machine = Machine(ThreadGovernor(4))
    assert machine.run(1, host=2.0)[-1] == 2
    assert machine.run(2)[-1] == 4
    limits = machine.run(120, host=2.0)
    assert sum(limits) / len(limits) < 2.2


def test_a_host_that_robs_every_cpu_alike_is_not_helped_by_fewer_threads() -> None:
    limits = Machine(ThreadGovernor(4)).run(120, stolen=0.5)
    assert sum(limits) / len(limits) > 3.8


def test_a_window_with_idle_time_says_nothing() -> None:
    machine = Machine(ThreadGovernor(4), quota=4.0)
    machine.sample = dataclasses.replace(machine.sample, now=machine.sample.now + 60, throttled_seconds=100.0)
    assert machine.governor.update(machine.sample) == 4


class Threads:
    """Stands for a runner; keeps what it is told."""

    num_threads = 4

    def __init__(self) -> None:
        self.told: list[object] = []

    def run(self, plan: StepPlan) -> StepResult:
        assert not plan.chunks
        return StepResult()

    def set_threads(self, cpus: list[int], prompt_cpus: list[int]) -> None:
        self.told.append((cpus, prompt_cpus))

    def limit_threads(self, most: int | None) -> None:
        self.told.append(most)


@pytest.fixture
def threads() -> Threads:
    return Threads()


def watch(threads: Threads, read: Callable[[], CpuTime], clock: Callable[[], float]) -> ThreadWatch:
    four, two = ThreadPlan([0, 1, 2, 3], "four"), ThreadPlan([-1, -1], "two")
    return ThreadWatch(threads, (four, four), replan=lambda _: (two, two), read=read, clock=clock)


def test_the_watch_reads_at_most_twice_a_second(threads: Threads) -> None:
    reads, now = [0], [0.0]

    def read() -> CpuTime:
        reads[0] += 1
        return dataclasses.replace(START, now=now[0])

    observed = watch(threads, read, lambda: now[0])
    for _ in range(10_000):
        now[0] += 0.001
        observed.run(StepPlan([]))
    assert reads[0] <= 1 + 20
    assert threads.told == []


def test_the_watch_limits_and_lifts(threads: Threads) -> None:
    machine = Machine(ThreadGovernor(4), quota=4.0)
    observed = watch(threads, lambda: machine.sample, lambda: machine.sample.now)
    for others in (0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0):
        machine.run(LOOK, others=others)
        observed.run(StepPlan([]))
    assert threads.told == [2, None]


@pytest.mark.parametrize("change", [{"quota_cpus": 2.0}, {"cpus": frozenset({0, 1})}])
def test_a_change_of_quota_or_mask_plans_anew(threads: Threads, change: dict[str, object]) -> None:
    samples = iter([START, dataclasses.replace(START, now=101.0, **change)])  # type: ignore[arg-type]
    observed = watch(threads, lambda: next(samples), lambda: 101.0)
    observed.run(StepPlan([]))
    assert threads.told == [None, ([-1, -1], [-1, -1])]

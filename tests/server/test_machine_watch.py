"""When the machine is measured, what ends that, and what comes of it; no time passes but the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from treadle.engine.choose import NATIVE
from treadle.engine.statistics import StepStats
from treadle.errors import CapacityError
from treadle.hardware.machine_speed import MachineSpeed
from treadle.hardware.plan import ThreadPlan
from treadle.hardware.throttling import Throttling
from treadle.server.limits import Limits
from treadle.server.machine_metrics import MachineCollector
from treadle.server.machine_watch import MachineWatch, Shares
from treadle.server.settings import ServerSettings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A machine to watch; ``speeds`` are what measuring it gives, one after the other."""

    def __init__(self, *speeds: MachineSpeed | Exception | None) -> None:
        self.clock = Clock()
        self.limits = Limits(ServerSettings(), clock=self.clock)
        engine = SimpleNamespace(
            report=SimpleNamespace(thread_plan=ThreadPlan([3, 5], "a test"), isa="avx2", engine=NATIVE)
        )
        self.hub: Any = SimpleNamespace(loaded=[SimpleNamespace(engine=engine)], is_closing=False)
        self.watch = MachineWatch(self.hub, self.limits, measure=self._measure, clock=self.clock)
        self.measured: list[list[int]] = []
        self.during: Callable[[], object] = lambda: None
        self._speeds = iter(speeds)

    def _measure(self, cpus: Sequence[int], *, isa: str, goes_on: Callable[[], bool]) -> MachineSpeed | None:
        assert isa == "avx2"
        self.measured.append(list(cpus))
        self.during()
        speed = next(self._speeds)
        if isinstance(speed, Exception):
            raise speed
        return speed if goes_on() else None

    def idle(self, seconds: float) -> int:
        """How often the machine was measured when so much idle time had passed."""
        self.clock.now += seconds
        asyncio.run(self.watch.measure_if_idle())
        return len(self.measured)


FAST, SLOW = MachineSpeed(50e9, 1e12), MachineSpeed(40e9, 2e12)


def test_it_measures_once_idle_and_again_after_a_while() -> None:
    machine = Machine(FAST, SLOW)
    assert machine.idle(0.5) == 0
    assert machine.idle(0.5) == 1
    assert machine.measured == [[3, 5]]
    assert machine.idle(800) == 1
    assert machine.idle(100) == 2
    assert machine.watch.speed == MachineSpeed(50e9, 2e12)


def test_it_never_measures_while_something_runs_nor_soon_after() -> None:
    machine = Machine(FAST, FAST)
    with machine.limits.admit():
        assert machine.idle(1000) == 0
    assert machine.idle(0.9) == 0
    assert machine.idle(0.2) == 1
    with machine.limits.admit():
        machine.clock.now += 1000
    assert machine.idle(5) == 1
    assert machine.idle(5) == 2


def test_it_does_not_measure_without_a_model() -> None:
    machine = Machine()
    machine.hub.loaded = []
    assert machine.idle(10) == 0


def test_a_request_ends_the_measurement_and_it_is_tried_again() -> None:
    machine = Machine(FAST, SLOW)
    machine.during = machine.limits.admit
    machine.idle(10)
    assert machine.watch.speed is None
    machine.limits.ended(was_waiting=True)
    machine.during = lambda: None
    assert machine.idle(0.5) == 1
    assert machine.idle(0.6) == 2
    assert machine.watch.speed == SLOW


def test_a_request_that_is_gone_before_the_measurement_ends_does_not_count_as_one_that_failed() -> None:
    machine = Machine(FAST, SLOW)
    machine.clock.now += 10

    def measure(cpus: Sequence[int], *, isa: str, goes_on: Callable[[], bool]) -> MachineSpeed | None:
        with machine.limits.admit():
            assert not goes_on()
        return None

    machine.watch._measure = measure
    machine.idle(0)
    machine.watch._measure = machine._measure
    assert machine.idle(1.1) == 1
    assert machine.watch.speed == FAST


@pytest.mark.parametrize("outcome", [None, CapacityError("no memory")])
def test_a_machine_that_cannot_be_measured_is_not_asked_all_the_time(outcome: Exception | None) -> None:
    machine = Machine(outcome, FAST)
    assert machine.idle(10) == 1
    assert machine.watch.speed is None
    assert machine.idle(800) == 1
    assert machine.idle(200) == 2
    assert machine.watch.speed == FAST


def test_shares_are_those_of_the_machine_at_best() -> None:
    stats: Any = SimpleNamespace(steps=StepStats(decode_read_rate=25e9, prompt_int8_rate=3e11))
    shares = Shares(FAST, stats)
    assert (shares.bandwidth, shares.int8) == (0.5, 0.3)
    assert Shares(MachineSpeed(50e9, 0.0), stats).int8 is None  # not measured on this processor
    unknown = Shares(None, stats)
    assert (unknown.bandwidth, unknown.int8) == (None, None)


def exposition(speed: MachineSpeed | None, throttling: Throttling) -> list[str]:
    machine = Machine()
    machine.watch.speed = speed
    registry = CollectorRegistry()
    registry.register(MachineCollector(machine.watch, throttling=lambda: throttling))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_what_the_machine_denies_is_counted() -> None:
    assert exposition(FAST, Throttling(40, 7, 2.5, 12.25))[1:] == [
        "treadle:bandwidth_limit_bytes_per_second 5e+10",
        "treadle:int8_limit_ops_per_second 1e+12",
        "treadle:cpu_quota_periods_total 40.0",
        "treadle:cpu_throttled_periods_total 7.0",
        "treadle:cpu_throttled_seconds_total 2.5",
        "treadle:cpu_steal_seconds_total 12.25",
    ]


def test_what_the_system_does_not_tell_is_left_out() -> None:
    assert exposition(MachineSpeed(5.0, 0.0), Throttling(None, None, None, 0.0))[1:] == [
        "treadle:bandwidth_limit_bytes_per_second 5.0",
        "treadle:cpu_steal_seconds_total 0.0",
    ]
    assert len(exposition(None, Throttling(None, None, None, None))) == 1

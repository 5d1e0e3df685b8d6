"""What a meter says about steps whose times are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fakes import make_request
from treadle.engine.plan import Chunk, Sample, StepPlan, StepResult
from treadle.engine.statistics import MeteredRunner, StepMeter, StepStats
from treadle.engine.step_work import StepWork


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class SlowRunner:
    """Takes half a second for a step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        self._clock.now += 0.5
        return StepResult([Sample(1) for chunk in plan.chunks if chunk.samples])


def step(meter: StepMeter, runner: MeteredRunner, clock: Clock, plan: StepPlan) -> None:
    """A step that spends a quarter of a second before the core computes and as much after it."""
    meter.begin()
    clock.now += 0.25
    if plan.chunks:
        runner.run(plan)
    clock.now += 0.25
    meter.end()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> StepMeter:
    return StepMeter(StepWork(weight_bytes=1000, kv_token_bytes=10, token_ops=100, logit_ops=5), clock)


@pytest.fixture
def runner(meter: StepMeter, clock: Clock) -> MeteredRunner:
    return MeteredRunner(SlowRunner(clock), meter, clock)


def mixed_plan() -> StepPlan:
    """Two answers go on, a prompt of 30 tokens is read to its end."""
    decodes = [Chunk(make_request(index, [1, 2], 9), 2, 1, samples=True) for index in range(2)]
    return StepPlan([*decodes, Chunk(make_request(2, range(30), 9), 0, 30, samples=True)], num_decodes=2)


def test_time_is_split_between_the_core_and_the_rest(meter: StepMeter, runner: MeteredRunner, clock: Clock) -> None:
    for _ in range(4):
        step(meter, runner, clock, mixed_plan())
    assert meter.stats() == StepStats(
        num_steps=4,
        step_seconds=4.0,
        native_seconds=2.0,
        prompt_rate=30.0,
        answer_rate=3.0,
        kv_bytes_read=4 * 10 * (3 + 3 + 30),
        prompt_int8_rate=4 * (32 * 100 + 3 * 5) / 2.0,
    )
    assert meter.stats().overhead_share == 0.5


def test_steps_that_compute_nothing_do_not_count(meter: StepMeter, runner: MeteredRunner, clock: Clock) -> None:
    step(meter, runner, clock, StepPlan([]))
    meter.end()
    assert meter.stats() == StepStats()
    assert meter.stats().overhead_share == 0.0


def test_what_answers_read_is_measured_by_the_time_of_their_own_steps(
    meter: StepMeter, runner: MeteredRunner, clock: Clock
) -> None:
    step(meter, runner, clock, mixed_plan())
    answers = StepPlan(mixed_plan().chunks[:2], num_decodes=2)
    for _ in range(3):
        step(meter, runner, clock, answers)
    assert meter.stats().decode_read_rate == (1000 + 10 * 6) / 0.5
    assert meter.stats().prompt_int8_rate == (32 * 100 + 3 * 5) / 0.5
    clock.now += 20
    assert (meter.stats().decode_read_rate, meter.stats().prompt_int8_rate) == (0.0, 0.0)
    assert meter.stats().kv_bytes_read == 10 * (36 + 3 * 6)


def test_rates_are_those_of_the_last_ten_seconds(meter: StepMeter, runner: MeteredRunner, clock: Clock) -> None:
    for _ in range(30):
        step(meter, runner, clock, mixed_plan())
    assert meter.stats().prompt_rate == pytest.approx(30, rel=0.11)
    clock.now += 5
    assert meter.stats().prompt_rate == pytest.approx(15, rel=0.21)
    clock.now += 10
    assert (meter.stats().prompt_rate, meter.stats().answer_rate, meter.stats().num_steps) == (0.0, 0.0, 30)

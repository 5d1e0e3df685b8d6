"""What is learned from step times, on a machine that is a formula."""

from __future__ import annotations

import random

import pytest

from treadle.engine.step_costs import StepCosts


def seconds(num_decodes: int, num_prompt_tokens: int, unit: float = 1.0) -> float:
    """A step reads the weights, which hides the first twelve tokens; each further one costs."""
    return unit * max(20.0 + 0.5 * num_decodes, 1.9 * (num_decodes + num_prompt_tokens) + 1.5 * num_decodes)


def settle(costs: StepCosts, num_decodes: int, slowdown: float, unit: float, num_steps: int = 200) -> list[int | None]:
    """Let the budget drive the machine; returns the budgets."""
    budgets = []
    for _ in range(num_steps):
        budget = costs.prompt_tokens(num_decodes, slowdown)
        budgets.append(budget)
        costs.record(num_decodes, budget or 0, seconds(num_decodes, budget or 0, unit))
    return budgets


@pytest.mark.parametrize("unit", [1e-4, 1e-3, 0.1], ids="{} s".format)
@pytest.mark.parametrize("num_decodes", [1, 4, 8])
@pytest.mark.parametrize("slowdown", [1.5, 2.4, 4.0])
def test_finds_the_number_of_prompt_tokens_that_fills_the_time_allowed(
    num_decodes: int, slowdown: float, unit: float
) -> None:
    costs = StepCosts()
    costs.record(0, 512, seconds(0, 512, unit))
    budgets = settle(costs, num_decodes, slowdown, unit)
    allowed = slowdown * seconds(num_decodes, 0, unit)
    fullest = max(k for k in range(1, 200) if seconds(num_decodes, k, unit) <= allowed)
    for budget in [budget for budget in budgets[20:] if budget]:
        assert fullest - 1 <= budget <= fullest


def test_is_careful_before_a_prompt_was_seen_alone() -> None:
    for budget in settle(StepCosts(), 4, 2.4, 1e-3)[1:]:
        assert seconds(4, budget or 0) <= 2.4 * seconds(4, 0)


def test_probes_now_and_then_what_answers_cost_by_themselves() -> None:
    budgets = settle(StepCosts(), 4, 2.4, 1e-3, num_steps=1000)
    assert budgets[0] == 0
    assert 1 <= budgets[1] <= 10  # nothing is known of prompts yet
    assert 10 < budgets.count(0) < 20


def test_follows_a_machine_that_becomes_slower() -> None:
    costs = StepCosts()
    settle(costs, 4, 2.4, 1e-3)
    budgets = settle(costs, 4, 2.4, 3e-3, num_steps=600)
    steady = settle(StepCosts(), 4, 2.4, 3e-3)[-1]
    assert budgets[-1] == steady


def test_one_interrupted_step_changes_nothing_for_long() -> None:
    chance = random.Random(3)
    costs = StepCosts()
    usual = settle(costs, 4, 2.4, 1e-3)[-1]
    for _ in range(10):
        costs.record(4, chance.choice([0, 12]), 60.0)
        budgets = settle(costs, 4, 2.4, 1e-3, num_steps=400)
        assert budgets[10:60] == [usual if budget else 0 for budget in budgets[10:60]]


def test_a_prompt_alone_gives_a_first_price() -> None:
    costs = StepCosts()
    assert costs.prompt_seconds == 0
    costs.record(0, 500, 1.0)  # 2 ms a token
    assert costs.prompt_seconds == 0.002
    assert costs.prompt_tokens(2, 3.0) == 0
    costs.record(2, 0, 0.010)
    assert costs.prompt_tokens(2, 3.0) == 10


def test_a_clock_that_stands_still_limits_nothing() -> None:
    costs = StepCosts()
    costs.record(1, 0, 0.0)
    costs.record(1, 5, 0.0)
    assert costs.prompt_tokens(1, 2.0) is None

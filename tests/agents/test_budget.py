"""Budgets: each ends a run with its own reason, within a turn as well, and leaves room for a closing answer."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from scripted_model import Say, ScriptedEngine, call, contents, text

from treadle.agents.budget import Budget, Prices, Spending, Usage
from treadle.agents.function_tool import tool
from treadle.agents.loop import Agent
from treadle.agents.result import AgentResult
from treadle.engine.conversation import Conversation
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError
from treadle.models.tool_dialects import Content

NO_LIMITS = Budget(max_turns=None, max_tokens=None, max_seconds=None, max_tool_seconds=None)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_counter() -> Any:
    """A tool whose result is a new one each time."""
    num_calls = 0

    @tool(is_read_only=True)
    async def count() -> int:
        nonlocal num_calls
        num_calls += 1
        return num_calls

    return count


def run(engine: ScriptedEngine, budget: Budget, *tools: Any, **settings: Any) -> AgentResult:
    return asyncio.run(Agent(engine, tools or [make_counter()], budget=budget, **settings).run("Count."))


def until_closing(**more: Any) -> list[Any]:
    """A script that calls for ever, and answers when no tool is offered."""

    def say(conversation: Conversation) -> Say:
        return text("I counted.", **more) if conversation.choice == "none" else call("count", **more)

    return [say]


def test_turns() -> None:
    engine = ScriptedEngine(until_closing())
    result = run(engine, Budget(max_turns=3))
    assert (result.end, result.answer, result.usage.turns, result.usage.calls) == ("turns", "I counted.", 3, 2)
    closing = engine.asked[-1]
    assert (closing.tools, closing.choice) == ((), "none")
    assert "No tool can be called any more" in contents(closing, "tool")[-1]


def test_a_single_turn_is_the_closing_one() -> None:
    engine = ScriptedEngine(until_closing())
    result = run(engine, Budget(max_turns=1))
    assert (result.end, result.answer) == ("turns", "I counted.")
    assert "No tool can be called" in contents(engine.asked[0], "user")[0]


def test_a_closing_answer_that_is_a_call_is_none() -> None:
    result = run(ScriptedEngine([call("count"), text('{"name": "count", "arguments": {}}')]), Budget(max_turns=2))
    assert (result.end, result.answer, result.usage.calls) == ("turns", "", 1)


def test_tokens_that_were_known_do_not_count() -> None:
    result = run(
        ScriptedEngine(until_closing(prompt_tokens=100, cached_tokens=95, answer_tokens=5)), Budget(max_tokens=100)
    )
    # 85 tokens until the reserve, 10 a turn; the ninth is ended after its first piece, the tenth is the closing one.
    assert (result.end, result.usage.turns, result.usage.tokens) == ("tokens", 10, 8 * 10 + 6 + 10)


def test_tokens_within_an_answer() -> None:
    engine = ScriptedEngine(
        [Say([Content("a")] * 50, prompt_tokens=40, answer_tokens=50), text("short", prompt_tokens=2)]
    )
    result = run(engine, Budget(max_tokens=100))
    assert (result.end, result.answer) == ("tokens", "short")
    assert engine.params[0].max_tokens == 85
    assert engine.streams[0].is_closed
    assert result.usage.answer_tokens == 45 + 5  # the first answer was ended when prompt and answer had 85 tokens


def test_seconds_within_an_answer() -> None:
    engine = ScriptedEngine([Say([Content("a")], hangs=True), text("short")])
    result = run(engine, Budget(max_seconds=100_000))
    assert (result.end, result.answer) == ("seconds", "short")
    first, closing = engine.timeouts
    assert first is not None
    assert closing is not None
    assert first <= 85_000
    assert closing <= 100_000
    assert closing - first > 10_000  # what was kept back


def test_seconds_of_the_closing_answer() -> None:
    result = run(ScriptedEngine([Say([Content("so far")], hangs=True)]), Budget(max_seconds=100_000))
    assert (result.end, result.answer) == ("seconds", "so far")


def test_a_tool_that_takes_too_long() -> None:
    was_cancelled = []

    @tool
    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.append(True)
        return "never"

    engine = ScriptedEngine([call("hang"), text("I could not.")])
    result = run(engine, Budget(max_tool_seconds=0.05, max_seconds=None), hang)
    assert (result.end, result.answer) == ("tool_seconds", "I could not.")
    assert was_cancelled == [True]
    assert contents(engine.asked[1], "tool")[0].startswith("Error: the call was ended: the time for tools is used up")


def test_cost() -> None:
    engine = ScriptedEngine(until_closing(prompt_tokens=1000, answer_tokens=500))
    result = run(engine, Budget(max_cost=10.0), prices=Prices(prompt=1000.0, answer=4000.0))
    # 3 a turn, until 8.5 are reached; the closing answer may have no more tokens than are left of 10.
    assert (result.end, result.answer, result.usage.turns) == ("cost", "I counted.", 4)
    assert engine.params[3].max_tokens == 250


def test_no_limits() -> None:
    engine = ScriptedEngine([*[call("count")] * 40, text("done")])
    result = run(engine, NO_LIMITS, params=SamplingParams(max_tokens=None))
    assert (result.end, result.usage.turns) == ("answered", 41)
    assert engine.params[0].max_tokens is None
    assert engine.timeouts[0] is None


def test_what_is_left() -> None:
    clock = Clock()
    spending = Spending(Budget(max_turns=2, max_tokens=100, max_seconds=10, max_tool_seconds=4), Prices(), clock=clock)
    assert spending.near_end() is None
    assert spending.seconds_left(is_closing=False) == 8.5
    clock.now += 2
    spending.add_tools(1, 2.0)
    assert spending.tool_seconds_left() == 2.0
    assert spending.answer_tokens_left(10, 10, is_closing=False) == 75
    spending.add_turn(10, 0, 5)
    assert spending.near_end() == "turns"
    clock.now += 20
    assert (spending.seconds_left(is_closing=True), spending.tool_seconds_left()) == (0.0, 0.0)
    assert Spending(NO_LIMITS, Prices(), clock=clock).answer_tokens_left(0, 0, is_closing=False) == math.inf


def test_a_resumed_run_goes_on_with_what_is_left() -> None:
    clock = Clock()
    spending = Spending(Budget(max_seconds=10), Prices(), spent=Usage(turns=3, seconds=6.0), clock=clock)
    clock.now += 1
    assert spending.usage == Usage(turns=3, seconds=7.0)


@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "20"])
def test_limits_that_are_none(value: Any) -> None:
    with pytest.raises(UsageError, match="max_turns: expected a number above 0, or None"):
        Budget(max_turns=value)

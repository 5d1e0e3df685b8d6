"""What is left out of a conversation that is too long, and what never is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.engine.conversation import Conversation
from treadle.errors import ContextError
from treadle.server.schema.responses import InputTokensRequest
from treadle.server.truncation import fit_items

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "a"}
THOUGHT = {"type": "reasoning", "summary": [], "content": []}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": name}


class CountingEngine:
    """An engine whose tokens are messages and calls, and which refuses to read far more than its context."""

    def __init__(self, context: int | None) -> None:
        self.context = context
        self.num_counted = 0

    async def tokenize(self, conversation: Conversation) -> list[int]:
        self.num_counted += 1
        count = sum(1 + len(message.get("tool_calls", ())) for message in conversation.messages)
        if self.context is not None and count > 4 * self.context:
            raise ContextError("far too long")
        return [0] * count


def kept(context: int | None, items: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    body = InputTokensRequest.model_validate({"input": items, "truncation": "auto", **fields})
    engine: Any = CountingEngine(context)
    found = list(asyncio.run(fit_items(engine, body, items, 1)))  # type: ignore[arg-type]
    assert engine.num_counted <= 15
    return found  # type: ignore[return-value]


def test_what_fits_is_read_whole() -> None:
    items = [SYSTEM, USER, SAID, USER]
    assert kept(5, items) == items
    assert kept(None, items * 100) == items * 100
    assert kept(3, items, truncation="disabled") == items


def test_whole_turns_go_first() -> None:
    items = [SAID, USER, SAID, SYSTEM, USER, call("f"), output("f"), SAID, USER, USER]
    assert kept(11, items) == items[1:]
    assert kept(9, items) == [SYSTEM, *items[4:]]
    assert kept(4, items) == [SYSTEM, USER, USER]
    assert kept(2, items) == [SYSTEM, USER, USER]  # the rest is never left out


def test_then_go_the_oldest_calls_of_the_last_turn() -> None:
    steps = [[THOUGHT, call(name), output(name)] for name in "abc"]
    items = [USER, SAID, USER, *steps[0], *steps[1], *steps[2]]
    assert kept(8, items) == [USER, *steps[1], *steps[2]]
    assert kept(5, items) == [USER, *steps[2]]
    assert kept(1, items) == [USER, *steps[2]]


def test_results_go_with_their_calls_wherever_they_are() -> None:
    items = [USER, call("f"), USER, output("f"), SAID, USER]
    assert output("f") not in kept(4, items)


@pytest.mark.parametrize("count", [1000, 5000])
def test_long_conversations_are_counted_a_few_times_only(count: int) -> None:
    items = [USER, SAID] * count + [USER]
    assert len(kept(100, items)) == 99

"""Conversations that are too long for the model: the oldest results are shortened and say so, else the run ends."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_model import Say, ScriptedEngine, call, contents, text

from treadle.agents.events import Warned
from treadle.agents.function_tool import tool
from treadle.agents.loop import Agent
from treadle.engine.conversation import Conversation
from treadle.errors import ContextError


def limited(most_chars: int, *script: Say) -> list[Any]:
    """A script of an engine that refuses conversations with more characters."""
    rest = list(script)

    def say(conversation: Conversation) -> Say:
        if sum(len(message["content"]) for message in conversation.messages) > most_chars:
            return Say([], error=ContextError("the prompt is too long"))
        return rest.pop(0)

    return [say]


@tool(is_read_only=True)
def read(page: int) -> str:
    """Read a page."""
    return f"page {page} " + "x" * 1000


def pages(*numbers: int) -> list[Say]:
    return [call("read", f'{{"page": {number}}}') for number in numbers]


def run(engine: ScriptedEngine, **settings: Any) -> list[Any]:
    async def main() -> list[Any]:
        return [event async for event in Agent(engine, [read], instructions="", **settings).stream("Read.")]

    return asyncio.run(main())


def test_the_oldest_results_are_shortened_with_a_note() -> None:
    engine = ScriptedEngine(limited(2500, *pages(1, 2, 3), text("Read.")))
    events = run(engine)
    assert events[-1].result.end == "answered"
    first, second, third = contents(engine.asked[-1], "tool")
    assert first.startswith("page 1 xxx")
    assert first.endswith("characters left out to make room; call the tool again if you need them ...]")
    assert len(first) < 400
    assert len(third) == 1007
    assert len(second) in (len(first), 1007)
    assert any(isinstance(event, Warned) and "too long" in event.text for event in events)


def test_a_prompt_that_leaves_no_room_for_an_answer_counts_as_too_long() -> None:
    script = [*pages(1), text("x", prompt_tokens=4000), text("Read.", prompt_tokens=1000)]
    engine = ScriptedEngine(script, context=4096)
    assert run(engine)[-1].result.answer == "Read."
    assert engine.streams[1].is_closed
    assert "left out" in contents(engine.asked[2], "tool")[0]


def test_what_cannot_be_shortened_ends_the_run() -> None:
    engine = ScriptedEngine(limited(100, *pages(1)))
    result = run(engine)[-1].result
    assert (result.end, result.answer) == ("context", "")
    assert "too long" in str(result.error)
    assert len(result.messages) == 3

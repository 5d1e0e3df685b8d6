"""A run can be ended at any point: the request is freed, tools are cancelled, processes are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import function_tools
import pytest
from scripted_model import Say, ScriptedEngine, call, text

from patience import PATIENCE_SECONDS
from treadle.agents.budget import Budget
from treadle.agents.events import CallBegan, TextPiece
from treadle.agents.function_tool import tool
from treadle.agents.loop import Agent
from treadle.models.tool_dialects import Content, ToolCall


def is_running(pid: int) -> bool:
    """Whether the process has not ended; one whose end its parent has not noticed yet is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def hanging_tool(ended: list[str], name: str = "hang") -> Any:
    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        return "never"

    return tool(name=name, is_read_only=True)(hang)


def test_cancelled_while_the_model_answers() -> None:
    engine = ScriptedEngine([Say([Content("a")], hangs=True)])

    async def main() -> None:
        task = asyncio.ensure_future(Agent(engine, budget=Budget(max_seconds=None)).run("t"))
        while not engine.streams:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert engine.streams[0].is_closed


def test_cancelled_while_tools_run(tmp_path: Path) -> None:
    ended: list[str] = []
    engine = ScriptedEngine([Say([ToolCall("one", ""), ToolCall("two", "")])])
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        agent = Agent(engine, [hanging_tool(ended, "one"), hanging_tool(ended, "two")], transcript=path)
        task = asyncio.ensure_future(agent.run("t"))
        while path.exists() is False or path.read_text().count('"call"') < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The file is free again, and says that the run has not ended.
        resumed = Agent.resume(path, ScriptedEngine([text("ok")]), [tool(name="one", is_read_only=True)(lambda: "x")])
        assert (await resumed.run()).answer == "ok"

    asyncio.run(main())
    assert sorted(ended) == ["one", "two"]


@pytest.mark.parametrize("wanted", [TextPiece, CallBegan])
def test_leaving_the_events_ends_the_run(wanted: type) -> None:
    ended: list[str] = []
    engine = ScriptedEngine([Say([Content("a"), ToolCall("hang", "")])])

    async def main() -> None:
        events = Agent(engine, [hanging_tool(ended)]).stream("t")
        async for event in events:
            if isinstance(event, wanted):
                break
        await events.aclose()

    asyncio.run(main())
    assert engine.streams[0].is_closed
    assert ended == (["hang"] if wanted is CallBegan else ended)


def test_a_slow_reader_holds_the_run_up() -> None:
    engine = ScriptedEngine([Say([Content("a")] * 2000, answer_tokens=2000), text("never asked for")])

    async def main() -> int:
        events = Agent(engine).stream("t")
        await anext(events)
        for _ in range(500):
            await asyncio.sleep(0)
        return len([event async for event in events])

    assert asyncio.run(main()) == 2001
    assert len(engine.asked) == 1


def test_cancelling_kills_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    engine = ScriptedEngine([call("sleep_with_child", f'{{"path": "{pids}"}}')])

    async def main() -> None:
        async with Agent(engine, [function_tools.sleep_with_child]) as agent:
            task = asyncio.ensure_future(agent.run("t"))
            while not pids.exists():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert not any(is_running(int(pid)) for pid in pids.read_text().split())


def test_a_tool_that_will_not_be_cancelled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.agents.dispatch._GRACE_SECONDS", 0.01)

    async def main() -> str:
        release = asyncio.Event()

        @tool(is_read_only=True)
        async def stubborn() -> str:
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()
            return "at last"

        task = asyncio.ensure_future(Agent(ScriptedEngine([call("stubborn")]), [stubborn]).run("t"))
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await asyncio.sleep(0)
        return "ended"

    assert asyncio.run(main()) == "ended"


def test_threads_do_not_keep_a_program_from_ending() -> None:
    program = """
import asyncio, threading
from treadle.agents.own_thread import in_own_thread
async def main():
    task = asyncio.ensure_future(in_own_thread(threading.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
asyncio.run(main())
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=os.environ,
    )
    assert done.stdout == "ended\n", done.stderr

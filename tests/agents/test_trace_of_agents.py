"""What the agent loop's traces account for, with an engine and tools whose time is given."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Say, ScriptedEngine, ScriptedStream, call, text

from treadle.agents.function_tool import FunctionTool, tool
from treadle.agents.loop import Agent
from treadle.agents.trace import Trace, read_traces
from treadle.models.tool_dialects import ToolCall

MS = 1_000_000


class Clock:
    """Time that passes only when told to, for all that traces measure with."""

    def __init__(self) -> None:
        self.now = 0

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds * MS

    def perf_counter_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now

    def process_time_ns(self) -> int:
        return time.process_time_ns()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("spans", "record", "model_spans"):
        monkeypatch.setattr(sys.modules[f"treadle.agents.trace.{module}"], "time", clock)
    return clock


class TimedEngine(ScriptedEngine):
    """Takes 100 ms for each answer."""

    clock: Clock

    async def answer(self, *arguments: Any, **settings: Any) -> ScriptedStream:
        stream = await super().answer(*arguments, **settings)
        self.clock.pass_ms(100)
        return stream


def run(clock: Clock, tools: list[FunctionTool], script: list[Say], **settings: Any) -> Trace:
    async def work() -> Trace:
        engine = TimedEngine(script)
        engine.clock = clock
        async with Agent(engine, tools, **settings) as agent:  # type: ignore[arg-type]
            return (await agent.run("a task")).trace

    return asyncio.run(work())


def test_a_run_of_tools_for_four_fifths_is_reported_so(clock: Clock) -> None:
    @tool
    async def work(index: int) -> str:
        """Take half a second."""
        await asyncio.sleep(0)
        clock.pass_ms(500)
        return str(index)

    # A hundred milliseconds of the model with each half second of tools, and once more at the end.
    script = [call("work", f'{{"index": {index}}}') for index in range(4)]
    trace = run(clock, [work], [*script, text("done")])
    summary = trace.summary()
    assert summary.wall_seconds == pytest.approx(2.5)
    assert summary.share("tools") == pytest.approx(0.8)
    assert summary.share("model") == pytest.approx(0.2)
    assert summary.coverage == pytest.approx(1.0)
    assert summary.tools["work"].num_calls == 4
    assert {each.kind for each in trace.spans} >= {"task", "turn", "model", "parse", "dispatch", "tool"}
    assert trace.root.attributes["model"] == "scripted"
    [first, *_] = [each for each in trace.spans if each.kind == "tool"]
    assert first.attributes["arguments"] == '{"index": 0}'


def test_calls_that_run_together_count_once(clock: Clock) -> None:
    both = asyncio.Event()

    @tool(is_read_only=True)
    async def first() -> str:
        """Ends last."""
        await both.wait()
        clock.pass_ms(50)
        return "first"

    @tool(is_read_only=True)
    async def second() -> str:
        """Ends first."""
        clock.pass_ms(300)
        both.set()
        return "second"

    trace = run(clock, [first, second], [Say([ToolCall("first", "{}"), ToolCall("second", "{}")]), text("done")])
    summary = trace.summary()
    assert summary.groups["tools"] == pytest.approx(0.35)
    assert sum(each.wall_seconds for each in summary.tools.values()) > 0.6
    assert sum(share.wall_seconds for share in summary.path if share.kind == "tool") == pytest.approx(0.35)


def test_tools_in_threads_and_processes_have_their_cpu_seconds() -> None:
    def burn(loops: int) -> str:
        """Use CPU."""
        return str(sum(range(loops)))

    async def work() -> Trace:
        engine = ScriptedEngine([call("burn", '{"loops": 300000}'), text("done")])
        async with Agent(engine, [tool(burn)]) as agent:  # type: ignore[arg-type]
            return (await agent.run("a task")).trace

    [measured] = [each for each in asyncio.run(work()).spans if each.kind == "tool"]
    assert measured.cpu_seconds is not None and 0 < measured.cpu_seconds <= measured.seconds


def test_runs_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    async def work() -> None:
        engine = ScriptedEngine([text("done")])
        async with Agent(engine, trace=path) as agent:  # type: ignore[arg-type]
            await asyncio.gather(*(agent.run(f"task {index}") for index in range(3)))

    asyncio.run(work())
    traces, notes = read_traces([path])
    assert sorted(trace.name for trace in traces) == ["task 0", "task 1", "task 2"] and notes == []

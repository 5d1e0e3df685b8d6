"""The agent: a model, tools, and the settings of its runs.

Leaves to others: what happens in a run (``run``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.agents.answer_shape import ANSWER_TOOL, AnswerShape
from treadle.agents.budget import Budget, Prices, Spending
from treadle.agents.events import AgentEvent, RunEnded
from treadle.agents.function_tool import FunctionTool, check_name
from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.history import History
from treadle.agents.instructions import default_instructions
from treadle.agents.result import AgentResult
from treadle.agents.run import Run, Setup
from treadle.agents.tool import Tool
from treadle.agents.transcript import Transcript
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from treadle.engine.contract import AsyncEngine
    from treadle.engine.request import Priority

__all__ = ["Agent"]

_MAX_EVENTS = 256
_MAX_RESULT_CHARS = 8000
# Greedy, so that a run can be repeated; long enough for a call that writes a file.
_PARAMS = SamplingParams(temperature=0, max_tokens=1024)


class Agent:
    """A model that works on tasks with tools.

    Any number of runs, and of agents, may go on at the same time on one engine. The engine stays its owner's; the tools
    are closed with the agent.

    Args:
        engine: Who answers: ``AsyncLLM``, ``RemoteEngine``, or what ``open_engine`` returns.
        tools: Functions, as they are or made into tools with ``tool``, and other tools.
        instructions: The system message; empty for none. By default how to work with tools.
        budget: What each run may use; by default ``Budget()``.
        params: How the model answers; by default greedily, up to 1024 tokens an answer.
        answer_schema: What the answer must be: a pydantic model or a JSON schema. By default it is text.
        transcript: A file to which the run writes what happens, so that it can be resumed; one run has one file.
        trace: A file to which each run adds its trace, for ``treadle trace``; any number of runs may share one.
        gate: What CPU-heavy tools pass.
        prices: What tokens cost, for the budget and the account; by default nothing.
        max_result_chars: What the model is shown of a tool's result at most; the middle of longer ones is left out.
        priority: Of the requests to the engine, "interactive" or "batch".
        forces_calls: Whether each answer must be a call, token by token, and the final answer one as well. Small models
            get much further so, but one that reasons cannot do so then. By default models in this process are held to
            calls unless they reason, and engines elsewhere are not.

    Raises:
        UsageError: A tool, a name, the schema or a setting is wrong.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        *,
        instructions: str | None = None,
        budget: Budget | None = None,
        params: SamplingParams | None = None,
        answer_schema: type[BaseModel] | Mapping[str, Any] | None = None,
        transcript: Path | str | None = None,
        trace: Path | str | None = None,
        gate: ToolGate | None = None,
        prices: Prices | None = None,
        max_result_chars: int = _MAX_RESULT_CHARS,
        priority: Priority = "interactive",
        forces_calls: bool | None = None,
    ) -> None:
        params = params or _PARAMS
        if params.form is not None or params.n != 1:
            raise UsageError(
                "params: an agent takes one answer at a time and gives it its form itself",
                hint="leave n and form out, and set answer_schema",
            )
        if max_result_chars < 1:
            raise UsageError(f"max_result_chars: expected 1 at least, found {max_result_chars}")
        if forces_calls is None:
            forces_calls = engine.report is not None and not engine.report.reasons
        shape = None if answer_schema is None else AnswerShape(answer_schema)
        if shape is None and forces_calls and tools:
            shape = AnswerShape.of_text()
        by_name = _by_name([_as_tool(each, gate or OpenGate()) for each in tools], has_shape=shape is not None)
        trace_path = None if trace is None else Path(trace)
        self._setup = Setup(engine, by_name, params, priority, shape, max_result_chars, trace_path, forces_calls)
        if instructions is None:
            instructions = default_instructions(ends_with_call=shape is not None)
        self._instructions = instructions
        self._budget = budget or Budget()
        self._prices = prices or Prices()
        self._transcript = None if transcript is None else Path(transcript)
        self._resumed: History | None = None

    @classmethod
    def resume(
        cls, path: Path | str, engine: AsyncEngine, tools: Sequence[Tool | Callable[..., Any]] = (), **settings: Any
    ) -> Agent:
        """Return an agent that goes on where the run that wrote a transcript was cut off, or with another task.

        Read-only calls whose result is missing are made again. Of others the model is told that they may have been
        made. Take the result with ``run()``, or ``run(task)`` after a run that has ended; the same file is written on.

        Args:
            path: The transcript.
            engine: Who answers; need not be the one that did.
            tools: As they were.
            settings: The other arguments of ``Agent``; the instructions are those of the transcript.

        Raises:
            UsageError: The file cannot be read or is no transcript, another run writes to it, or as in ``Agent``.
        """
        for name in ("instructions", "transcript"):
            if name in settings:
                raise UsageError(f"{name}: those of the transcript are gone on with")
        agent = cls(engine, tools, transcript=path, **settings)
        agent._resumed = History.reopen(Path(path))
        return agent

    async def run(self, task: str | None = None) -> AgentResult:
        """Work on a task; without one, go on with that of a resumed transcript.

        What goes wrong with the engine or the transcript ends the run and is told in its result. Cancelling ends the
        request and the tools that run, and kills the processes of those that have some.

        Raises:
            UsageError: There is no task, or nothing to go on with, or the transcript cannot be begun.
        """

        async def ignore(event: AgentEvent) -> None:
            pass

        return await self._run(self._begin(task), ignore)

    async def stream(self, task: str | None = None) -> AsyncIterator[AgentEvent]:
        """Work on a task as ``run`` does, and tell of it as it goes; the last event has the result.

        The run waits for a reader that is slow. Leaving the iteration, or closing it, cancels the run.
        """
        history = self._begin(task)
        events: asyncio.Queue[AgentEvent | None] = asyncio.Queue(_MAX_EVENTS)

        async def work() -> None:
            try:
                result = await self._run(history, events.put)
            except Exception:
                await events.put(None)
                raise
            await events.put(RunEnded(result))

        running = asyncio.ensure_future(work())
        try:
            while (event := await events.get()) is not None:
                yield event
                if isinstance(event, RunEnded):
                    break
            await running
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def close(self) -> None:
        """Close the tools; may be called twice."""
        if self._resumed is not None:
            self._resumed.close()
        closings = [each.close() for each in self._setup.tools.values()]
        for error in await asyncio.gather(*closings, return_exceptions=True):
            if error is not None:
                raise error

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self, task: str | None) -> History:
        """Return the history of a run that is to go on."""
        history, self._resumed = self._resumed, None
        if history is not None and task is None and history.end is None and history.messages:
            return history
        if history is None and task is not None:
            history = History(None if self._transcript is None else Transcript.create(self._transcript))
        elif history is None or task is None or history.end is None:
            self._resumed = history
            raise UsageError(_wrong_task(history, task))
        setup = self._setup
        history.begin(task, instructions=self._instructions, model=setup.engine.name, tools=list(setup.tools))
        return history

    async def _run(self, history: History, emit: Callable[[AgentEvent], Any]) -> AgentResult:
        spending = Spending(self._budget, self._prices, spent=history.usage)
        task = next((each["content"] for each in reversed(history.messages) if each["role"] == "user"), "")
        try:
            return await Run(self._setup, history, spending, emit).go(task)
        finally:
            history.close()


def _as_tool(given: Tool | Callable[..., Any], gate: ToolGate) -> Tool:
    if isinstance(given, FunctionTool):
        return given.with_gate(gate)  # with processes of its own, which end with this agent
    if isinstance(given, Tool):
        return given
    if callable(given):
        return FunctionTool(given, gate=gate)
    raise UsageError(f"tools: expected functions and tools, found {given!r:.80}")


def _by_name(tools: Sequence[Tool], *, has_shape: bool) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for each in tools:
        name = check_name(each.spec.name)
        if name in found or (has_shape and name == ANSWER_TOOL):
            raise UsageError(f"tool {name}: there is another one of that name", hint="give each a name of its own")
        found[name] = each
    return found


def _wrong_task(history: History | None, task: str | None) -> str:
    if history is None:
        return "run: expected a task"
    if task is None:
        return f"the run of the transcript has ended ({(history.end or {}).get('reason')}): expected a new task"
    return "the run of the transcript was cut off: go on with it before there is a new task"

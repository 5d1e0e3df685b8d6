"""Carries out the calls of an answer: read-only ones together, the others one by one in their order.

Leaves to others: what the model wrote (``answer_calls``), what fits a tool (``arguments``), and the words around it
(``run``).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treadle.agents.arguments import read_arguments
from treadle.agents.bounded_text import bounded, preview
from treadle.agents.events import CallBegan, CallEnded
from treadle.agents.history import History, OpenCall
from treadle.agents.instructions import UNCERTAIN_CALL
from treadle.agents.model_turn import Emit
from treadle.agents.result_text import as_result
from treadle.agents.tool import Tool, ToolResult
from treadle.agents.trace import span
from treadle.agents.worker import describe_error
from treadle.errors import ToolError

__all__ = ["Dispatcher"]

_MAX_TOGETHER = 8
# A tool that goes on after it was cancelled is left to itself after so many seconds.
_GRACE_SECONDS = 5.0


class Dispatcher:
    """Makes the calls of one run.

    Args:
        tools: By their names.
        history: Where calls and results go on record.
        max_result_chars: What the model is shown of a result at most.
        emit: Is told of calls.
    """

    def __init__(self, tools: Mapping[str, Tool], history: History, max_result_chars: int, emit: Emit) -> None:
        self._tools = tools
        self._history = history
        self._max_result_chars = max_result_chars
        self._emit = emit

    async def run(self, calls: Sequence[OpenCall], seconds: float | None) -> list[ToolResult]:
        """Make calls and return what the model is shown of each; it is on record then.

        Args:
            calls: What the model asked for.
            seconds: After which all that still runs is ended; None is no limit.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        results: list[ToolResult] = []
        for may_share, group in itertools.groupby(calls, self._is_read_only):
            works = [self._run_one(call, deadline) for call in group]
            for batch in _batches(works, _MAX_TOGETHER if may_share else 1):
                results += await _together(batch)
        return results

    def _is_read_only(self, call: OpenCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is None or tool.spec.is_read_only

    def _run_one(self, call: OpenCall, deadline: float | None) -> Callable[[], Awaitable[ToolResult]]:
        async def run() -> ToolResult:
            began = time.perf_counter()
            with span("tool", call.name, call_id=call.call_id, arguments=call.arguments) as tool_span:
                result = await self._attempt(call, deadline)
                result = ToolResult(bounded(result.text, self._max_result_chars), result.is_error)
                tool_span.attributes.update(is_error=result.is_error, result_chars=len(result.text))
            seconds = time.perf_counter() - began
            self._history.end_call(call, result.text, is_error=result.is_error, seconds=seconds)
            await self._emit(CallEnded(call.call_id, call.name, result.text, result.is_error, seconds))
            return result

        return run

    async def _attempt(self, call: OpenCall, deadline: float | None) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "there are none"
            return _failure(f"there is no tool {preview(call.name, 80)!r}. The tools are: {names}")
        if call.has_begun and not tool.spec.is_read_only:
            return _failure(UNCERTAIN_CALL)
        try:
            arguments = read_arguments(call.arguments, tool.spec)
        except ToolError as error:
            return _failure(f"the call was not made. {error}")
        self._history.begin_call(call)
        await self._emit(CallBegan(call.call_id, call.name, arguments))
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        return await _call(tool, arguments, seconds)


def _batches(
    works: Sequence[Callable[[], Awaitable[ToolResult]]], most: int
) -> list[Sequence[Callable[[], Awaitable[ToolResult]]]]:
    return [works[start : start + most] for start in range(0, len(works), most)]


async def _together(works: Sequence[Callable[[], Awaitable[ToolResult]]]) -> list[ToolResult]:
    """Return the results of works that go on at the same time; if one fails, or this is cancelled, all are ended."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _call(tool: Tool, arguments: Mapping[str, Any], seconds: float | None) -> ToolResult:
    task: asyncio.Future[ToolResult] = asyncio.ensure_future(tool.call(arguments))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not done:
        await _end(task)
        return _failure("the call was ended: the time for tools is used up")
    if task.cancelled():
        return _failure("the call was cancelled")
    error = task.exception()
    if error is None:
        return _as_result(task.result())
    return _failure(str(error) if isinstance(error, ToolError) else describe_error(error))


def _as_result(value: Any) -> ToolResult:
    try:
        return as_result(value)
    except ToolError as error:
        return _failure(str(error))


async def _end(task: asyncio.Future[ToolResult]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_GRACE_SECONDS)
    if task.done():
        with suppress(asyncio.CancelledError):
            task.exception()  # it is known then that somebody has looked


def _failure(text: str) -> ToolResult:
    return ToolResult(f"Error: {text}", is_error=True)

"""A built-in tool: what the model is told of it, and the function that does its work.

Leaves to others: the work (the files beside this one).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from treadle.agents.tool import ToolResult, ToolSpec

__all__ = ["LocalTool", "in_thread", "parameters"]

Work = Callable[[Mapping[str, Any]], Awaitable[ToolResult]]


class LocalTool:
    """Something a model may call that holds nothing of its own.

    Args:
        spec: What the model is told.
        work: Called with the arguments of each call.
    """

    def __init__(self, spec: ToolSpec, work: Work) -> None:
        self._spec = spec
        self._work = work

    @property
    def spec(self) -> ToolSpec:
        """Return what the model is told of the tool."""
        return self._spec

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Do the work; raises ToolError if it fails."""
        return await self._work(arguments)

    async def close(self) -> None:
        """Do nothing: what the work needs is closed by whoever opened it."""


def in_thread(work: Callable[[Mapping[str, Any]], str]) -> Work:
    """Return a function that does short blocking work in a thread and gives its text."""

    async def call(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(await asyncio.to_thread(work, arguments))

    return call


def parameters(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of arguments, of which the first ones must be given."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }

"""Tools made of Python functions.

Leaves to others: what the model is told of them (``signature``), the processes of those that need one
(``worker_pool``), and checking arguments against the schema (``arguments``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.own_thread import in_own_thread
from treadle.agents.result_text import as_result
from treadle.agents.signature import Signature
from treadle.agents.tool import ToolResult, ToolSpec, is_name
from treadle.agents.trace import charge_thread
from treadle.agents.worker_pool import WorkerPool
from treadle.errors import ToolError, UsageError

__all__ = ["FunctionTool", "check_name", "tool"]


class FunctionTool:
    """A Python function that a model may call; also callable as the function itself. Made by ``tool``.

    Attributes:
        function: The function.
        spec: What the model is told of it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        is_read_only: bool = False,
        in_process: bool = False,
        timeout: float | None = None,
        gate: ToolGate | None = None,
    ) -> None:
        self.function = function
        self._signature = Signature(function)
        self._timeout = timeout
        self._gate = gate or OpenGate()
        found_name = name or str(getattr(function, "__name__", type(function).__name__))
        text = self._signature.description if description is None else description
        self.spec = ToolSpec(check_name(found_name), text, self._signature.schema, is_read_only)
        self._pool = WorkerPool(*_address(function)) if in_process else None
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function itself."""
        return self.function(*arguments, **keywords)

    def with_gate(self, gate: ToolGate) -> FunctionTool:
        """Return the same tool with processes of its own, whose work passes ``gate``."""
        return FunctionTool(
            self.function,
            name=self.spec.name,
            description=self.spec.description,
            is_read_only=self.spec.is_read_only,
            in_process=self._pool is not None,
            timeout=self._timeout,
            gate=gate,
        )

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the function; what it returns is shown as it is if it is text, else as JSON.

        Raises:
            ToolError: The function raised it, an argument does not fit its type, or the time was up.
            Exception: The function raised it.
        """
        values = self._signature.read(arguments)
        try:
            return await asyncio.wait_for(self._run(arguments, values), self._timeout)
        except asyncio.TimeoutError:
            raise ToolError(f"the call was ended after {self._timeout:g} seconds") from None

    async def close(self) -> None:
        """End the processes of the tool; may be called twice."""
        if self._pool is not None:
            await in_own_thread(self._pool.close)

    async def _run(self, arguments: Mapping[str, Any], values: dict[str, Any]) -> ToolResult:
        if self._pool is not None:
            async with self._gate.enter("cpu", self.spec.name) as share:
                return await self._pool.call(arguments, share)
        async with self._gate.enter("io", self.spec.name):
            if inspect.iscoroutinefunction(self.function):
                return as_result(await self.function(**values))
            return as_result(await in_own_thread(charge_thread, self.function, **values))


@overload
def tool(function: Callable[..., Any]) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    is_read_only: bool = ...,
    in_process: bool = ...,
    timeout: float | None = ...,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    is_read_only: bool = False,
    in_process: bool = False,
    timeout: float | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function, also as a decorator with or without settings.

    The annotations become the schema of the arguments, the docstring the description, its ``Args`` those of the
    parameters. ``async def`` runs in the event loop, ``def`` in a thread of its own, which nothing can end early.

    Args:
        function: What to call.
        name: Its name for the model; by default that of the function.
        description: What it does, for the model; by default what the docstring says before its sections.
        is_read_only: Whether calls change nothing, so that several may run together and may be repeated.
        in_process: Run calls in processes of their own, for work that needs the CPU: they get the cores that the
            agent's gate gives them, and can be killed. The function must be one that its module has by name.
        timeout: Seconds after which a call ends with an error; by default only the agent's budget ends it.

    Raises:
        UsageError: The function takes what no schema can say, or cannot be had in another process.
    """

    def make(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            function,
            name=name,
            description=description,
            is_read_only=is_read_only,
            in_process=in_process,
            timeout=timeout,
        )

    return make if function is None else make(function)


def check_name(name: str) -> str:
    """Return the name of a tool.

    Raises:
        UsageError: It is one that no API takes.
    """
    if not is_name(name):
        raise UsageError(f"tool {name!r:.80}: expected a name of 1 to 64 letters, digits, _ and -", hint="set its name")
    return name


def _address(function: Callable[..., Any]) -> tuple[str, str]:
    """Return where another process finds a function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<unnamed>")
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"tool {name}: an async function runs in the event loop, not in a process", hint="use def")
    if module is None or "<" in name:
        raise UsageError(f"tool {name}: another process cannot find it", hint="define it at the top of a module")
    return module, name

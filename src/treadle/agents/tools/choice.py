"""The built-in tools by the names of their kinds, opened together with what they work on.

Leaves to others: the tools (the files beside this one) and the sandbox (``agents.sandbox``).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.sandbox import Sandbox, SandboxLimits
from treadle.agents.tool import Tool
from treadle.agents.tools.allow_list import AllowList
from treadle.agents.tools.code import python_tool, shell_tool
from treadle.agents.tools.fetch import FetchTool
from treadle.agents.tools.files import file_tools
from treadle.agents.tools.query import query_tools
from treadle.agents.tools.workspace import Workspace
from treadle.errors import UsageError

__all__ = ["TOOL_KINDS", "Toolbox", "ToolboxSettings"]

TOOL_KINDS = ("files", "query", "python", "shell", "fetch")
_RUN_CODE = frozenset({"python", "shell"})


@dataclass(frozen=True)
class ToolboxSettings:
    """Which tools to have, and what they may do.

    Args:
        kinds: Some of ``TOOL_KINDS``.
        workspace: The folder that they work in.
        is_writable: Whether they may change what is in it.
        allowed_hosts: What ``fetch`` may ask, see ``AllowList``.
        allow_private: Whether names of hosts may lead to addresses of the own network.
        limits: What one piece of code may use.
        is_unsafe: Run code as this user, without any isolation.
    """

    kinds: Sequence[str] = ("files", "query", "python")
    workspace: Path = field(default_factory=Path.cwd)
    is_writable: bool = False
    allowed_hosts: Sequence[str] = ()
    allow_private: bool = False
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    is_unsafe: bool = False

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in TOOL_KINDS:
                near = difflib.get_close_matches(kind, TOOL_KINDS, 1)
                hint = f"did you mean {near[0]}?" if near else None
                raise UsageError(f"there are no tools {kind!r}; there are {', '.join(TOOL_KINDS)}", hint=hint)
        if "fetch" in self.kinds and not self.allowed_hosts:
            raise UsageError(
                "fetch: there is no host that it may ask", hint="allow one with --allow-host, such as docs.python.org"
            )
        if self.allowed_hosts and "fetch" not in self.kinds:
            raise UsageError("hosts are allowed, but there is no tool to ask them", hint="add fetch to the tools")


class Toolbox:
    """The tools that were chosen, the workspace and the sandbox behind them; see ``open``."""

    def __init__(self, tools: Sequence[Tool], sandbox: Sandbox | None, stack: AsyncExitStack) -> None:
        self.tools = tools
        self.sandbox = sandbox
        self._stack = stack

    @classmethod
    async def open(cls, settings: ToolboxSettings, *, gate: ToolGate | None = None) -> Toolbox:
        """Open the workspace, and a sandbox if code is to run.

        Raises:
            UsageError: The workspace is no folder, or a host cannot be allowed.
            SandboxUnavailableError: Code is to run, but this machine cannot isolate it; the text says why.
        """
        gate = gate or OpenGate()
        allowed = AllowList(settings.allowed_hosts, allow_private=settings.allow_private)
        async with AsyncExitStack() as stack:
            workspace = Workspace(settings.workspace)
            stack.callback(workspace.close)
            sandbox = None
            if _RUN_CODE.intersection(settings.kinds):
                sandbox = await Sandbox.open(
                    workspace=workspace.root,
                    is_writable=settings.is_writable,
                    limits=settings.limits,
                    gate=gate,
                    is_unsafe=settings.is_unsafe,
                )
                stack.push_async_callback(sandbox.close)
            tools: list[Tool] = []
            for kind in dict.fromkeys(settings.kinds):
                if kind == "files":
                    tools += file_tools(workspace, is_writable=settings.is_writable, gate=gate)
                elif kind == "query":
                    tools += query_tools(workspace, gate=gate)
                elif kind == "fetch":
                    tools.append(FetchTool(allowed, gate=gate))
                elif sandbox is not None:
                    make = python_tool if kind == "python" else shell_tool
                    tools.append(make(sandbox, settings.limits))
            return cls(tools, sandbox, stack.pop_all())
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the tools, the sandbox and the workspace; may be called twice."""
        for each in self.tools:
            await each.close()
        await self._stack.aclose()

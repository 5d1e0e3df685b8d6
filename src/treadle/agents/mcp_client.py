"""Tools of MCP servers: started or connected to, listed, called, and closed with their process.

Leaves to others: the protocol (the ``mcp`` SDK), the process (``mcp_process``), descriptions (``mcp_schema``).
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.mcp_schema import bounded_schema, bounded_text, tool_name
from treadle.agents.tool import Tool, ToolResult, ToolSpec
from treadle.agents.tools.local_tool import LocalTool
from treadle.agents.tools.text import head
from treadle.errors import ToolError, UsageError

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["McpLimits", "McpServer"]

_MAX_TOOLS, _MAX_PAGES = 100, 20
_MAX_SERVER_CHARS = 20
_NUM_RESTARTS = 1
# Words of a command that say how a server is started, not which one it is.
_STARTERS = frozenset({"npx", "uvx", "uv", "node", "python", "python3", "bunx", "deno", "docker", "run", "env", "sh"})


@dataclass(frozen=True)
class McpLimits:
    """How long a server may take."""

    start_seconds: float = 30.0
    call_seconds: float = 120.0


class McpServer:
    """A server and its tools; see ``open``."""

    def __init__(self, address: str, limits: McpLimits, gate: ToolGate) -> None:
        self.name, self._address = _read_address(address)
        self.tools: list[Tool] = []
        self.notes: list[str] = []
        self._limits = limits
        self._gate = gate
        self._connection: _Connection | None = None
        self._num_restarts = 0
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        allowed: Collection[str] | None = None,
        limits: McpLimits | None = None,
        gate: ToolGate | None = None,
        taken: Collection[str] = (),
    ) -> McpServer:
        """Start a server, or connect to it, and ask for its tools.

        Args:
            address: The command that starts it, or its URL; ``NAME=`` in front names it.
            allowed: Names of the tools to have, with or without that of the server; by default all.
            limits: How long it may take.
            gate: What calls pass.
            taken: Names that its tools cannot have.

        Raises:
            UsageError: It cannot be started or reached, does not answer, or the package ``mcp`` is missing.
        """
        try:
            import mcp  # noqa: F401, PLC0415  an extra
        except ImportError:
            raise UsageError("MCP needs the package mcp", hint="pip install 'treadle[mcp]'") from None
        server = cls(address, limits or McpLimits(), gate or OpenGate())
        try:
            await server._connected()
            await asyncio.wait_for(server._list(allowed, set(taken)), server._limits.start_seconds)
        except asyncio.TimeoutError:
            await server.close()
            raise server._refusal(f"did not tell its tools within {server._limits.start_seconds:g} s") from None
        except BaseException as error:
            await server.close()
            if isinstance(error, ToolError):
                raise server._refusal(str(error)) from None
            if isinstance(error, Exception) and not isinstance(error, UsageError):
                raise server._refusal(f"did not tell its tools: {_why(error)}") from None
            raise
        return server

    @property
    def log(self) -> Sequence[str]:
        """Return the last lines that its process wrote for people."""
        return [] if self._connection is None else list(self._connection.log)

    async def close(self) -> None:
        """End the connection, and the process if there is one; may be called twice."""
        if self._connection is not None:
            await self._connection.close()

    async def _list(self, allowed: Collection[str] | None, taken: set[str]) -> None:
        client = await self._connected()
        unused = set(allowed or ())
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for each in page.tools:
                name = tool_name(self.name, each.name, taken)
                if allowed is not None and each.name not in allowed and name not in allowed:
                    continue
                unused -= {each.name, name}
                if len(self.tools) == _MAX_TOOLS:
                    self.notes.append(f"{self.name} has more than {_MAX_TOOLS} tools; the others are left out")
                    return
                self._add(name, each, taken)
            cursor = page.next_cursor
            if not cursor:
                return

    def _add(self, name: str, tool: Any, taken: set[str]) -> None:
        try:
            schema = bounded_schema(tool.input_schema)
        except ToolError as error:
            self.notes.append(f"{self.name}: the tool {bounded_text(tool.name, 80)} is left out: {error}")
            return
        taken.add(name)
        is_read_only = bool(tool.annotations and tool.annotations.read_only_hint)
        spec = ToolSpec(name, bounded_text(tool.description or ""), schema, is_read_only)
        original = tool.name

        async def call(arguments: Mapping[str, Any]) -> ToolResult:
            return await self._call(original, name, arguments)

        self.tools.append(LocalTool(spec, call))

    async def _call(self, tool: str, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        async with self._gate.enter("io", name):
            client = await self._connected()
            connection = self._connection
            try:
                work = client.call_tool(tool, dict(arguments))
                result = await asyncio.wait_for(work, self._limits.call_seconds)
            except asyncio.TimeoutError:
                raise ToolError(f"{name} took longer than {self._limits.call_seconds:g} s") from None
            except Exception as error:
                if connection is not None and _is_gone(error):
                    connection.is_gone = True
                    raise ToolError(f"the server {self.name} ended during the call{self._last_words()}") from None
                raise ToolError(f"{name} failed: {_why(error)}") from None
        return ToolResult(_result_text(result), is_error=bool(result.is_error))

    async def _connected(self) -> Client:
        """Return the connection; one that was lost is made again, once."""
        async with self._lock:
            if self._connection is not None and self._connection.is_gone:
                if self._num_restarts == _NUM_RESTARTS:
                    raise ToolError(f"the server {self.name} has ended again; its tools cannot be used any more")
                self._num_restarts += 1
                await self._connection.close()
                self._connection = None
            if self._connection is None:
                connection = self._connection = _Connection(self._address)
                try:
                    await asyncio.wait_for(connection.open(), self._limits.start_seconds)
                except asyncio.TimeoutError:
                    connection.is_gone = True
                    raise ToolError(
                        f"did not answer within {self._limits.start_seconds:g} s{self._last_words()}"
                    ) from None
                except Exception as error:
                    connection.is_gone = True
                    raise ToolError(f"cannot be used: {_why(error)}{self._last_words()}") from None
            return self._connection.client

    def _last_words(self) -> str:
        last = self._connection.log.last if self._connection is not None else ""
        return f"; its last words: {last}" if last else ""

    def _refusal(self, problem: str) -> UsageError:
        return UsageError(f"the MCP server {self.name} {problem}")


class _Connection:
    """A client that is entered and left in one task of its own, as its cancel scopes demand."""

    def __init__(self, address: str | Sequence[str]) -> None:
        from treadle.agents.mcp_process import ServerLog  # noqa: PLC0415  an extra

        self.client: Client
        self.log = ServerLog()
        self.is_gone = False
        self._address = address
        self._is_open = asyncio.get_running_loop().create_future()
        self._is_over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._keeper = asyncio.create_task(self._keep())
        await asyncio.shield(self._is_open)  # whoever waits may leave without ending what it waits for

    async def close(self) -> None:
        self._is_over.set()
        if self._keeper is not None:
            if not self._is_open.done():
                self._is_open.cancel()
                self._keeper.cancel()
            await asyncio.wait({self._keeper})

    async def _keep(self) -> None:
        from mcp import Client  # noqa: PLC0415  an extra
        from mcp_types import Implementation  # noqa: PLC0415

        from treadle.agents.mcp_process import server_process  # noqa: PLC0415

        address = self._address
        server: Any = address if isinstance(address, str) else server_process(address, self.log)
        try:
            async with Client(server, client_info=Implementation(name="treadle", version="1"), cache=None) as client:
                self.client = client
                if not self._is_open.done():
                    self._is_open.set_result(None)
                await self._is_over.wait()
        except Exception as error:
            self.is_gone = True
            if not self._is_open.done():
                self._is_open.set_exception(error)


def _read_address(text: str) -> tuple[str, str | list[str]]:
    """Return the name of a server and its URL or command."""
    found = re.fullmatch(r"([A-Za-z0-9_-]+)=(.+)", text.strip(), re.DOTALL)
    name, address = (found[1], found[2].strip()) if found else ("", text.strip())
    if re.match(r"https?://", address):
        host = re.sub(r"^https?://([^/?#]*@)?", "", address).partition("/")[0]
        return _short_name(name or host.partition(":")[0].rpartition("]")[2] or "mcp"), address
    try:
        command = shlex.split(address)
    except ValueError as error:
        raise UsageError(f"--mcp {text}: {error}") from None
    if not command:
        raise UsageError(
            f"--mcp {text!r}: there is no command", hint='give a command or a URL, such as "uvx mcp-server-git"'
        )
    words = [word for word in command if not word.startswith("-") and PurePath(word).name not in _STARTERS]
    return _short_name(name or PurePath(words[0] if words else command[0]).stem), command


def _short_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name.rpartition("@")[0] or name).strip("_").lower()
    for word in ("mcp_", "server_"):
        plain = plain.removeprefix(word) or plain
    return (plain.removesuffix("_server") or plain)[:_MAX_SERVER_CHARS] or "mcp"


def _result_text(result: Any) -> str:
    """Return the text of a result; what is no text is named."""
    text = "\n".join(each for each in map(_block_text, result.content) if each)
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return head(text) or "the result is empty"


def _block_text(block: Any) -> str:
    inner = getattr(block, "resource", block)
    text = getattr(inner, "text", None)
    if text is not None:
        return str(text)
    kind = bounded_text(str(getattr(inner, "mime_type", None) or "of a kind that is not told"), 80)
    return f"[{block.type}, {kind}, which cannot be shown]"


def _is_gone(error: Exception) -> bool:
    """Tell whether a call failed because the other end is no longer there."""
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415  an extra
    from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    return not isinstance(error, ValueError | RuntimeError)  # such as a result that is none


def _why(error: BaseException) -> str:
    while inner := getattr(error, "exceptions", ()):  # a group, whose class Python 3.10 lacks
        error = inner[0]
    return bounded_text(str(error), 300) or type(error).__name__

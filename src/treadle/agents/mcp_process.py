"""An MCP server in a process of its own: messages as lines on its stdin and stdout, and an end that it cannot refuse.

The SDK's own transport keeps a line in memory however long it grows, and lets stderr through to the terminal.

Leaves to others: what the messages say (``mcp_client``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

__all__ = ["ServerLog", "server_process"]

# What the SDK complains of is told where a call fails.
logging.getLogger("mcp").addHandler(logging.NullHandler())

MAX_MESSAGE_BYTES = 4 << 20
_MAX_LOG_LINES, _MAX_LOG_CHARS = 100, 300
_CHUNK_BYTES = 65536
_GRACE_SECONDS = 2.0


class ServerLog:
    """The last lines that a server wrote for people."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)

    def add(self, line: str) -> None:
        """Keep the beginning of a line, at the cost of the oldest."""
        text = "".join(char for char in line[: 2 * _MAX_LOG_CHARS] if char.isprintable())
        if text:
            self._lines.append(text[:_MAX_LOG_CHARS])

    def __iter__(self) -> Any:
        return iter(list(self._lines))

    @property
    def last(self) -> str:
        """Return the last line, empty if there is none."""
        return self._lines[-1] if self._lines else ""


@asynccontextmanager
async def server_process(command: Sequence[str], log: ServerLog) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and give the streams of its messages; at the end it and what it has started are killed.

    Raises:
        OSError: It cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment(),
        limit=MAX_MESSAGE_BYTES,
        start_new_session=True,
    )
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    workers = [
        asyncio.ensure_future(each)
        for each in (_read(process, to_session, log), _write(process, from_session), _listen(process, log))
    ]
    try:
        yield from_server, to_server
    finally:
        ending = asyncio.ensure_future(_end(process))
        while not ending.done():  # also when this task is being cancelled
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        # Its pipes may be held open by a process that has left its group; asyncio has no public way to close them.
        process._transport.close()  # type: ignore[attr-defined]
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()


async def _read(process: asyncio.subprocess.Process, to_session: Any, log: ServerLog) -> None:
    """Pass messages on until the server closes its stdout or sends one that is too long; then the session ends."""
    assert process.stdout is not None
    with to_session:
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                log.add(f"a message was longer than {MAX_MESSAGE_BYTES >> 20} MiB")
                return
            if not line:
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line)
            except ValueError:
                log.add(line.decode("utf-8", "replace"))  # something for people in the wrong place
                continue
            try:
                await to_session.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(process: asyncio.subprocess.Process, from_session: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # the server is gone, which its stdout tells, too
        async for outgoing in from_session:
            text = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _listen(process: asyncio.subprocess.Process, log: ServerLog) -> None:
    """Keep the last lines of stderr; a line without an end is cut into pieces."""
    assert process.stderr is not None
    rest = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.add(line.decode("utf-8", "replace"))
        rest = rest[-_CHUNK_BYTES:]
    log.add(rest.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close stdin, which asks the server to end; then end it, and whatever is left of its group."""
    assert process.stdin is not None
    process.stdin.close()
    for sign in (None, signal.SIGTERM):
        if sign is not None:
            _signal_group(process, sign)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
            break
    _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sign)  # its own session, so its pid names the group

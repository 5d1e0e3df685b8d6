"""Reads server-sent events from a body as it comes.

Leaves to others: what is in them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from treadle.errors import RemoteError

__all__ = ["read_events"]

MAX_EVENT_BYTES = 8 << 20
_DONE = b"[DONE]"


async def read_events(host: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over the data of each event up to the end mark, which is no event itself.

    Raises:
        RemoteError: An event is longer than any answer needs.
    """
    data: list[bytes] = []
    num_bytes = 0
    async for line in _lines(host, pieces):
        if line:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
                num_bytes += len(line)
            if num_bytes > MAX_EVENT_BYTES:
                raise _too_long(host)
        elif data:
            event = b"\n".join(data)
            data, num_bytes = [], 0
            if event == _DONE:
                return
            yield event
    if data and (event := b"\n".join(data)) != _DONE:
        yield event  # the server left out the last empty line


async def _lines(host: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over lines without their ends, be these LF, CRLF or CR."""
    rest = b""
    async for piece in pieces:
        # A carriage return at the very end may be half of a CRLF, so it waits for what follows.
        text = rest + piece
        kept = b"\r" if text.endswith(b"\r") else b""
        lines = text.removesuffix(kept).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop() + kept
        if len(rest) > MAX_EVENT_BYTES:
            raise _too_long(host)
        for line in lines:
            yield line
    if rest:
        yield rest.removesuffix(b"\r")


def _too_long(host: str) -> RemoteError:
    return RemoteError(f"the engine at {host} sent an event of more than {MAX_EVENT_BYTES} bytes")

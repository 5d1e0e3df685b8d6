"""Reads what a sandboxed program writes while it runs, and keeps a bounded part of it.

Leaves to others: making the pipe and ending the program (``worker``).
"""

from __future__ import annotations

import asyncio
import os

from treadle.agents.sandbox.outcome import CappedText

__all__ = ["Capture", "HeadAndTail"]

CHUNK_BYTES = 64 << 10
# A program that writes more than this is slowed to a chunk per pause: what it writes is dropped anyway, and reading
# it at full speed would cost a core here and another there.
FLOOD_BYTES = 1 << 20
FLOOD_PAUSE_SECONDS = 0.002


class HeadAndTail:
    """The first and the last bytes of a stream of any length."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = (limit_bytes + 1) // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes of the stream."""
        self.num_bytes += len(part)
        room = self._head_limit - len(self._head)
        self._head += part[:room]
        self._tail += part[room:]
        if len(self._tail) > self._tail_limit + CHUNK_BYTES:
            del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> CappedText:
        """Return what was kept; characters that the cut went through are left out."""
        num_cut = self.num_bytes - len(self._head) - min(len(self._tail), self._tail_limit)
        if num_cut <= 0:
            return CappedText((self._head + self._tail).decode("utf-8", "replace"), self.num_bytes, is_cut=False)
        head = _whole_start(bytes(self._head))
        tail = _whole_end(bytes(self._tail[len(self._tail) - self._tail_limit :]))
        num_cut = self.num_bytes - len(head) - len(tail)
        parts = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
        return CappedText(f"\n[{num_cut} bytes left out]\n".join(parts), self.num_bytes, is_cut=True)


def _whole_start(text: bytes) -> bytes:
    """Without the first bytes of a character whose last ones are missing."""
    for length in range(1, min(4, len(text)) + 1):
        byte = text[-length]
        if byte & 0xC0 == 0x80:
            continue
        wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return text[:-length] if wanted > length else text
    return text


def _whole_end(text: bytes) -> bytes:
    """Without the last bytes of a character whose first ones are missing."""
    start = 0
    while start < min(3, len(text)) and text[start] & 0xC0 == 0x80:
        start += 1
    return text[start:]


class Capture:
    """Reads a pipe from the event loop until all who could write to it have closed it."""

    def __init__(self, descriptor: int, limit_bytes: int) -> None:
        self._descriptor = descriptor
        self._kept = HeadAndTail(limit_bytes)
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            part = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._kept.add(part)
        if not part:
            self.stop()
            self.ended.set()
        elif self._kept.num_bytes > FLOOD_BYTES:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(FLOOD_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._descriptor, self._read)

    def stop(self) -> None:
        """Read no more; the pipe may be closed then."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._descriptor)

    def text(self) -> CappedText:
        """Return what was kept of all that was read."""
        return self._kept.text()

"""What connects this process with one sandbox: a control socket, and pipes to the program's stdin, stdout and stderr.

Leaves to others: who gets the far ends (``launch``, ``nursery``) and what is said (``worker``).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

from treadle.agents.sandbox.process import Processes
from treadle.errors import SandboxUnavailableError

__all__ = ["FarEnds", "Wires"]

MAX_WORDS_BYTES = 4096
READY, GO = b"R", b"G"
START_SECONDS = 600.0  # a machine that needs longer is out of order; one that sleeps meanwhile is not
CREDENTIALS = struct.Struct("=iII")  # struct ucred of linux/socket.h


@dataclass
class FarEnds:
    """The ends that belong into the sandbox."""

    control: socket.socket
    stdin: int
    stdout: int
    stderr: int
    is_open: bool = field(default=True, init=False)

    def close(self) -> None:
        """Close them here, once they have been passed on; may be called twice."""
        if self.is_open:
            self.is_open = False
            self.control.close()
            for descriptor in (self.stdin, self.stdout, self.stderr):
                os.close(descriptor)


@dataclass
class Wires:
    """The ends that stay here; None: closed."""

    control: socket.socket
    stdin: int | None
    stdout: int
    stderr: int
    is_open: bool = field(default=True, init=False)

    @classmethod
    def make(cls, kind: int = socket.SOCK_STREAM) -> tuple[Wires, FarEnds]:
        """Return both ends; the control socket is of the kind."""
        near, far = socket.socketpair(type=kind)
        near.setblocking(False)
        # Tells the number that this process knows the other one by; it knows itself by one of its own namespace.
        near.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        (far_stdin, stdin), (stdout, far_stdout), (stderr, far_stderr) = os.pipe(), os.pipe(), os.pipe()
        for descriptor in (stdin, stdout, stderr):
            os.set_blocking(descriptor, False)
        return cls(near, stdin, stdout, stderr), FarEnds(far, far_stdin, far_stdout, far_stderr)

    async def connect(self, starter: subprocess.Popen[bytes] | None, *, has_namespace: bool = True) -> Processes:
        """Wait for the other side's first word and return its processes; if it does not come, close and kill.

        Raises SandboxUnavailableError with what was said on stderr instead.
        """
        try:
            first = await asyncio.wait_for(_first_word(self.control), START_SECONDS)
            return Processes(first, starter, has_namespace=has_namespace)
        except BaseException as error:
            words = self._last_words()
            self.close()
            if starter is not None:
                starter.kill()
                starter.wait()
            if isinstance(error, EOFError | ProcessLookupError):
                raise SandboxUnavailableError(f"the sandbox did not start: {words}") from None
            raise

    async def begin(self) -> None:
        """Let the first process start the one that waits for the request, and wait until it does.

        Raises SandboxUnavailableError with what was said on stderr instead.
        """
        try:
            self.control.send(GO)
            await asyncio.wait_for(_first_word(self.control), START_SECONDS)
        except (EOFError, ConnectionError):
            raise SandboxUnavailableError(f"the sandbox did not start: {self._last_words()}") from None

    def _last_words(self) -> str:
        with suppress(BlockingIOError):
            return os.read(self.stderr, MAX_WORDS_BYTES).decode("utf-8", "replace").strip() or "it said nothing"
        return "it said nothing"

    async def feed(self, stdin: bytes) -> None:
        """Write to the program's stdin as it reads, and close it."""
        assert self.stdin is not None
        left = memoryview(stdin)
        with suppress(BrokenPipeError):
            while left:
                try:
                    left = left[os.write(self.stdin, left) :]
                except BlockingIOError:
                    await _writable(self.stdin)
        os.close(self.stdin)
        self.stdin = None

    def close(self) -> None:
        """Close what is open; may be called twice."""
        if self.is_open:
            self.is_open = False
            self.control.close()
            for descriptor in (self.stdin, self.stdout, self.stderr):
                if descriptor is not None:
                    os.close(descriptor)


async def _first_word(control: socket.socket) -> int:
    """Wait until the other side says that it is ready, and return its process id. Raises EOFError if it ends."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(control, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(control)
    try:
        word, notes, _, _ = control.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
    except ConnectionError:
        raise EOFError from None
    if word != READY or not notes:
        raise EOFError
    process_id: int = CREDENTIALS.unpack(notes[0][2])[0]
    return process_id


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(descriptor, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(descriptor)

"""Runs the command `treadle` as a user's shell would: with pipes, or on a terminal."""

from __future__ import annotations

import atexit
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from patience import PATIENCE_SECONDS

# What commands keep of this machine must not stay on it, nor reach the next run of the tests.
_HOME = tempfile.TemporaryDirectory(prefix="treadle-test-home-")
atexit.register(_HOME.cleanup)
# Makes its stdin the controlling terminal, without which Ctrl-C is just a character, and becomes the command.
ON_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'treadle', *sys.argv[1:]])\n"
)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """The variables of this process, without those that change what the command prints, and with a home of their own."""
    drop = {"NO_COLOR", "FORCE_COLOR", "TREADLE_DEBUG", "COLUMNS"}
    return (
        {name: value for name, value in os.environ.items() if name not in drop}
        | {"TERM": "dumb", "TREADLE_HOME": _HOME.name}
        | changes
    )


def treadle(*arguments: str | Path, text: str = "", **variables: str) -> Result:
    """Run the command with `text` on its stdin and pipes for its output."""
    done = subprocess.run(
        [sys.executable, "-m", "treadle", *map(str, arguments)],
        input=text.encode(),
        capture_output=True,
        env=environment(**variables),
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def plain_numbers(text: str) -> str:
    """Replace every number, so that a transcript with timings can be compared."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


class Terminal:
    """The command on a pseudo-terminal: type with `send`, read with `wait_for`."""

    def __init__(self, *arguments: str | Path, **variables: str) -> None:
        self._master, slave = os.openpty()
        self.shown = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(**variables),
        )
        os.close(slave)

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until `pattern` has been shown; return all that came up to its end and forget it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (match := re.search(pattern, self.shown)):
            assert self._read(deadline), f"{pattern!r} was never shown, only {self.shown!r}"
        before, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return before

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        return self._process.wait(timeout=PATIENCE_SECONDS)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            chunk = os.read(self._master, 65536) if ready else b""
        except OSError:  # how Linux says that the other end has closed
            chunk = b""
        self.shown += chunk.decode(errors="replace").replace("\r\n", "\n")
        return bool(chunk)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

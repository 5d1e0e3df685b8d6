"""Keeps what happens in a run in a file of JSON lines, and reads it back after the run was cut off.

Every line is handed to the system before the run goes on, so that what a killed run has done is known. Only the last
line can be cut off; it is dropped.

Leaves to others: what the lines mean (``history``).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle.errors import UsageError

try:
    import fcntl
except ImportError:  # not on every system; there, two runs may write to one file
    fcntl = None  # type: ignore[assignment]

__all__ = ["VERSION", "Transcript"]

VERSION = 1
_MAX_BYTES = 256 << 20
# What a file system without locks answers; there, two runs may write to one file.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

Line = dict[str, Any]


class Transcript:
    """A file that one run writes to. Made by ``create`` or ``reopen``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls, path: Path) -> Transcript:
        """Begin a new file, which only its owner may read.

        Raises:
            UsageError: There is such a file already, or it cannot be made.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            raise UsageError(
                f"transcript {path}: there is such a file already", hint="resume it, or choose another name"
            ) from None
        except OSError as error:
            raise UsageError(f"transcript {path}: cannot be made: {error.strerror}") from None
        return cls._locked(path, descriptor)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Transcript, list[Line]]:
        """Return an existing file, to be written on, and its lines; one that was cut off is removed.

        Raises:
            UsageError: There is no such file, it is none of ours, or another run writes to it.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise UsageError(f"transcript {path}: cannot be opened: {error.strerror}") from None
        transcript = cls._locked(path, descriptor)
        try:
            return transcript, _read(path, descriptor)
        except BaseException:
            transcript.close()
            raise

    @classmethod
    def _locked(cls, path: Path, descriptor: int) -> Transcript:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UsageError(f"transcript {path}: another run is writing to it") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(descriptor)
                    raise UsageError(f"transcript {path}: cannot be locked: {error.strerror}") from None
        return cls(path, descriptor)

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            UsageError: It cannot be written, because the disk is full, for example.
        """
        if self._descriptor is None:
            raise UsageError(f"transcript {self.path}: was closed")
        line = json.dumps({"kind": kind, **fields}, default=str) + "\n"
        rest = memoryview(line.encode())
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise UsageError(f"transcript {self.path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def _read(path: Path, descriptor: int) -> list[Line]:
    num_bytes = os.fstat(descriptor).st_size
    if num_bytes > _MAX_BYTES:
        raise UsageError(f"transcript {path}: {num_bytes} bytes, at most {_MAX_BYTES} are read")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    lines = [_read_line(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
    if not lines or lines[0]["kind"] != "run":
        raise UsageError(f"transcript {path}: does not begin as the transcript of a run does")
    if lines[0].get("version") != VERSION:
        raise UsageError(f"transcript {path}: expected version {VERSION}, found {lines[0].get('version')!r:.40}")
    if len(whole) < len(text):
        os.ftruncate(descriptor, len(whole))
    return lines


def _read_line(path: Path, number: int, line: bytes) -> Line:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"transcript {path}: line {number} is not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise UsageError(f"transcript {path}: line {number} is none of a transcript: {line[:80]!r}")
    return value

"""Tells files apart by all of their bytes, and remembers the answer as long as a file stays untouched.

Leaves to others: which files make up a model (``models.gguf``), and what is keyed by the digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from treadle.engine.private_file import write_private

__all__ = ["FileStamp", "digest_files", "stamp_files"]

FileStamp = list[list[int]]  # of each file: size, time of last change in nanoseconds, inode

_DIGEST_BYTES = 16
_PIECE_BYTES = 64 << 20  # hashed side by side
_READ_BYTES = 1 << 20
_NUM_THREADS = 4
_MAX_REMEMBERED = 64


def stamp_files(paths: Sequence[Path]) -> FileStamp:
    """Return what changes when a file is written to or replaced. Raises OSError."""
    statuses = [path.stat() for path in paths]
    return [[status.st_size, status.st_mtime_ns, status.st_ino] for status in statuses]


def digest_files(paths: Sequence[Path], notes: Path | None = None) -> bytes:
    """Return 16 bytes that depend on every byte of the files, and on nothing else.

    Reads them once, at about the speed of the disk; the result is noted in the file ``notes``, if any and as far as
    that can be written, and holds until a file changes. Raises OSError if a file cannot be read or changes meanwhile.
    """
    name = str(paths[0].resolve())
    stamp = stamp_files(paths)
    remembered = {} if notes is None else _read_notes(notes)
    with suppress(KeyError, TypeError, ValueError):
        if remembered[name]["stamp"] == stamp:
            return bytes.fromhex(remembered[name]["digest"])
    digest = _digest(paths)
    if stamp_files(paths) != stamp:
        raise OSError(f"{paths[0]} changes while it is read")
    if notes is not None:
        remembered.pop(name, None)
        remembered[name] = {"stamp": stamp, "digest": digest.hex()}
        _write_notes(notes, dict(list(remembered.items())[-_MAX_REMEMBERED:]))
    return digest


def _digest(paths: Sequence[Path]) -> bytes:
    pieces = [(path, start) for path in paths for start in range(0, path.stat().st_size, _PIECE_BYTES)]
    with ThreadPoolExecutor(_NUM_THREADS) as executor:
        whole = blake2b(digest_size=_DIGEST_BYTES)
        for part in executor.map(_digest_piece, pieces):
            whole.update(part)
    return whole.digest()


def _digest_piece(piece: tuple[Path, int]) -> bytes:
    path, start = piece
    digest = blake2b(digest_size=_DIGEST_BYTES)
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = _PIECE_BYTES
        while left and (count := file.readinto(buffer[: min(left, _READ_BYTES)])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()


def _read_notes(notes: Path) -> dict[str, Any]:
    try:
        found = json.loads(notes.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_notes(notes: Path, remembered: dict[str, Any]) -> None:
    # Two processes that note something at once may lose one of the notes, which costs reading a file again.
    with suppress(OSError):
        write_private(notes, json.dumps(remembered).encode())

"""What every source does with the files it fetches: room on disk, checksum, a look at the magic, the final name.

Getting the bytes is left to the sources.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treadle.errors import CapacityError, DownloadError, UsageError

__all__ = [
    "FetchedFile",
    "Phase",
    "Report",
    "disk_error",
    "finish_file",
    "format_bytes",
    "hash_file",
    "partial_path",
    "require_free_disk",
    "require_gguf",
    "safe_file_name",
]

Phase = Literal["download", "verify"]
# phase, file name, bytes done, bytes in all (None when the source does not say)
Report = Callable[[Phase, str, int, "int | None"], None]

CHUNK_BYTES = 1 << 20
# A disk filled to the last byte takes other programs down with it.
RESERVE_BYTES = 64 << 20
_MAX_STEM_CHARS = 120


@dataclass(frozen=True)
class FetchedFile:
    """A complete file under its final name."""

    path: Path
    bytes: int
    sha256: str


def format_bytes(count: int) -> str:
    """Return the count in the decimal unit that download pages use, such as 98.4 MB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def partial_path(target: Path) -> Path:
    """Return the name a file has until it is complete and checked."""
    return target.with_name(target.name + ".partial")


def require_free_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise CapacityError unless the file system of ``folder`` has room, with a reserve left over."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + RESERVE_BYTES:
        raise CapacityError(
            f"{what}: not enough disk in {folder}: {format_bytes(needed_bytes)} needed and "
            f"{format_bytes(RESERVE_BYTES)} kept in reserve, {format_bytes(free)} free",
            hint="free some space (`treadle rm NAME`) or put the store elsewhere with TREADLE_HOME",
        )


def disk_error(error: OSError, folder: Path) -> CapacityError | UsageError:
    """Translate a failure of the file system: a full disk is a matter of capacity, anything else of the folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"the disk or quota of {folder} is full", hint="free some space and repeat the command: it resumes"
        )
    path = Path(os.fsdecode(error.filename or folder))
    is_about_folder = path.is_relative_to(folder) or folder.is_relative_to(path)
    hint = "TREADLE_HOME puts the store in a folder of your choice" if is_about_folder else None
    return UsageError(f"{path}: {error.strerror or error}", hint=hint)


def safe_file_name(name: str) -> str:
    """Turn what a server calls a file into a name of ordinary characters that ends in .gguf."""
    clean = re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")
    stem = clean[: -len(".gguf")] if clean.lower().endswith(".gguf") else clean
    return (stem or "model")[:_MAX_STEM_CHARS] + ".gguf"


def hash_file(path: Path, report: Report) -> str:
    """Return the SHA-256 of a file, reporting under the name it will have."""
    total = path.stat().st_size
    name = path.name.removesuffix(".partial")
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report("verify", name, done, total)
    return digest.hexdigest()


def require_gguf(path: Path, origin: str) -> None:
    """Raise unless the file begins as GGUF does, so that a login page is not stored as a model."""
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise DownloadError(
            f"{origin} is not a GGUF file: expected it to begin with b'GGUF', found {magic!r}",
            hint="a link to a web page about the file, or to a model in another format, is the usual cause",
        )


def finish_file(target: Path, *, origin: str, sha256: str | None, report: Report, first: bool = True) -> FetchedFile:
    """Check the complete ``.partial`` of ``target`` and give it its name; a file that fails the check is deleted."""
    partial = partial_path(target)
    found = hash_file(partial, report)
    if sha256 is not None and found != sha256.lower():
        partial.unlink()
        raise DownloadError(
            f"{origin}: checksum of {target.name} differs: expected SHA-256 {sha256.lower()}, found {found}",
            hint="the file was deleted; repeat the command, and if it happens again the source has changed",
        )
    if first:
        try:
            require_gguf(partial, origin)
        except DownloadError:
            partial.unlink()
            raise
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.replace(target)
    return FetchedFile(target, target.stat().st_size, found)

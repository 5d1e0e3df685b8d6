"""Writes a file so that it appears complete or not at all, readable by its owner only.

Leaves to others: what is in it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["TEMPORARY_SUFFIX", "write_private"]

TEMPORARY_SUFFIX = ".tmp"


def write_private(path: Path, *parts: bytes | memoryview, used_ns: int | None = None) -> None:
    """Write ``parts`` one after the other to ``path``, in the stead of what was there. Raises OSError.

    Nothing is flushed to the disk, so a power cut may leave a file that is cut short or blank. ``used_ns`` becomes
    the file's time, in nanoseconds of the wall clock.
    """
    handle, name = tempfile.mkstemp(TEMPORARY_SUFFIX, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part).cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
        if used_ns is not None:
            os.utime(temporary, ns=(used_ns, used_ns))
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise

"""Measures how fast a file comes from its disk, past the cache of the system.

Leaves to others: which file, and what it means for loading a model.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

__all__ = ["measure_disk"]

_CHUNK_BYTES = 4 << 20
_LEAST_BYTES = 16 << 20  # of less the first access would decide


def measure_disk(path: Path, *, seconds: float = 1.0) -> float | None:
    """Return the bytes per second of reading a file from its start, for at most about so many seconds.

    The cache of the system is neither asked nor filled. None where the file cannot be read like that: it is too small
    or gone, or the file system or the operating system knows no such reads.
    """
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | flag)
    except OSError:
        return None
    try:
        with mmap.mmap(-1, _CHUNK_BYTES) as buffer:  # direct reads need memory that starts at a page
            return _read(descriptor, buffer, seconds)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int, buffer: mmap.mmap, seconds: float) -> float | None:
    num_bytes, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        count = os.preadv(descriptor, [buffer], num_bytes)
        num_bytes += count
        if count < _CHUNK_BYTES:
            break
    elapsed = time.perf_counter() - started
    return num_bytes / elapsed if num_bytes >= _LEAST_BYTES else None

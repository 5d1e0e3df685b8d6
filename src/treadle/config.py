"""Settings that come from TREADLE_* environment variables, and how sizes are spelled in settings and arguments.

What a setting means is left to the room that uses it; command-line options win over all of them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from treadle.errors import UsageError

__all__ = ["Settings", "parse_bytes"]

_VARIABLES = {
    "TREADLE_DISK_CACHE": "disk for KV blocks",
    "TREADLE_HOME": "a folder for models and caches",
    "TREADLE_ISA": "the name of a kernel table",
    "TREADLE_KV_TYPE": "how keys and values are kept, f16 or q8_0",
    "TREADLE_MEMORY": "memory for weights, KV blocks and caches",
    "TREADLE_RAM_CACHE": "memory for KV blocks beyond the pool",
}

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(I?)(B?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """Where Treadle keeps its files, which kernels it must use, and what it may take; 0, None or empty if unset."""

    home: Path
    isa: str = ""
    kv_type: str = ""
    memory_bytes: int | None = None
    ram_cache_bytes: int = 0
    disk_cache_bytes: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment and refuse values, and misspelt names, that would be ignored in silence."""
        _refuse_misspelt(environ)
        return cls(
            home=_home(environ),
            isa=environ.get("TREADLE_ISA", "").strip(),
            kv_type=environ.get("TREADLE_KV_TYPE", "").strip(),
            memory_bytes=_bytes(environ, "TREADLE_MEMORY"),
            ram_cache_bytes=_bytes(environ, "TREADLE_RAM_CACHE") or 0,
            disk_cache_bytes=_bytes(environ, "TREADLE_DISK_CACHE") or 0,
        )


def parse_bytes(name: str, value: int | str) -> int:
    """Return a size as bytes: a count, or text such as "6GiB", "1.5 GB" or "800M"; a bare letter is a power of 1024.

    Raises UsageError, which names the argument or variable ``name``, for anything else.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match and not (match[3] and not match[2]):
            is_decimal = match[2] and match[4] and not match[3]
            base = 1000 if is_decimal else 1024
            return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
    elif not isinstance(value, bool) and value >= 0:
        return value
    raise UsageError(f"{name}: expected a size such as 6GiB or 800MB, found {value!r:.40}")


def _bytes(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "").strip()
    return parse_bytes(name, value) if value else None


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    # Names that resemble none of ours may belong to other programs or to a newer release, so only near misses count.
    for name in environ:
        if not name.startswith("TREADLE_") or name in _VARIABLES:
            continue
        near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.85)
        if near:
            raise UsageError(
                f"environment variable {name} is set, but Treadle does not know it",
                hint=f"did you mean {near[0]} ({_VARIABLES[near[0]]})?",
            )


def _home(environ: Mapping[str, str]) -> Path:
    value = environ.get("TREADLE_HOME")
    if value is None:
        return platformdirs.user_cache_path("treadle", appauthor=False)
    if not value.strip():
        raise UsageError(
            "TREADLE_HOME: expected a folder, found an empty value", hint="unset TREADLE_HOME or give it a folder"
        )
    home = Path(value).expanduser().absolute()
    if home.exists() and not home.is_dir():
        raise UsageError(f"TREADLE_HOME: expected a folder, found a file: {home}")
    return home

"""Settings that come from TREADLE_* environment variables.

What a setting means is left to the room that uses it; command-line options win over all of them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from treadle.errors import UsageError

__all__ = ["Settings"]

_VARIABLES = {
    "TREADLE_HOME": "a folder for models and caches",
    "TREADLE_ISA": "the name of a kernel table",
}


@dataclass(frozen=True)
class Settings:
    """Where Treadle keeps its files, and which kernels it must use."""

    home: Path
    isa: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the environment and refuse values, and misspelt names, that would be ignored in silence."""
        _refuse_misspelt(environ)
        return cls(home=_home(environ), isa=environ.get("TREADLE_ISA", "").strip())


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

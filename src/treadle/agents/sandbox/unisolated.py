"""Starts programs on the bare machine: what ``is_unsafe`` asks for, and nothing else does.

Leaves to others: starting them isolated (``bubblewrap``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from treadle.agents.sandbox.launch import INSIDE, Launch, interpreter_folder, python_command

__all__ = ["Unisolated"]

# What a program needs to find others and to show text; no keys and tokens of the user.
PASSED_ON = ("LANG", "LC_ALL", "PATH", "TZ")


class Unisolated:
    """Programs as this user, on all the files and networks that are theirs."""

    has_namespace = False
    loose_folders: Sequence[str] = ()

    def __init__(
        self, workspace: Path, tmp: Path, *, environment: Mapping[str, str], packages: Sequence[Path] = ()
    ) -> None:
        self._workspace = workspace
        self._packages = packages
        inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._environment = {
            **inherited,
            "PATH": f"{interpreter_folder()}/bin:{inherited.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
            "HOME": str(tmp),
            "TMPDIR": str(tmp),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            **environment,
        }

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, and what is missing and why, in words."""
        return ["no isolation, as asked: programs see and change what this user can, the network included"]

    def prepare(self, control: int, tmp_bytes: int) -> Launch:  # noqa: ARG002 - the folder has no fixed size
        """Return how to start a process that waits for a request on ``control``."""
        settings = json.dumps({"packages": [str(folder) for folder in self._packages]})
        return Launch(python_command(INSIDE.parent, "alone", control, settings), self._environment, self._workspace)

"""Starts programs among the others of this machine: behind the walls that a process builds around itself, or bare.

Bare is what ``is_unsafe`` asks for, and nothing else does. Leaves to others: programs in namespaces of their own
(``bubblewrap``), and the walls (``landlock``, ``seccomp``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.sandbox.bubblewrap import SETTINGS, SYSTEM_FOLDERS
from treadle.agents.sandbox.launch import INSIDE, Launch, interpreter_folder, python_command

__all__ = ["Unisolated", "Walls", "landlock_walls"]

# What a program needs to find others and to show text; no keys and tokens of the user.
PASSED_ON = ("LANG", "LC_ALL", "PATH", "TZ")
DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")


@dataclass(frozen=True)
class Walls:
    """What a process leaves itself: files and folders to read, those to change, and system calls."""

    readable: Sequence[Path]
    writable: Sequence[Path]
    filter_program: bytes

    def as_settings(self) -> Mapping[str, object]:
        """Return them as JSON has them."""
        return {
            "readable": [str(path) for path in self.readable],
            "writable": [str(path) for path in self.writable],
            "allow_tcp": False,
            "filter": self.filter_program.hex(),
        }


def landlock_walls(
    workspace: Path, tmp: Path, filter_program: bytes, *, is_writable: bool, packages: Sequence[Path]
) -> Walls:
    """Return the walls around what bubblewrap would show: the system, the interpreter, the workspace."""
    system = map(Path, ("/usr", *SYSTEM_FOLDERS, *SETTINGS))
    readable = [*system, interpreter_folder(), INSIDE, *packages, workspace]
    writable = [*map(Path, DEVICES), tmp, *([workspace] if is_writable else [])]
    return Walls(_existing(readable), _existing(writable), filter_program)


def _existing(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


class Unisolated:
    """Programs as this user; without walls, on all the files and networks that are theirs."""

    has_namespace = False
    loose_folders: Sequence[str] = ()

    def __init__(
        self,
        workspace: Path,
        tmp: Path,
        *,
        environment: Mapping[str, str],
        packages: Sequence[Path] = (),
        walls: Walls | None = None,
    ) -> None:
        self._workspace = workspace
        self._packages = packages
        self._walls = walls
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
        if self._walls is None:
            return ["no isolation, as asked: programs see and change what this user can, the network included"]
        return [
            "Landlock: the system to read, the workspace and a folder for temporary files to change, nothing else",
            "seccomp: a filter of system calls, without network, IPC and other processes",
            "no namespaces: processes are found by descent to be killed, and temporary files have no fixed size",
        ]

    def prepare(self, control: int, tmp_bytes: int) -> Launch:  # noqa: ARG002 - the folder has no fixed size
        """Return how to start a process that waits for a request on ``control``."""
        settings = {
            "packages": [str(folder) for folder in self._packages],
            "walls": None if self._walls is None else self._walls.as_settings(),
        }
        words = python_command(INSIDE.parent, "alone", control, json.dumps(settings))
        return Launch(words, self._environment, self._workspace)

"""What a way to isolate programs (bubblewrap, Landlock, none) gives to the one who starts them.

Leaves to others: the ways themselves (``bubblewrap``, ``unisolated``) and what runs in them (``worker``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["INSIDE", "Launch", "Launcher", "interpreter", "interpreter_folder", "passed_file"]

# The script that waits for a request in there.
INSIDE = Path(__file__).with_name("inside.py")


@dataclass(frozen=True)
class Launch:
    """A command line to start, with its environment and the descriptors it inherits.

    ``owned`` are those among them that are the launch's own, to be closed once it has started; ``root_report`` is
    where the process that holds all others of the call is told, as JSON with "child-pid", or None: it is the started
    one itself.
    """

    argv: Sequence[str]
    environment: dict[str, str]
    folder: Path
    inherited: Sequence[int] = ()
    owned: Sequence[int] = field(default=())
    root_report: int | None = None


class Launcher(Protocol):
    """A way to start a program isolated from the rest of the machine."""

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, and what is missing and why, in words."""

    def prepare(self, control: int, tmp_bytes: int) -> Launch:
        """Return what to start: the script ``INSIDE`` with ``control`` as its socket."""


def interpreter() -> Path:
    """Return the Python that this one is, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def interpreter_folder() -> Path:
    """Return the folder that the interpreter and its standard library are in."""
    return Path(sys.base_prefix).resolve()


def passed_file(content: bytes) -> int:
    """Return the descriptor of a file in memory, for a child to read from its start."""
    descriptor = os.memfd_create("treadle-sandbox", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

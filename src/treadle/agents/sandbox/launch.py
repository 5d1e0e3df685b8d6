"""What a way to isolate programs (bubblewrap, Landlock, none) gives to the one who starts them.

Leaves to others: the ways themselves (``bubblewrap``, ``unisolated``) and what is said to them (``worker``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from treadle.agents.sandbox.wires import FarEnds
from treadle.errors import SandboxUnavailableError

__all__ = ["INSIDE", "Launch", "Launcher", "interpreter", "interpreter_folder", "passed_file", "python_command"]

# The package that runs in there first.
INSIDE = Path(__file__).with_name("inside")


@dataclass(frozen=True)
class Launch:
    """A command line to start: its environment, its folder, and descriptors that it inherits and that end here."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    descriptors: Sequence[int] = ()

    def start(self, far: FarEnds) -> subprocess.Popen[bytes]:
        """Start it with these ends, which are closed here, as are the descriptors.

        To be called from a thread that lives as long as the sandbox shall: it dies with the thread. The start is a
        vfork, which takes the same time however big this process is. Raises SandboxUnavailableError.
        """
        try:
            return subprocess.Popen(
                self.argv,
                stdin=far.stdin,
                stdout=far.stdout,
                stderr=far.stderr,
                pass_fds=[far.control.fileno(), *self.descriptors],
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailableError(f"{self.argv[0]} could not be started: {error}") from error
        finally:
            far.close()
            for descriptor in self.descriptors:
                os.close(descriptor)


class Launcher(Protocol):
    """A way to start a program isolated from the rest of the machine."""

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, and what is missing and why, in words."""

    @property
    def has_namespace(self) -> bool:
        """Return whether the death of the first process is the death of all."""

    @property
    def loose_folders(self) -> Sequence[str]:
        """Return the folders in memory whose number of files nothing bounds."""

    def prepare(self, control: int, tmp_bytes: int) -> Launch:
        """Return how to start a process that waits for a request on ``control``."""


def interpreter() -> Path:
    """Return the Python that this one is, outside of any virtual environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def interpreter_folder() -> Path:
    """Return the folder that the interpreter and its standard library are in."""
    return Path(sys.base_prefix).resolve()


def python_command(folder: Path, role: str, control: int, settings: str) -> list[str]:
    """Return the command line that plays a role of the package ``inside``, found in ``folder``."""
    script = f"import sys; sys.path.insert(0, {str(folder)!r}); from inside.main import main; main({str(folder)!r})"
    return [str(interpreter()), "-I", "-S", "-B", "-X", "utf8", "-c", script, role, str(control), settings]


def passed_file(content: bytes) -> int:
    """Return the descriptor of a file in memory, for a child to read from its start."""
    descriptor = os.memfd_create("treadle-sandbox", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

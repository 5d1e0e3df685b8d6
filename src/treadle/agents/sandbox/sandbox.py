"""Runs programs and Python code that nobody has read, each call in a sandbox of its own.

Leaves to others: what isolates a call (``bubblewrap``), what it may use (``limits``), its course (``worker``).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.sandbox.bubblewrap import Bubblewrap
from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.worker import Request, Worker
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.agents.sandbox.launch import Launcher

__all__ = ["Sandbox"]

MAX_CODE_BYTES = 1 << 20


class Sandbox:
    """A workspace, and programs that see little more of the machine than it; see ``open``."""

    def __init__(
        self, launcher: Launcher, workspace: Path, limits: SandboxLimits, gate: ToolGate, *, owns_workspace: bool
    ) -> None:
        self._launcher = launcher
        self._workspace = workspace
        self._limits = limits
        self._gate = gate
        self._owns_workspace = owns_workspace

    @classmethod
    async def open(
        cls,
        *,
        workspace: Path | None = None,
        is_writable: bool = True,
        limits: SandboxLimits = SandboxLimits(),  # noqa: B008
        has_network: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        gate: ToolGate = OpenGate(),  # noqa: B008
        is_unsafe: bool = False,  # noqa: ARG003
    ) -> Sandbox:
        """Open a sandbox. Raises SandboxUnavailableError if this machine cannot isolate programs."""
        folder = Path(tempfile.mkdtemp(prefix="treadle-workspace-")) if workspace is None else workspace.resolve()
        launcher = Bubblewrap(
            folder, is_writable=is_writable, has_network=has_network, environment=environment, filter_program=None
        )
        return cls(launcher, folder, limits, gate, owns_workspace=workspace is None)

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, in words; what could not be had, and why."""
        return self._launcher.layers

    @property
    def workspace(self) -> Path:
        """Return the folder that programs see as /workspace."""
        return self._workspace

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
        """Run a program in the workspace and return how it ended."""
        if not argv:
            raise UsageError("there is no program to run: argv is empty")
        return await self._run(Request(argv=list(argv), stdin=stdin), "run", limits or self._limits)

    async def run_python(self, code: str, *, limits: SandboxLimits | None = None) -> Outcome:
        """Run Python code in the workspace and return how it ended; a last expression's value is printed."""
        if len(code.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise UsageError(f"the code has {len(code)} characters, the most is {MAX_CODE_BYTES} bytes")
        return await self._run(Request(code=code), "run_python", limits or self._limits)

    async def _run(self, request: Request, name: str, limits: SandboxLimits) -> Outcome:
        async with self._gate.enter("cpu", name) as share:
            worker = await Worker.start(self._launcher, limits)
            return await worker.run(request, limits, share)

    async def close(self) -> None:
        """End what still runs, and remove the workspace if it is the sandbox's own."""
        if self._owns_workspace:
            shutil.rmtree(self._workspace, ignore_errors=True)

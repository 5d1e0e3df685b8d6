"""A sandbox to break out of, opened and closed around each call.

What is tried in it is the tests', what became of the machine is looked at by ``host``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import Outcome
from treadle.agents.sandbox.sandbox import Sandbox

T = TypeVar("T")


class Prison:
    """Opens a sandbox over ``workspace`` for each call, and closes it again."""

    def __init__(self, workspace: Path, mark: str) -> None:
        self.workspace = workspace
        self.mark = mark

    def within(
        self, use: Callable[[Sandbox], Awaitable[T]], *, is_writable: bool = True, has_network: bool = False
    ) -> T:
        """What ``use`` makes of an open sandbox."""

        async def opened() -> T:
            sandbox = await Sandbox.open(
                workspace=self.workspace,
                is_writable=is_writable,
                has_network=has_network,
                environment={"TREADLE_ESCAPE_MARK": self.mark},
            )
            try:
                return await use(sandbox)
            finally:
                await sandbox.close()

        return asyncio.run(opened())

    def run(self, *argv: str, stdin: bytes = b"", limits: SandboxLimits | None = None) -> Outcome:
        return self.within(lambda sandbox: sandbox.run(argv, stdin=stdin, limits=limits or amply()))

    def shell(self, script: str, limits: SandboxLimits | None = None) -> Outcome:
        return self.run("/bin/sh", "-c", script, limits=limits)

    def python(self, code: str, limits: SandboxLimits | None = None) -> Outcome:
        return self.within(lambda sandbox: sandbox.run_python(code, limits=limits or amply()))


def amply(**limits: float) -> SandboxLimits:
    """Limits with time enough for the slowest machine, but for those that are named."""
    return SandboxLimits(**{"wall_seconds": 1200.0, "cpu_seconds": 1000.0, **limits})  # type: ignore[arg-type]

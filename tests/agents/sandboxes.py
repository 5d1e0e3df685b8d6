"""A sandbox for a test, or the reason why this machine has none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from treadle.agents.sandbox import Sandbox, SandboxLimits
from treadle.errors import SandboxUnavailableError

T = TypeVar("T")

# No test may depend on the load of the machine.
AMPLE = SandboxLimits(wall_seconds=600, cpu_seconds=300)


def within(use: Callable[[Sandbox], Awaitable[T]], **settings: Any) -> T:
    """What ``use`` makes of an open sandbox; skips the test where there can be none."""

    async def opened() -> T:
        try:
            sandbox = await Sandbox.open(**{"limits": AMPLE, **settings})
        except SandboxUnavailableError as error:
            pytest.skip(f"no sandbox on this machine: {error}")
        try:
            return await use(sandbox)
        finally:
            await sandbox.close()

    return asyncio.run(opened())

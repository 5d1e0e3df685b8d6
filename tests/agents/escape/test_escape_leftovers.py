"""What many calls leave behind, while the sandbox is open and after it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from host import Host, descendants, own_groups, zombies
from prison import Prison, amply

from patience import PATIENCE_SECONDS
from treadle.agents.sandbox.sandbox import Sandbox

# A program that leaves what it can: an orphan, a zombie, files of its own, memory that no process holds.
LITTER = """
import os, time
for name in ("/tmp/left", "/dev/shm/left"):
    open(name, "w").close()
if os.fork() == 0:
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("done")
"""


# Sandboxes that are held ready, and those that are just being made or removed.
HELD = 40


def files_and_groups(host: Host, workspace: Path) -> int:
    # Unlike a glob, a walk goes on when somebody removes a folder under it.
    walks = (os.walk(folder) for folder in (workspace, host.temporary))
    return len(own_groups()) + sum(len(folders) + len(files) for walk in walks for _, folders, files in walk)


async def call_often(sandbox: Sandbox, host: Host, workspace: Path, num_calls: int) -> None:
    async def call(number: int) -> None:
        if number % 2:
            outcome = await sandbox.run_python(LITTER, limits=amply())
        else:
            outcome = await sandbox.run(
                ["/bin/sh", "-c", "setsid sleep 1000 & touch /tmp/left; echo done"], limits=amply()
            )
        assert (outcome.status, outcome.stdout.text) == ("exited", "done\n")

    async def settle(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until
            await asyncio.sleep(0.02)

    for number in range(0, num_calls, 4):
        await asyncio.gather(*(call(number + more) for more in range(4)))
    await settle(lambda: not zombies())
    await settle(lambda: len(descendants()) <= HELD)
    await settle(lambda: files_and_groups(host, workspace) <= HELD)
    assert len(host.open_files()) <= 10 * HELD


@pytest.mark.parametrize("num_calls", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_calls_leave_nothing_but_files_in_the_workspace(prison: Prison, host: Host, num_calls: int) -> None:
    prison.within(lambda sandbox: call_often(sandbox, host, prison.workspace, num_calls))
    assert list(prison.workspace.iterdir()) == []

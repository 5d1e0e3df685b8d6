"""Work in a child process: how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from treadle.agents.gate import Work
from treadle.agents.tools.child import ChildLimits, run_child
from treadle.errors import ToolError
from treadle.hardware.cpu_share import CpuShare


def run(what: str, **arguments: Any) -> str:
    return asyncio.run(run_child("child_work", {"what": what}, name="count", **arguments)).text


def test_gives_what_the_work_gives() -> None:
    assert run("sums") == "did sums"


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("refuse", "it is not there\nhint: look elsewhere"),
        ("eat", "count needed more than 512 MiB of memory"),
        ("crash", "count failed: RuntimeError: broken"),
        ("die", "count failed: its process ended with -6"),
    ],
)
def test_every_bad_end_is_told(what: str, problem: str) -> None:
    with pytest.raises(ToolError) as caught:
        run(what, limits=ChildLimits(memory_bytes=512 << 20))
    assert problem in str(caught.value)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_child_that_is_no_longer_wanted_is_killed(is_cancelled: bool) -> None:
    reader, writer = os.pipe()

    async def start() -> None:
        limits = ChildLimits(wall_seconds=3600 if is_cancelled else 1)
        work = run_child("child_work", {"what": "wait", "fd": writer}, name="count", fds=[writer], limits=limits)
        task = asyncio.create_task(work)
        if is_cancelled:
            assert await asyncio.to_thread(os.read, reader, 20)
            task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError if is_cancelled else ToolError):
        asyncio.run(start())
    os.close(writer)
    while os.read(reader, 20):  # ends once nobody can write any more: the child is dead
        pass
    os.close(reader)


def test_passes_the_gate_and_keeps_to_its_share() -> None:
    class Gate:
        entered: tuple[str, str]

        def enter(self, work: Work, name: str) -> AbstractAsyncContextManager[CpuShare]:
            self.entered = (work, name)
            return nullcontext(CpuShare(frozenset([first]), nice=3))

    first = min(os.sched_getaffinity(0))
    gate = Gate()
    assert run("share", gate=gate) == f"{{{first}}} {os.nice(0) + 3}"
    assert gate.entered == ("cpu", "count")

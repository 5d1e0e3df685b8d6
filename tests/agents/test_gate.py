"""The gate that lets everything through."""

from __future__ import annotations

import asyncio

from patience import PATIENCE_SECONDS
from treadle.agents.gate import OpenGate, ToolGate, Work
from treadle.hardware.cpu_share import CpuShare


def test_an_open_gate_lets_all_in_together() -> None:
    gate: ToolGate = OpenGate()
    inside = 0

    async def enter(work: Work, all_in: asyncio.Event) -> CpuShare:
        nonlocal inside
        async with gate.enter(work, "sum") as share:
            inside += 1
            if inside == 4:
                all_in.set()
            await all_in.wait()
            return share

    async def run() -> list[CpuShare]:
        all_in = asyncio.Event()
        return list(await asyncio.gather(*(enter(work, all_in) for work in ("cpu", "cpu", "io", "cpu"))))

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS)) == [CpuShare()] * 4

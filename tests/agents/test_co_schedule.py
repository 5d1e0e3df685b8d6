"""The gate that lets tools and a model share cores: who waits for whom, which cores, what the engine is told."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from patience import PATIENCE_SECONDS
from treadle.agents.class_cap import ClassCap
from treadle.agents.co_schedule import CoSchedule
from treadle.agents.gate import ToolGate, in_task, take_turn
from treadle.engine.shared_cores import SharedCores
from treadle.hardware.cpu_share import CpuShare


class Scene:
    """An engine with cores, a gate, and tools that run until the test ends them."""

    def __init__(self, num_cores: int, threads: list[int] | None = None, **settings: Any) -> None:
        order = [frozenset({cpu}) for cpu in reversed(range(num_cores))]
        self.cores = SharedCores(order, list(range(num_cores)) if threads is None else threads)
        self.gate: ToolGate = CoSchedule(SimpleNamespace(cores=self.cores), **settings)  # type: ignore[arg-type]
        self.shares: dict[str, CpuShare] = {}  # of those that run, in the order of their start
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def arrive(self, *names: str) -> None:
        """Tools come, each of the kind that its first letter names; "i" is for input and output."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
            await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks.pop(name)
        await settle()

    async def cancel(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await settle()

    async def ask(self, num_requests: int) -> None:
        """The model is asked for so many answers at once."""
        await asyncio.to_thread(self.cores.note_requests, num_requests)
        await settle()

    @property
    def running(self) -> list[str]:
        return list(self.shares)

    async def _run(self, name: str) -> None:
        async with self.gate.enter("io" if name[0] == "i" else "cpu", name[0]) as share:
            self.shares[name] = share
            try:
                await self._ends[name].wait()
            finally:
                del self.shares[name]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Clock:
    """Takes the place of the loop's time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


def play(act: Callable[[], Awaitable[None]]) -> None:
    async def scene() -> None:
        await act()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_SECONDS))


def test_beside_a_busy_model_tools_have_half_of_the_cores_in_the_order_of_arrival() -> None:
    async def act() -> None:
        scene = Scene(4)
        await scene.ask(9)
        await scene.arrive("a1", "a2", "a3", "b4")
        assert scene.running == ["a1", "a2"]
        assert scene.cores.num_lent == 2
        await scene.end("a1")
        assert scene.running == ["a2", "a3"]
        await scene.end("a2", "a3")
        assert scene.running == ["b4"]
        assert scene.cores.num_lent == 1
        await scene.end("b4")
        assert scene.cores.num_lent == 0

    play(act)


def test_while_the_model_is_idle_tools_have_all_cores() -> None:
    async def act() -> None:
        scene = Scene(2)
        await scene.arrive("a1", "a2", "a3")
        assert scene.running == ["a1", "a2"]
        await scene.ask(9)
        await scene.end("a1")
        assert scene.running == ["a2"]
        assert scene.cores.num_lent == 1
        await scene.ask(0)
        assert scene.running == ["a2", "a3"]
        await scene.end("a2", "a3")

    play(act)


def test_the_model_pauses_while_few_streams_are_ready_and_tools_can_use_all_cores() -> None:
    async def act() -> None:
        scene = Scene(2)
        await scene.ask(1)
        await scene.arrive("a1")
        assert scene.cores.held_seconds() == 0
        await scene.arrive("a2")
        assert scene.running == ["a1", "a2"]
        assert scene.cores.held_seconds() > 0
        await scene.arrive("a3", "a4")
        await scene.ask(4)  # as many as tools
        assert scene.cores.held_seconds() == 0
        await scene.end("a1")
        assert scene.running == ["a2"]
        await scene.ask(2)
        assert scene.cores.held_seconds() > 0
        assert scene.running == ["a2", "a3"]
        await scene.end("a2", "a3", "a4")
        assert scene.cores.held_seconds() == 0

    play(act)


def test_the_model_pauses_not_for_long_nor_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        clock = Clock()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", clock.time)
        scene = Scene(2)
        await scene.ask(1)
        await scene.arrive("a1", "a2", "a3", "a4", "a5")
        assert scene.cores.held_seconds() > 0
        clock.now += 2.0
        await scene.end("a1")
        assert scene.cores.held_seconds() == 0
        assert scene.running == ["a2"]
        clock.now += 1.9
        await scene.end("a2")
        assert scene.running == ["a3"]
        clock.now += 0.1
        await scene.end("a3")
        assert scene.running == ["a4", "a5"]
        assert scene.cores.held_seconds() > 0
        await scene.end("a4", "a5")

    play(act)


def test_work_of_older_tasks_goes_first() -> None:
    async def act() -> None:
        scene = Scene(2)
        await scene.ask(9)
        await scene.arrive("a1")
        with in_task():
            old = contextvars.copy_context()
        with in_task():
            await scene.arrive("b2")
        await old.run(asyncio.create_task, scene.arrive("a3"))
        await scene.end("a1")
        assert scene.running == ["a3"]
        await scene.end("a3")
        assert scene.running == ["b2"]
        await scene.end("b2")

    play(act)


def test_tasks_begin_in_turn_when_there_is_room() -> None:
    async def act() -> None:
        schedule = CoSchedule(max_tasks=2)
        began: list[int] = []
        ends = [asyncio.Event() for _ in range(3)]

        async def work(number: int) -> int:
            async with schedule.task():
                began.append(number)
                await ends[number].wait()
                return take_turn()

        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await settle()
        assert began == [0, 1]
        ends[1].set()
        await settle()
        assert began == [0, 1, 2]
        for end in ends:
            end.set()
        turns = await asyncio.gather(*tasks)
        assert list(turns) == sorted(turns)

    play(act)


def test_one_core_is_shared() -> None:
    async def act() -> None:
        scene = Scene(1)
        await scene.ask(9)
        await scene.arrive("a1", "a2")
        assert scene.running == ["a1"]
        assert scene.shares["a1"].nice > 0
        await scene.end("a1", "a2")

    play(act)


def test_cores_that_the_model_never_uses_belong_to_tools() -> None:
    async def act() -> None:
        scene = Scene(4, threads=[0])
        await scene.ask(9)
        await scene.arrive("a1", "a2", "a3", "a4")
        assert scene.running == ["a1", "a2", "a3"]
        assert scene.cores.kept([0]) == [0]
        await scene.end("a1", "a2", "a3", "a4")

    play(act)


def test_each_has_a_core_of_its_own_and_may_move_to_those_before() -> None:
    async def act() -> None:
        scene = Scene(4)
        await scene.arrive("a1", "a2", "a3")
        assert [share.cpus for share in scene.shares.values()] == [{3}, {3, 2}, {3, 2, 1}]
        await scene.end("a1")
        await scene.arrive("a4")
        assert scene.shares["a4"].cpus == {3}
        await scene.end("a2", "a3", "a4")

    play(act)


def test_nobody_is_placed_where_the_system_places_the_threads() -> None:
    async def act() -> None:
        scene = Scene(4, threads=[-1, -1])
        await scene.arrive("a1")
        assert scene.shares["a1"].cpus is None
        await scene.end("a1")

    play(act)


def test_waiting_for_others_needs_no_core() -> None:
    async def act() -> None:
        scene = Scene(2)
        await scene.ask(9)
        await scene.arrive("a1", "i2", "i3", "i4")
        assert scene.running == ["a1", "i2", "i3", "i4"]
        assert scene.shares["i2"] == CpuShare()
        assert scene.cores.num_lent == 1
        await scene.end("a1", "i2", "i3", "i4")

    play(act)


def test_a_kind_that_gains_nothing_together_runs_one_by_one() -> None:
    async def act() -> None:
        scene = Scene(2)
        scene.gate = gate = CoSchedule(SimpleNamespace(cores=scene.cores))  # type: ignore[arg-type]
        gate.caps["a"] = ClassCap(1)
        await scene.arrive("a1", "a2", "b3")
        assert scene.running == ["a1", "b3"]
        await scene.end("a1", "b3", "a2")

    play(act)


@pytest.mark.parametrize("who", ["a1", "a2"])
def test_cancelled_work_makes_room(who: str) -> None:
    async def act() -> None:
        scene = Scene(2)
        await scene.ask(9)
        await scene.arrive("a1", "a2", "a3")
        await scene.cancel(who)
        left = [name for name in ("a1", "a2", "a3") if name != who]
        assert scene.running == left[:1]
        await scene.end(*left)
        assert scene.running == []
        assert scene.cores.num_lent == 0

    play(act)


def test_a_fixed_schedule_lets_all_in_and_tells_nobody() -> None:
    async def act() -> None:
        scene = Scene(2, policy="fixed")
        await scene.ask(9)
        await scene.arrive("a1", "a2", "a3")
        assert scene.running == ["a1", "a2", "a3"]
        assert set(scene.shares.values()) == {CpuShare()}
        assert scene.cores.num_lent == 0
        await scene.end("a1", "a2", "a3")

    play(act)


def test_an_engine_elsewhere_leaves_a_core_for_each() -> None:
    async def act() -> None:
        gate = CoSchedule(SimpleNamespace(cores=None))  # type: ignore[arg-type]
        async with gate.enter("cpu", "a") as share:
            assert share.cpus is None

    play(act)


def test_a_gate_may_be_used_by_one_loop_after_the_other() -> None:
    scene = Scene(2)

    async def act() -> None:
        await scene.arrive("a1")
        await scene.end("a1")

    play(act)
    scene.cores.note_requests(9)
    play(act)
    assert scene.cores.num_lent == 0

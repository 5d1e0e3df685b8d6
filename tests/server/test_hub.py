"""Models by name: shared loads, failures that heal, room made for others, names for the same file, memory for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from treadle.engine.contract import AsyncEngine
from treadle.errors import CapacityError, ModelFileError, UsageError
from treadle.server.errors import ApiError
from treadle.server.hub import ModelHub
from treadle.server.memory_share import share_memory


class FakeEngine:
    def __init__(self, source: str, memory_bytes: int = 0) -> None:
        self.source = source
        self.observe: Any = None
        self.is_closed = False
        self.report = SimpleNamespace(plan=SimpleNamespace(memory=SimpleNamespace(available_bytes=memory_bytes)))

    async def close(self) -> None:
        self.is_closed = True


class Loader:
    """Loads one engine at a time, as soon as ``gate`` is open; a source in ``failures`` raises."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: dict[str, Exception] = {}
        self.engines: list[FakeEngine] = []
        self.num_room: int | None = None

    async def __call__(self, source: str) -> AsyncEngine:
        await self.gate.wait()
        if source in self.failures:
            raise self.failures[source]
        if self.num_room is not None and sum(not engine.is_closed for engine in self.engines) >= self.num_room:
            raise CapacityError("no room")
        self.engines.append(FakeEngine(source))
        return cast(AsyncEngine, self.engines[-1])


async def name_of(hub: ModelHub, name: str) -> str:
    async with hub.use(name) as held:
        return held.name


def run(test: Callable[[Loader], Any]) -> None:
    async def main() -> None:
        await test(Loader())

    asyncio.run(main())


def test_all_who_wait_share_one_load_which_goes_on_without_them() -> None:
    async def check(load: Loader) -> None:
        hub = ModelHub({"a": "file"}, load)
        load.gate.clear()
        first, *others = [asyncio.create_task(name_of(hub, "a")) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        load.gate.set()
        assert await asyncio.gather(*others) == ["a"] * 4
        assert len(load.engines) == 1
        await hub.close()
        assert load.engines[0].is_closed

    run(check)


@pytest.mark.parametrize("error", [UsageError("no such file", hint="look"), ModelFileError("broken")])
def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_later(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(load: Loader) -> None:
        hub = ModelHub({"a": "file"}, load)
        load.failures["file"] = error
        found = await asyncio.gather(*(name_of(hub, "a") for _ in range(3)), return_exceptions=True)
        for each in found:
            assert isinstance(each, ApiError)
            assert (each.status, each.code) == (503, "model_unavailable")
            assert str(error) in each.message
        assert hub.models["a"].is_broken
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        load.failures.clear()
        assert await name_of(hub, "a") == "a"
        assert not hub.models["a"].is_broken

    run(check)


def test_closing_ends_a_load() -> None:
    async def check(load: Loader) -> None:
        hub = ModelHub({"a": "file"}, load)
        load.gate.clear()
        waiting = asyncio.create_task(name_of(hub, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await hub.close()
        assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None
        assert load.engines == []

    run(check)


def test_the_one_unused_for_longest_makes_room_and_those_in_use_stay() -> None:
    async def check(load: Loader) -> None:
        load.num_room = 2
        hub = ModelHub({name: f"file {name}" for name in "abc"}, load)
        for name in ("a", "b", "a"):
            await name_of(hub, name)
        assert await name_of(hub, "c") == "c"
        assert [model.name for model in hub.loaded] == ["a", "c"]
        async with hub.use("a"), hub.use("c"):
            with pytest.raises(CapacityError):
                await name_of(hub, "b")
        assert not hub.models["b"].is_broken
        assert await name_of(hub, "b") == "b"

    run(check)


def test_a_model_that_was_just_loaded_is_not_idle() -> None:
    async def check(load: Loader) -> None:
        now = 1e6
        hub = ModelHub({"a": "file"}, load, idle_unload=600, clock=lambda: now)
        await hub.load_default()
        await hub.unload_idle()
        assert [model.name for model in hub.loaded] == ["a"]
        now += 601
        await hub.unload_idle()
        assert hub.loaded == []
        assert not hub.default.is_broken

    run(check)


def test_two_names_of_a_file_are_one_model() -> None:
    async def check(load: Loader) -> None:
        hub = ModelHub({"a": "file", "b": "other", "gpt": "file"}, load)
        assert await name_of(hub, "gpt") == "gpt"
        assert await name_of(hub, "a") == "a"
        assert len(load.engines) == 1
        assert list(hub.models) == ["a", "b"]
        with pytest.raises(ApiError, match="a, b, gpt"):
            hub.find("nope")

    run(check)


def test_memory_is_for_all_models_together() -> None:
    async def memory_for(needed: int, *taken: int, source: str = "file", memory: int | None = 100) -> Any:
        engines = [cast(AsyncEngine, FakeEngine("x", each)) for each in taken]
        options = await share_memory(
            source, {"memory": memory, "slowdown": 2.0}, engines, usual_bytes=lambda *_, **__: needed
        )
        assert options.get("slowdown") == 2.0
        return options["memory"]

    assert asyncio.run(memory_for(30)) == 30
    assert asyncio.run(memory_for(300)) == 100  # alone it takes what there is, or says what it needs
    assert asyncio.run(memory_for(30, 30, 40)) == 30
    with pytest.raises(CapacityError, match="file needs"):
        asyncio.run(memory_for(31, 30, 40))
    assert asyncio.run(memory_for(31, 30, 40, source="http://127.0.0.1:1/v1")) == 100
    assert asyncio.run(memory_for(31, 30, 40, memory=None)) is None

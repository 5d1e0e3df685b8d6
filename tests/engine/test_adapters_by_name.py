"""Adapters by name: loading, refusing, letting go, and their part in the identity of KV blocks; over fakes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import FakeAdapter, FakeModelRunner
from treadle.engine import llm as llm_module
from treadle.engine.adapters import Adapters
from treadle.engine.async_llm import AsyncLLM
from treadle.engine.llm import LLM
from treadle.engine.load import LoadedModel
from treadle.engine.sampling import SamplingParams
from treadle.errors import CapacityError, ModelFileError, UsageError

SHORT = SamplingParams(temperature=0, max_tokens=2)
LONG = SamplingParams(temperature=0, max_tokens=100)
PROMPT = "x" * 100  # three full blocks


@pytest.fixture
def roomy(loaded: LoadedModel) -> LoadedModel:
    """The fake model with 1000 bytes for adapters."""
    plan = loaded.report.plan
    memory = replace(plan.memory, available_bytes=1000)
    return replace(loaded, report=replace(loaded.report, plan=replace(plan, memory=memory)))


@pytest.fixture
def llm(roomy: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(llm_module, "load_model", lambda *_, **__: roomy)
    with LLM("fake") as llm:
        yield llm


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"a" * 50)
    return path


def used(llm: LLM, adapter: str | None) -> int:
    return llm.generate(PROMPT, SHORT, adapter=adapter).cached_tokens


def test_loads_lists_and_unloads(llm: LLM, path: Path) -> None:
    info = llm.load_adapter("law", path, 0.5)
    assert (info.name, info.path, info.scale, info.num_bytes) == ("law", path, 0.5, 100)
    assert llm.adapters == [info]
    llm.unload_adapter("law")
    assert llm.adapters == []
    with pytest.raises(UsageError, match=r"no adapter 'law'; loaded: none"):
        llm.unload_adapter("law")


def test_a_request_names_an_adapter_that_must_be_there(llm: LLM, path: Path) -> None:
    llm.load_adapter("law", path)
    assert llm.generate("hello", SHORT, adapter="law").finish_reason == "length"
    assert llm.chat([{"role": "user", "content": "hello"}], SHORT, adapter="law").finish_reason == "length"
    with llm.stream("hello", SHORT, adapter="law") as stream:
        assert [chunk.finish_reason for chunk in stream] == [None, "length"]
    with pytest.raises(UsageError, match=r"no adapter 'medicine'; loaded: law"):
        llm.generate("hello", SHORT, adapter="medicine")


def test_blocks_belong_to_one_adapter(llm: LLM, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.gguf"
    other.write_bytes(b"b" * 50)
    llm.load_adapter("law", path)
    llm.load_adapter("medicine", other)
    llm.load_adapter("weak law", path, 0.5)
    names = [None, "law", "medicine", "weak law"]
    assert [used(llm, name) for name in names] == [0, 0, 0, 0]
    # The pool holds three blocks of each of the last three.
    assert used(llm, "weak law") == used(llm, "medicine") == 96


def test_blocks_outlive_their_adapter_and_its_name(llm: LLM, path: Path, tmp_path: Path) -> None:
    llm.load_adapter("law", path)
    assert used(llm, "law") == 0
    llm.unload_adapter("law")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    llm.load_adapter("statute", copy)
    assert used(llm, "statute") == 96
    llm.unload_adapter("statute")
    copy.write_bytes(b"c" * 50)
    llm.load_adapter("statute", copy)
    assert used(llm, "statute") == 0


def test_an_unloaded_adapter_serves_those_that_run(llm: LLM, path: Path, runner: FakeModelRunner) -> None:
    llm.load_adapter("law", path)
    runner.is_held = True
    stream = llm.stream("hello", LONG, adapter="law")
    llm.unload_adapter("law")
    with pytest.raises(UsageError):
        llm.generate("hello", SHORT, adapter="law")
    assert len(runner.adapters) == 1
    runner.is_held = False
    runner.may_step.release(1000)
    assert list(stream)[-1].finish_reason == "length"
    llm.generate("z", SHORT)  # the thread has let go of the request before it
    gc.collect()
    assert len(runner.adapters) == 0


def test_a_cancelled_request_lets_go(llm: LLM, path: Path, runner: FakeModelRunner) -> None:
    llm.load_adapter("law", path)
    stream = llm.stream("hello", LONG, adapter="law")
    next(stream)
    llm.unload_adapter("law")
    stream.close()
    llm.generate("z", SHORT)
    gc.collect()
    assert len(runner.adapters) == 0


def test_closing_lets_go(llm: LLM, path: Path, runner: FakeModelRunner) -> None:
    llm.load_adapter("law", path)
    llm.close()
    gc.collect()
    assert len(runner.adapters) == 0
    with pytest.raises(UsageError, match="closed"):
        llm.load_adapter("law", path)


def read(_: Path, __: float) -> FakeAdapter:
    return FakeAdapter()


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [("", 1.0, "name"), ("a", float("nan"), "scale"), ("a", 10**400, "scale"), ("a", True, "scale")],
)
def test_refuses(path: Path, name: str, scale: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Adapters(read, max_num=1, max_bytes=1000).load(name, path, scale)


def test_refuses_a_name_twice_and_a_file_that_is_none(path: Path, tmp_path: Path) -> None:
    adapters = Adapters(read, max_num=3, max_bytes=1000)
    adapters.load("law", path)
    with pytest.raises(UsageError, match="loaded already"):
        adapters.load("law", path)
    with pytest.raises(UsageError, match="No such file"):
        adapters.load("b", tmp_path / "missing.gguf")


def test_limits_the_number(path: Path) -> None:
    adapters = Adapters(read, max_num=2, max_bytes=1000)
    held = [adapters.load(name, path) and adapters.find(name) for name in ("a", "b")]
    adapters.unload("a")
    with pytest.raises(CapacityError, match="2 adapters"):  # one of them is still in use
        adapters.load("c", path)
    held.clear()
    adapters.load("c", path)
    assert [info.name for info in adapters.infos] == ["b", "c"]


def test_limits_the_memory(path: Path) -> None:
    adapters = Adapters(read, max_num=9, max_bytes=249)
    for name in ("a", "b"):
        adapters.load(name, path)
    for _ in range(3):  # a failure takes nothing
        with pytest.raises(CapacityError, match="adapters may take"):
            adapters.load("c", path)
    adapters.unload("a")
    adapters.load("c", path)


def test_a_file_that_cannot_be_read_takes_nothing(path: Path) -> None:
    def fail(_: Path, __: float) -> FakeAdapter:
        raise ModelFileError("broken")

    adapters = Adapters(fail, max_num=1, max_bytes=50)
    for _ in range(3):
        with pytest.raises(ModelFileError):
            adapters.load("a", path)
    assert adapters.infos == []


def test_a_file_that_changes_while_it_is_read(path: Path) -> None:
    def write(_: Path, __: float) -> FakeAdapter:
        path.write_bytes(b"new" * 50)
        return FakeAdapter()

    with pytest.raises(UsageError, match="changes while"):
        Adapters(write, max_num=1, max_bytes=1000).load("a", path)


def test_in_an_event_loop(roomy: LoadedModel, path: Path) -> None:
    async def ask() -> None:
        async with AsyncLLM(roomy) as llm:
            info = await llm.load_adapter("law", path)
            assert llm.adapters == [info]
            for stream in (llm.generate("hi", SHORT, adapter="law"), await llm.answer("hi", SHORT, adapter="law")):
                assert [chunk.finish_reason async for chunk in stream][-1] == "length"
            await llm.unload_adapter("law")
            with pytest.raises(UsageError, match="no adapter"):
                await llm.answer("hi", SHORT, adapter="law")

    asyncio.run(ask())

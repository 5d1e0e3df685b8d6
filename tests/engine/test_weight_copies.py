"""Copies of the weights on several memory nodes: the same bits from each, and every thread reads the one beside it.

One node is enough for that: all copies here are on node 0, and differ in the CPUs they are for.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from oracles.tiny_model import TinyModel
from treadle import LLM, SamplingParams, UsageError, _native
from treadle.config import Settings
from treadle.engine.batching import Batching
from treadle.engine.execution_plan import MachineView, plan_execution
from treadle.engine.open_runner import suit_settings
from treadle.engine.outset import view_machine
from treadle.errors import CapacityError
from treadle.hardware.numa import NumaNode
from treadle.models.gguf import ModelFile

HUGE_PAGE = 2 << 20
NOBODYS_CPU = 60_000
GIB = 1 << 30

Logits = NDArray[np.float32]


def some_cpu() -> int:
    return min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def load(path: Path, *copies: tuple[int, list[int]]) -> _native.Model:
    return _native.Model.load(_native.GgufFile.open(path), cpus=[-1, -1], copies=list(copies))


def logits(model: _native.Model, cpus: list[int]) -> Logits:
    """What follows a prompt of 40 tokens, computed with threads on these CPUs."""
    runtime = _native.Runtime(model, cpus=cpus, num_blocks=2, max_batch_tokens=64)
    numbers = [np.array(values, np.int32) for values in (range(1, 41), [40], [0], [39])]
    tokens, lengths, starts, rows = numbers
    blocks = np.arange(2, dtype=np.int32)[None]
    sampler = _native.Sampler(model.vocab_size, temperature=0.0)
    found = runtime.step(tokens, lengths, starts, blocks, rows, [sampler], True).logits
    assert found is not None
    return np.array(found)


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe", "gemma3"])
def test_all_copies_give_the_same_bits(tmp_path: Path, architecture: str) -> None:
    path = TinyModel(architecture).write(tmp_path / "model.gguf")
    cpu = some_cpu()
    expected = logits(load(path), [-1])
    for copies in ([(0, [cpu])], [(0, [cpu]), (0, [cpu + 1])], [(0, [NOBODYS_CPU]), (0, [cpu]), (0, [cpu + 1])]):
        model = load(path, *copies)
        for cpus in ([cpu], [-1, -1]):
            np.testing.assert_array_equal(logits(model, cpus), expected)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads do not know their CPU here")
@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_a_thread_reads_the_copy_of_its_cpu(tmp_path: Path, architecture: str) -> None:
    path = TinyModel(architecture).write(tmp_path / "model.gguf")
    cpu = some_cpu()
    expected = logits(load(path), [-1])
    for cpus, is_used in (([cpu], True), ([NOBODYS_CPU], False)):
        model = load(path, (0, [NOBODYS_CPU + 1]), (0, cpus))
        half = model.weight_bytes // 2
        ctypes.memset(model.weight_address + half, 0, half)
        assert np.array_equal(logits(model, [cpu]), expected) != is_used


def test_copies_take_as_much_memory_each_and_begin_on_pages_of_their_own(tmp_path: Path) -> None:
    path = TinyModel().write(tmp_path / "model.gguf")
    one = load(path).weight_bytes
    copies = load(path, (0, [0]), (0, [1]), (0, [2])).weight_bytes
    assert copies == 3 * (-(-one // HUGE_PAGE) * HUGE_PAGE)


@pytest.mark.parametrize("cpus", [[], [-1], [1 << 16]])
def test_copies_for_nobody_are_refused(tmp_path: Path, cpus: list[int]) -> None:
    path = TinyModel().write(tmp_path / "model.gguf")
    with pytest.raises(UsageError, match="copies: expected the CPUs of node 3, each from 0 to 65535"):
        load(path, (3, cpus))


def two_nodes(free_bytes: int) -> MachineView:
    """This machine, with its CPUs split over two imaginary nodes."""
    machine = view_machine()
    cpus = sorted(machine.topology.usable)
    nodes = tuple(
        NumaNode(number, frozenset(part or cpus), 2 * GIB, free_bytes, True, {0: 10, 1: 21})
        for number, part in enumerate((cpus[::2], cpus[1::2]))
    )
    return machine._replace(topology=replace(machine.topology, nodes=nodes))


def test_the_plan_counts_every_copy(tmp_path: Path) -> None:
    file = ModelFile.open(TinyModel().write(tmp_path / "model.gguf"))
    settings = Settings(Path("/nowhere"))
    usual = plan_execution(file, settings, two_nodes(GIB))
    plan = plan_execution(file, settings.override(numa="replicated"), two_nodes(GIB))
    assert plan.memory.weight_bytes == 2 * usual.memory.weight_bytes
    assert [node for node, _ in plan.placement.copies] == [0, 1]
    assert dict(choice[:2] for choice in plan.choices())["memory nodes"] == "replicated 0 1"
    with pytest.raises(CapacityError, match=r"on each node, node 0 has 0 MB free\nhint: --numa interleave"):
        plan_execution(file, settings.override(numa="replicated"), two_nodes(1000))


def test_a_model_runs_from_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinyModel().write(tmp_path / "model.gguf")
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(path) as llm:
        expected = llm.generate("Say it.", params).text
    monkeypatch.setattr(sys.modules["treadle.engine.outset"], "view_machine", lambda *_: two_nodes(GIB))
    with LLM(path, numa="replicated") as llm:
        assert llm.report.plan.placement.policy == "replicated"
        assert llm.report.weight_bytes > 2 * HUGE_PAGE - 1
        assert llm.generate("Say it.", params).text == expected


def test_llama_cpp_has_no_copies() -> None:
    settings = Settings(Path("/nowhere"))
    batching = Batching()
    with pytest.raises(UsageError, match="numa: copies of the weights are for the native core"):
        suit_settings(settings.override(numa="replicated"), batching)
    asked_elsewhere = settings.fill("treadle.toml", numa="replicated")
    assert suit_settings(asked_elsewhere, batching).numa == "interleave"

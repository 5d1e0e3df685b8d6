"""Predictions from the outline of a model and the speed of an imaginary machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel
from treadle.engine.memory_plan import MemoryPlan, plan_memory
from treadle.engine.outlook import AS_IT_IS, look_ahead
from treadle.engine.prediction import STREAMS, predict
from treadle.engine.runner import NativeRunner
from treadle.engine.step_work import decode_bytes_of
from treadle.errors import UsageError
from treadle.hardware import roofline
from treadle.hardware.machine_speed import MachineSpeed
from treadle.hardware.memory import MemoryBudget
from treadle.hardware.roofline import Roofline
from treadle.models.catalog import load_catalog
from treadle.models.catalog_shapes import catalog_outline
from treadle.models.gguf import ModelFile
from treadle.models.outline import ModelOutline, requantised

GIB = 1 << 30
SPEED = MachineSpeed(50e9, 2e12, 5e11, "avx512_vnni")


def outline(name: str, quant: str) -> ModelOutline:
    entry = load_catalog()[name]
    assert entry.shape is not None
    return requantised(catalog_outline(entry, entry.shape), quant)


def memory(model: ModelOutline | ModelFile, available: int = 64 * GIB) -> MemoryPlan:
    budget = MemoryBudget(available, available, "a test")
    return plan_memory(model.name, model.hyperparameters, file_bytes=model.file_bytes, budget=budget)


def test_a_model_of_the_catalog() -> None:
    model = outline("qwen2.5:1.5b", "Q4_K_M")
    found = predict(model, memory(model), Roofline(SPEED))
    rates = [found.decode_rates[count] for count in STREAMS]
    assert all(rate is not None for rate in rates)
    one, *_, most = (rate or 0.0 for rate in rates)
    assert 30 < one < 55 and 4 * one < most < 16 * one
    assert found.prompt_rate is not None and found.prompt_rate > most
    first = found.first_token_seconds
    assert first[512] == pytest.approx(512 / found.prompt_rate)
    assert (first[2048] or 0) > 4 * (first[512] or 0)  # attention grows with the square
    assert 2 <= (found.compute_bound_streams or 0) <= 16
    assert found.largest_context == 32768


def test_more_bits_take_longer_to_read_and_more_memory() -> None:
    models = [outline("llama3.2:1b", quant) for quant in ("Q4_K_M", "Q5_K_M", "Q8_0")]
    found = [predict(model, memory(model), Roofline(SPEED)) for model in models]
    rates = [prediction.decode_rates[1] or 0.0 for prediction in found]
    sizes = [prediction.memory_bytes for prediction in found]
    assert rates == sorted(rates, reverse=True) and sizes == sorted(sizes)


def test_the_largest_context_is_what_memory_leaves() -> None:
    model = outline("llama3.2:1b", "Q8_0")
    found = predict(model, memory(model, 3 * GIB), Roofline(SPEED))
    assert 8192 < found.largest_context < 131072


def test_floats_and_unknown_machines_are_predicted_as_far_as_memory_decides(tmp_path: Path) -> None:
    file = ModelFile.open(TinyModel(format=Format.F16).write(tmp_path / "float.gguf"))
    quantised = outline("qwen2.5:0.5b", "Q8_0")
    for model, speed in ((file, SPEED), (quantised, MachineSpeed(50e9, 0))):
        found = predict(model, memory(model), Roofline(speed))
        assert found.decode_rates[1] and found.decode_rates[4] is None
        assert found.prompt_rate is None and found.compute_bound_streams is None
        assert set(found.first_token_seconds.values()) == {None}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3moe", "gemma3"])
def test_what_a_token_reads_is_what_the_core_says(tmp_path: Path, architecture: str) -> None:
    file = ModelFile.open(TinyModel(architecture).write(tmp_path / "model.gguf"))
    runner = NativeRunner.load(file, isa="", cpus=[-1], num_blocks=1, max_batch_tokens=8)
    assert decode_bytes_of(file) == pytest.approx(runner.decode_bytes, rel=0.03)  # panels are padded


def test_windows_of_attention_save_time(tmp_path: Path) -> None:
    seconds = []
    for window in (64, 100_000):
        keys = {"attention.sliding_window": window}
        file = ModelFile.open(TinyModel("gemma3", keys=keys).write(tmp_path / f"{window}.gguf"))
        found = predict(file, memory(file), Roofline(SPEED))
        seconds.append(found.first_token_seconds[2048] or 0.0)
    assert seconds[0] < seconds[1]


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(roofline, "measure_speed", lambda _, isa: replace(SPEED, isa=isa or SPEED.isa))


@pytest.mark.usefixtures("_measured")
def test_a_file_as_it_is_and_in_other_quantisations(tmp_path: Path) -> None:
    path = TinyModel().write(tmp_path / "tiny.gguf")
    found = look_ahead(path, threads=1)
    assert list(found.predictions) == [AS_IT_IS] and found.plan.threads.num_threads == 1 and found.speed == SPEED
    assert list(look_ahead(path, ["q4_0", "Q8_0"]).predictions) == ["Q4_0", "Q8_0"]
    with pytest.raises(UsageError, match="quantisation: expected one of"):
        look_ahead(path, ["Q9"])


@pytest.mark.usefixtures("_measured")
def test_the_kernels_that_were_asked_for_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinyModel().write(tmp_path / "tiny.gguf")
    monkeypatch.setenv("TREADLE_ISA", "ref")
    found = look_ahead(path)
    assert found.speed is not None and found.speed.isa == "ref"


def test_formats_that_take_more_instructions_are_slower_where_compute_counts() -> None:
    speed = MachineSpeed(50e9, 1e12, 3e11, "avx2")
    rates = []
    for quant in ("Q4_0", "Q8_0"):
        model = outline("qwen2.5:1.5b", quant)
        rates.append(predict(model, memory(model), Roofline(speed)).prompt_rate or 0.0)
    assert rates[0] > 1.3 * rates[1]


@pytest.mark.usefixtures("_measured")
def test_a_model_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = MemoryBudget(3 * GIB, 3 * GIB, "a test")
    monkeypatch.setattr(sys.modules["treadle.engine.outset"], "memory_budget", lambda: budget)
    assert list(look_ahead("qwen2.5:1.5b").predictions) == ["Q4_K_M"]
    found = look_ahead("qwen2.5:3b", ["Q4_K_M", "Q8_0"]).predictions
    assert found["Q4_K_M"] is not None and found["Q8_0"] is None
    with pytest.raises(UsageError, match="unknown model"):
        look_ahead("no-such-model")


@pytest.mark.usefixtures("_measured")
def test_a_machine_that_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "measure_speed", lambda *_, **__: None)
    found = look_ahead(TinyModel().write(tmp_path / "tiny.gguf"))
    assert found.speed is None and found.predictions == {}

"""The timers of the runtime count every operator and account for the whole step, and change no result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core import Core
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel
from treadle import _native

PROMPT = list(range(1, 41))
PER_LAYER = ("qkv", "rotate_store", "attention", "attention_output", "gate_up", "down")
PER_STEP = ("start", "embed", "keep_rows", "logits", "sample")


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel.for_k_quants(architecture="llama", format=Format.Q4_K, formats={})
    return model.write(tmp_path_factory.mktemp("timings") / "tiny.gguf")


def by_name(timings: _native.StepTimings) -> dict[str, _native.OperatorTiming]:
    return {operator.name: operator for operator in timings.operators}


def test_off_nothing_is_recorded(tiny_path: Path) -> None:
    core = Core(tiny_path)
    core.step([(core.sequence(40), PROMPT)])
    timings = core.runtime.timings()
    assert (timings.num_steps, timings.seconds, timings.operators) == (0, 0.0, [])


@pytest.mark.parametrize("threads", [1, 2])
def test_every_operator_of_every_layer_is_counted(tiny_path: Path, threads: int) -> None:
    core = Core(tiny_path, threads=threads)
    core.runtime.set_timing(True)
    sequence = core.sequence(43)
    for tokens in (PROMPT, [1], [2], [3]):
        core.step([(sequence, tokens)])
    timings = core.runtime.timings()
    operators = by_name(timings)
    num_layers = core.model.num_layers
    assert timings.num_steps == 4
    assert {name: operators[name].num_calls for name in PER_LAYER} == dict.fromkeys(PER_LAYER, 4 * num_layers)
    assert {name: operators[name].num_calls for name in PER_STEP} == dict.fromkeys(PER_STEP, 4)
    # Each product's input but that of down, which is rounded where it is made, and the logits'.
    assert operators["norm_quantise"].num_calls == 4 * (3 * num_layers + 1)
    # Nobody asked for states, no experts, no adapters, no convolutions.
    others = {"add_states", "route", "add_experts", "adapt", "convolution_in", "convolve"}
    assert [operators[name].num_calls for name in others] == [0] * len(others)
    assert set(operators) == {*PER_LAYER, *PER_STEP, "norm_quantise", *others}


def test_work_is_that_of_the_model(tiny_path: Path) -> None:
    core = Core(tiny_path)
    core.runtime.set_timing(True)
    core.step([(core.sequence(40), PROMPT)])
    operators = by_name(core.runtime.timings())
    products = ("qkv", "attention_output", "gate_up", "down", "logits")
    assert sum(operators[name].bytes for name in products) == core.model.decode_bytes
    assert operators["logits"].operations == 2 * len(PROMPT) * core.model.hidden_size * core.model.vocab_size


def test_attention_of_one_token_reads_the_cache_once(tiny_path: Path) -> None:
    core = Core(tiny_path)
    sequence = core.sequence(41)
    core.step([(sequence, PROMPT)])
    core.runtime.set_timing(True)
    core.step([(sequence, [1])])
    attention = by_name(core.runtime.timings())["attention"]
    values = core.model.num_layers * (len(PROMPT) + 1) * core.model.head_dim * 2  # keys and values of one head
    assert attention.bytes == values * core.model.num_kv_heads * 2  # 16 bits each
    assert attention.operations == values * core.model.num_heads * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_operators_add_up_to_the_step(tiny_path: Path, threads: int) -> None:
    core = Core(tiny_path, threads=threads)
    core.runtime.set_timing(True)
    core.read(core.sequence(40), PROMPT, chunk=8)
    timings = core.runtime.timings()
    totals = [
        sum(each.busy_seconds[worker] + each.wait_seconds[worker] for each in timings.operators)
        for worker in range(threads)
    ]
    assert 0 < max(totals) <= timings.seconds
    assert min(totals) >= 0  # zero for a worker that sat out because its core was busy
    assert all(seconds >= 0 for each in timings.operators for seconds in (*each.busy_seconds, *each.wait_seconds))


def test_restart_from_zero(tiny_path: Path) -> None:
    core = Core(tiny_path)
    core.runtime.set_timing(True)
    core.step([(core.sequence(40), PROMPT)])
    core.runtime.set_cpus([-1, -1])
    assert core.runtime.timings().num_steps == 0
    core.step([(core.sequence(40), PROMPT)])
    timings = core.runtime.timings()
    assert timings.num_steps == 1
    assert {len(each.busy_seconds) for each in timings.operators} == {2}
    core.runtime.set_timing(False)
    assert core.runtime.timings().operators == []


def test_timing_changes_no_logit(tiny_path: Path) -> None:
    core = Core(tiny_path, threads=2)
    [expected] = core.step([(core.sequence(40), PROMPT)])
    core.runtime.set_timing(True)
    [found] = core.step([(core.sequence(40), PROMPT)])
    np.testing.assert_array_equal(found, expected)

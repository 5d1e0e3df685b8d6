"""What steps read and compute, for shapes whose numbers can be added up by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import make_request
from oracles.tiny_model import TinyModel
from treadle.engine.plan import Chunk, StepPlan
from treadle.engine.step_work import StepWork, work_of
from treadle.models.gguf import ModelFile, TensorEntry


def test_a_step_is_the_sum_of_its_chunks() -> None:
    work = StepWork(weight_bytes=1000, kv_token_bytes=10, token_ops=7, logit_ops=100)
    chunks = [
        Chunk(make_request(0, range(5), 9), 5, 1, samples=True),
        Chunk(make_request(1, range(64), 9), 32, 16, samples=False),
    ]
    plan = StepPlan(chunks, num_decodes=1)
    assert work.kv_bytes(plan) == 10 * (6 + 48)
    assert work.int8_ops(plan) == 7 * 17 + 100


def fake_file(tensors: list[TensorEntry], **metadata: Any) -> Any:
    hyperparameters = SimpleNamespace(
        kv_bytes_per_token=640, windowed_kv_bytes_per_token=0, window=0, convolution_bytes=0
    )
    return SimpleNamespace(tensors=tensors, metadata=metadata, architecture="x", hyperparameters=hyperparameters)


EMBEDDING = TensorEntry("token_embd.weight", "Q8_0", (8, 100), 0)
LAYER = [
    TensorEntry("blk.0.attn_norm.weight", "F32", (8,), 0),
    TensorEntry("blk.0.attn_q.weight", "Q4_K", (8, 16), 0),
    TensorEntry("blk.0.ffn_up.weight", "Q6_K", (8, 32), 0),
]


def test_the_products_of_the_layers_count_and_those_of_the_output() -> None:
    output = TensorEntry("output.weight", "Q6_K", (8, 200), 0)
    work = work_of(fake_file([EMBEDDING, *LAYER, output]), weight_bytes=5, kv_type="f16")
    assert work == StepWork(5, kv_token_bytes=640, token_ops=2 * 8 * (16 + 32), logit_ops=2 * 8 * 200)
    tied = work_of(fake_file([EMBEDDING, *LAYER]), weight_bytes=5, kv_type="q8_0")
    assert (tied.logit_ops, tied.kv_token_bytes) == (2 * 8 * 100, 340)


def test_products_of_floats_are_no_int8_operations() -> None:
    floats = [TensorEntry(tensor.name, "F16", tensor.shape, 0) for tensor in (EMBEDDING, *LAYER)]
    work = work_of(fake_file(floats), weight_bytes=5, kv_type="f16")
    assert (work.token_ops, work.logit_ops) == (0, 0)


def test_of_experts_only_those_in_use_count() -> None:
    experts = TensorEntry("blk.0.ffn_up_exps.weight", "Q4_K", (8, 32, 16), 0)
    file = fake_file([EMBEDDING, experts], **{"x.expert_count": 16, "x.expert_used_count": 4})
    assert work_of(file, weight_bytes=0, kv_type="f16").token_ops == 2 * 8 * 32 * 4


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_real_file_tells_its_work(tmp_path: Path, kv_type: str) -> None:
    file = ModelFile.open(TinyModel().write(tmp_path / "tiny.gguf"))
    work = work_of(file, weight_bytes=1, kv_type=kv_type)
    shape = file.hyperparameters
    attention = 2 * shape.hidden_size * shape.head_dim * (shape.num_heads + shape.num_kv_heads)
    per_layer = attention + 3 * shape.hidden_size * shape.feed_forward_size
    assert work.token_ops in (0, 2 * shape.num_layers * per_layer)
    assert work.kv_token_bytes > 0

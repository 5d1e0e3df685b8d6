"""LoRA adapters in the core: they amount to merged weights, and nobody else in a step notices them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_numpy import check_float_model, check_quantised_model, random_tokens
from core import Core, Logits
from gguf import GGMLQuantizationType as Format

from oracles.tiny_adapter import ALL, TinyAdapter
from oracles.tiny_model import TinyModel
from treadle import LLM, _native
from treadle.errors import ModelFileError, UsageError

PROMPTS = [random_tokens(40), random_tokens(9), random_tokens(1)]
RNG = np.random.default_rng(4)
OTHER_RANK = {
    "blk.1.attn_q.weight.lora_a": RNG.normal(0, 0.06, (9, 288)),
    "blk.1.attn_q.weight.lora_b": RNG.normal(0, 0.3, (288, 9)),
}
FUSED = ("attn_qkv",)
CONVOLUTION = ("in_proj", "out_proj")
NO_DENSE = {"ffn_gate", "ffn_up", "ffn_down"}


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(TinyAdapter(), id="all-projections"),
        pytest.param(TinyAdapter(rank=1, targets=("attn_q",)), id="rank-1"),
        pytest.param(TinyAdapter(rank=17, format=Format.F32), id="odd-rank-f32"),
        pytest.param(TinyAdapter(rank=64, format=Format.BF16, alpha=None), id="bf16-without-alpha"),
        pytest.param(TinyAdapter(targets=("ffn_down", "attn_k")), id="some-projections"),
        pytest.param(TinyAdapter(targets=("attn_q",), extra=OTHER_RANK), id="ranks-of-their-own"),
        pytest.param(TinyAdapter(rank=256, targets=("attn_output",)), id="largest-rank"),
        pytest.param(TinyAdapter(rank=32, format=Format.Q8_0), id="q8_0"),
    ],
)
@pytest.mark.parametrize("isa", ["ref", ""])
def test_equals_merged_weights(tmp_path: Path, adapter: TinyAdapter, isa: str) -> None:
    model = TinyModel(format=Format.F32)
    path = adapter.write(tmp_path / "adapter.gguf", model)
    check_float_model(model.write(tmp_path / "tiny.gguf"), PROMPTS, 4, isa, path)


# phi3 and glm4 have several projections in one tensor, lfm2 those of convolutions.
@pytest.mark.parametrize(
    "architecture", ["qwen2", "gemma2", "qwen3moe", "phi3", "glm4", "cohere2", "starcoder2", "lfm2"]
)
def test_other_architectures(tmp_path: Path, architecture: str) -> None:
    model = TinyModel(architecture=architecture, format=Format.F32)
    path = TinyAdapter(targets=ALL + FUSED + CONVOLUTION).write(tmp_path / "adapter.gguf", model)
    check_float_model(model.write(tmp_path / "tiny.gguf"), PROMPTS, 4, adapter_path=path)


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(TinyAdapter(), id="f16"),
        pytest.param(TinyAdapter(format=Format.F32), id="f32"),
        pytest.param(TinyAdapter(rank=32, format=Format.Q8_0), id="q8_0"),
        pytest.param(TinyAdapter(alpha=1e7, rank=16, format=Format.BF16), id="bf16-far-below-f16"),
    ],
)
@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_over_quantised_weights(tmp_path: Path, architecture: str, adapter: TinyAdapter) -> None:
    model = TinyModel.for_k_quants(architecture=architecture, format=Format.Q4_K)
    path = replace(adapter, targets=ALL + FUSED).write(tmp_path / "adapter.gguf", model)
    check_quantised_model(model.write(tmp_path / "tiny.gguf"), PROMPTS, 8, adapter_path=path)


def test_strength_multiplies_the_scale(tmp_path: Path) -> None:
    model, adapter = TinyModel(format=Format.F32), TinyAdapter(alpha=8.0)
    core = Core(model.write(tmp_path / "tiny.gguf"))
    whole = core.load_adapter(adapter.write(tmp_path / "whole.gguf", model), strength=0.5)
    path = replace(adapter, extra=adapter.tensors(model), alpha=4.0).write(tmp_path / "half.gguf", model)
    expected, other = (core.continue_greedily(PROMPTS[0], 3, adapter=each) for each in (whole, core.load_adapter(path)))
    np.testing.assert_array_equal(expected[1], other[1])
    none, plain = core.load_adapter(path, strength=0.0), core.continue_greedily(PROMPTS[0], 3)
    np.testing.assert_array_equal(core.continue_greedily(PROMPTS[0], 3, adapter=none)[1], plain[1])
    assert not np.array_equal(expected[1], plain[1])


MIXED = {"attn_v": Format.Q6_K, "ffn_down": Format.Q5_1, "attn_k": Format.Q8_0, "ffn_up": Format.F16}
ADAPTERS = (TinyAdapter(seed=1), TinyAdapter(rank=17, seed=2, format=Format.F32), TinyAdapter(seed=3, targets=ALL[2:5]))


class Mixed:
    """Eight prompts over three adapters and none, and what each gives alone, in one step, on one thread."""

    def __init__(self, folder: Path, architecture: str) -> None:
        model = TinyModel.for_k_quants(architecture=architecture, format=Format.Q4_K, formats=MIXED)
        self.path = model.write(folder / "tiny.gguf")
        targets = tuple(name for name in ALL if architecture != "qwen2moe" or name not in NO_DENSE)
        self.adapter_paths = [
            replace(each, targets=tuple(t for t in each.targets if t in targets)).write(folder / f"{i}.gguf", model)
            for i, each in enumerate(ADAPTERS)
        ]
        rng = np.random.default_rng(3)
        self.prompts = [rng.integers(0, 250, n).tolist() for n in (1, 5, 31, 32, 33, 64, 100, 150)]
        core, adapters = self.core()
        self.alone = [
            core.continue_greedily(prompt, 10, adapter=adapters[i % 4]) for i, prompt in enumerate(self.prompts)
        ]

    def core(self, **options: Any) -> tuple[Core, Sequence[_native.Adapter | None]]:
        core = Core(self.path, **options)
        return core, [None, *(core.load_adapter(path) for path in self.adapter_paths)]


@pytest.fixture(scope="module", params=["llama", "gemma2", "qwen2moe"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return Mixed(tmp_path_factory.mktemp("adapters"), request.param)


@pytest.mark.parametrize(("threads", "chunk"), [(1, 7), (2, 1), (3, 64), (2, 512)])
def test_threads_and_chunks(mixed: Mixed, threads: int, chunk: int) -> None:
    core, adapters = mixed.core(threads=threads)
    for index, (prompt, (tokens, logits)) in enumerate(zip(mixed.prompts, mixed.alone, strict=True)):
        found = core.continue_greedily(prompt, 10, chunk, adapters[index % 4])
        assert found[0] == tokens
        np.testing.assert_array_equal(found[1], logits)


@pytest.mark.parametrize("threads", [1, 2])
def test_different_adapters_in_one_step(mixed: Mixed, threads: int) -> None:
    """Prompts of all lengths and single tokens share steps and tiles, whoever's they are."""
    core, adapters = mixed.core(threads=threads, num_blocks=80, max_batch_tokens=64)
    full = [prompt + tokens[:-1] for prompt, (tokens, _) in zip(mixed.prompts, mixed.alone, strict=True)]
    sequences = [core.sequence(len(tokens), adapters[i % 4]) for i, tokens in enumerate(full)]
    rng = np.random.default_rng(5)
    seen: list[list[Logits]] = [[] for _ in full]
    while any(len(sequence.tokens) < len(tokens) for sequence, tokens in zip(sequences, full, strict=True)):
        work, members = [], []
        for index in rng.permutation(len(full)):
            start = len(sequences[index].tokens)
            piece = full[index][start : start + int(rng.integers(1, 9))]
            if piece:
                work.append((sequences[index], piece))
                members.append(index)
        for index, logits in zip(members, core.step(work), strict=True):
            seen[index].append(logits)
    for parts, (_, expected) in zip(seen, mixed.alone, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("isa", _native.kernels.runnable_isas())
def test_instruction_sets(mixed: Mixed, isa: str) -> None:
    core, adapters = mixed.core(isa=isa)
    for index in (1, 2, 3):
        found = core.continue_greedily(mixed.prompts[index], 10, adapter=adapters[index])
        np.testing.assert_array_equal(found[1], mixed.alone[index][1])


def test_rows_that_nobody_reads_may_be_left_out(mixed: Mixed) -> None:
    """Only the last token of each prompt has logits, so the last layer computes those rows alone."""
    core, adapters = mixed.core()
    work = [(core.sequence(len(prompt), adapters[i % 4]), prompt) for i, prompt in enumerate(mixed.prompts)]
    rows = np.cumsum([len(prompt) for prompt in mixed.prompts]).astype(np.int32) - 1
    logits = core.logits_of(work, rows)
    for prompt, found, (_, expected) in zip(mixed.prompts, logits, mixed.alone, strict=True):
        np.testing.assert_array_equal(found, expected[len(prompt) - 1])


Q = "blk.0.attn_q.weight"
WIDE = np.zeros((4, 289))


@pytest.mark.parametrize(
    ("adapter", "named"),
    [
        pytest.param(TinyAdapter(architecture="qwen2"), "qwen2", id="another-architecture"),
        pytest.param(TinyAdapter(keys={}), "general.type", id="a-model"),
        pytest.param(TinyAdapter(keys={"general.type": "adapter", "adapter.type": "dora"}), "dora", id="another-kind"),
        pytest.param(TinyAdapter(targets=()), "no tensors", id="empty"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_b": None}), f"{Q}.lora_b", id="no-b"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_a": None}), f"{Q}.lora_b", id="no-a"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_a": WIDE}), f"{Q}.lora_a", id="a-too-wide"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_b": np.zeros((9, 4))}), f"{Q}.lora_b", id="b-too-short"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_a": np.zeros((5, 288))}), f"{Q}.lora_b", id="ranks-differ"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_a": np.zeros((0, 288))}), f"{Q}.lora_a", id="rank-0"),
        pytest.param(TinyAdapter(extra={f"{Q}.lora_a": np.zeros(288)}), f"{Q}.lora_a", id="a-vector"),
        pytest.param(TinyAdapter(rank=10000, targets=("attn_q",)), "rank", id="rank-10000"),
        pytest.param(TinyAdapter(rank=257, targets=("attn_q",)), "rank", id="rank-257"),
        pytest.param(TinyAdapter(extra={"blk.2.attn_q.weight.lora_a": WIDE}), "blk.2.attn_q", id="a-layer-too-many"),
        pytest.param(TinyAdapter(extra={"output.weight.lora_a": WIDE}), "output.weight", id="not-adaptable"),
        pytest.param(TinyAdapter(rank=32, format=Format.Q4_0), "Q4_0", id="four-bits"),
        pytest.param(TinyAdapter(alpha=float("nan")), "alpha", id="alpha-is-no-number"),
    ],
)
def test_broken_adapter_names_what_is_wrong(tmp_path: Path, adapter: TinyAdapter, named: str) -> None:
    model = TinyModel()
    core = Core(model.write(tmp_path / "tiny.gguf"))
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        core.load_adapter(adapter.write(tmp_path / "adapter.gguf", model))


def test_a_wrong_adapter_says_which_model_it_is_for(tmp_path: Path) -> None:
    model = TinyModel()
    keys = {"general.type": "adapter", "adapter.type": "lora", "general.base_model.0.name": "Other 7B"}
    adapter = TinyAdapter(architecture="qwen2", keys=keys).write(tmp_path / "adapter.gguf", model)
    with LLM(model.write(tmp_path / "tiny.gguf"), threads=1) as llm, pytest.raises(ModelFileError) as caught:
        llm.load_adapter("wrong", adapter)
    assert caught.value.hint == "an adapter fits only the model that it was trained on, 'Other 7B', the adapter says"


def test_cut_short(tmp_path: Path) -> None:
    model = TinyModel()
    core = Core(model.write(tmp_path / "tiny.gguf"))
    path = TinyAdapter().write(tmp_path / "adapter.gguf", model)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFileError):
        core.load_adapter(path)


def test_a_strength_that_is_no_number(tmp_path: Path) -> None:
    model = TinyModel()
    core = Core(model.write(tmp_path / "tiny.gguf"))
    with pytest.raises(UsageError, match="scale"):
        core.load_adapter(TinyAdapter().write(tmp_path / "adapter.gguf", model), strength=float("inf"))


def test_of_another_model(tmp_path: Path) -> None:
    model = TinyModel()
    path = model.write(tmp_path / "tiny.gguf")
    core, other = Core(path), Core(path)
    adapter = other.load_adapter(TinyAdapter().write(tmp_path / "adapter.gguf", model))
    with pytest.raises(UsageError, match="another model"):
        core.step([(core.sequence(3, adapter), [1, 2, 3])])

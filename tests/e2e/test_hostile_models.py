"""Models whose container is fine and whose content is not: one clear error at load, or an error of the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from core import Core, Sequence
from gguf import GGMLQuantizationType as Format

from oracles.tiny_model import TinyModel, vocabulary
from treadle.errors import ModelFileError, UsageError

Metadata = dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]
Tensors = dict[str, tuple[np.ndarray, Format]]


@dataclass
class Content:
    metadata: Metadata
    tensors: Tensors


def rewrite(source: Path, change: Callable[[Content], object]) -> Path:
    """The same model after `change` had its hands on metadata and tensors."""
    reader = gguf.GGUFReader(source)
    content = Content({}, {})
    for field in reader.fields.values():
        if not field.name.startswith("GGUF."):
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            content.metadata[field.name] = (field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        content.tensors[tensor.name] = (tensor.data, tensor.tensor_type)
    change(content)
    target = source.with_name("changed.gguf")
    writer = gguf.GGUFWriter(target, content.metadata.pop("general.architecture")[0])
    for key, (value, kind, element) in content.metadata.items():
        writer.add_key_value(key, value, kind, sub_type=element)
    for name, (array, format) in content.tensors.items():
        writer.add_tensor(name, array, raw_dtype=format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture
def tiny_path(tmp_path: Path) -> Path:
    return TinyModel(architecture="qwen2", format=Format.F32, tied=False).write(tmp_path / "tiny.gguf")


def drop(name: str) -> Callable[[Content], object]:
    return lambda content: content.tensors.pop(name)


def cut_rows(name: str) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        array, format = content.tensors[name]
        content.tensors[name] = (array[:-1], format)

    return change


def reformat(name: str, format: Format) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        array, _ = content.tensors[name]
        byte_shape = gguf.quants.quant_shape_to_byte_shape(array.shape, format)
        content.tensors[name] = (np.zeros(byte_shape, np.uint8), format)

    return change


def set_key(key: str, value: object) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        _, kind, element = content.metadata[key]
        content.metadata[key] = (value, kind, element)

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(drop("blk.0.attn_q.weight"), "blk.0.attn_q.weight", id="no-query-weight"),
        pytest.param(drop("blk.1.ffn_norm.weight"), "blk.1.ffn_norm.weight", id="no-norm"),
        pytest.param(drop("token_embd.weight"), "token_embd.weight", id="no-embedding"),
        pytest.param(drop("blk.0.attn_k.bias"), "blk.0.attn_k.bias", id="no-bias"),
        pytest.param(cut_rows("blk.1.attn_k.weight"), "blk.1.attn_k.weight", id="row-short"),
        pytest.param(cut_rows("blk.0.attn_norm.weight"), "blk.0.attn_norm.weight", id="norm-short"),
        pytest.param(cut_rows("blk.0.attn_q.bias"), "blk.0.attn_q.bias", id="bias-short"),
        pytest.param(cut_rows("output.weight"), "output.weight", id="output-short"),
        pytest.param(cut_rows("token_embd.weight"), "token_embd.weight", id="embedding-short"),
        pytest.param(reformat("blk.0.ffn_up.weight", Format.Q8_1), "blk.0.ffn_up.weight", id="unknown-format"),
        pytest.param(set_key("qwen2.block_count", 3), "blk.2.", id="more-layers-than-tensors"),
        pytest.param(set_key("qwen2.attention.head_count", 0), "head_count", id="no-heads"),
        pytest.param(set_key("qwen2.attention.head_count_kv", 0), "head_count_kv", id="no-kv-heads"),
        pytest.param(set_key("qwen2.attention.head_count_kv", 4), "head_count_kv", id="heads-do-not-group"),
        pytest.param(set_key("qwen2.attention.head_count_kv", 18), "head_count_kv", id="more-kv-heads-than-heads"),
        pytest.param(set_key("qwen2.block_count", 0), "block_count", id="no-layers"),
        pytest.param(set_key("qwen2.block_count", 2**31), "block_count", id="absurd-layers"),
        pytest.param(set_key("qwen2.embedding_length", 7), "embedding_length", id="absurd-width"),
        pytest.param(set_key("general.architecture", "qwen9"), "qwen9", id="unknown-architecture"),
    ],
)
def test_broken_model_names_what_is_wrong(tiny_path: Path, change: Callable[[Content], object], named: str) -> None:
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        Core(rewrite(tiny_path, change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(
            set_key("qwen2moe.expert_count", 7), "blk.0.ffn_gate_inp.weight", id="fewer-than-the-router-knows"
        ),
        pytest.param(set_key("qwen2moe.expert_count", 0), "expert_count", id="none"),
        pytest.param(set_key("qwen2moe.expert_count", 2**31), "expert_count", id="absurdly-many"),
        pytest.param(set_key("qwen2moe.expert_used_count", 0), "expert_used_count", id="none-used"),
        pytest.param(set_key("qwen2moe.expert_used_count", 9), "expert_used_count", id="more-used-than-there-are"),
        pytest.param(set_key("qwen2moe.expert_feed_forward_length", 2**31), "expert_feed_forward_length", id="absurd"),
        pytest.param(cut_rows("blk.1.ffn_up_exps.weight"), "blk.1.ffn_up_exps.weight", id="an-expert-short"),
        pytest.param(drop("blk.0.ffn_down_exps.weight"), "blk.0.ffn_down_exps.weight", id="no-down"),
        pytest.param(drop("blk.0.ffn_gate_inp.weight"), "blk.0.ffn_gate_inp.weight", id="no-router"),
        pytest.param(drop("blk.1.ffn_gate_inp_shexp.weight"), "blk.1.ffn_gate_inp_shexp.weight", id="no-shared-gate"),
    ],
)
def test_broken_experts(tmp_path: Path, change: Callable[[Content], object], named: str) -> None:
    path = TinyModel(architecture="qwen2moe", format=Format.F32).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        Core(rewrite(path, change))


def add_key(key: str, value: object, kind: gguf.GGUFValueType) -> Callable[[Content], object]:
    return lambda content: content.metadata.update({key: (value, kind, None)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(set_key("bailingmoe2.expert_group_count", 3), "expert_group_count", id="groups-of-two-sizes"),
        pytest.param(set_key("bailingmoe2.expert_group_count", 2**31), "expert_group_count", id="absurdly-many-groups"),
        pytest.param(set_key("bailingmoe2.expert_group_used_count", 5), "expert_group_used_count", id="more-used"),
        pytest.param(set_key("bailingmoe2.expert_group_used_count", 1), "expert_group_count", id="too-few-to-choose"),
        pytest.param(set_key("bailingmoe2.expert_gating_func", 4), "expert_gating_func", id="unknown-weights"),
        pytest.param(set_key("bailingmoe2.expert_weights_scale", -1.0), "expert_weights_scale", id="negative-weights"),
        pytest.param(set_key("bailingmoe2.expert_shared_count", 65), "expert_shared_count", id="absurdly-many-shared"),
        pytest.param(set_key("bailingmoe2.expert_shared_count", 2), "blk.2.ffn_gate_shexp.weight", id="shared-short"),
        pytest.param(cut_rows("blk.2.exp_probs_b.bias"), "blk.2.exp_probs_b.bias", id="bias-short"),
        pytest.param(drop("blk.2.ffn_gate_inp.weight"), "blk.2.ffn_gate.weight", id="neither-router-nor-gate"),
        pytest.param(drop("blk.0.ffn_gate.weight"), "blk.0.ffn_gate.weight", id="no-gate-in-a-dense-layer"),
        pytest.param(
            add_key("bailingmoe2.nextn_predict_layers", 3, gguf.GGUFValueType.UINT32),
            "nextn_predict_layers",
            id="drafts",
        ),
    ],
)
def test_broken_choice_of_experts(tmp_path: Path, change: Callable[[Content], object], named: str) -> None:
    path = TinyModel(architecture="bailingmoe2", format=Format.F32, num_layers=3).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        Core(rewrite(path, change))


def drop_key(key: str) -> Callable[[Content], object]:
    return lambda content: content.metadata.pop(key)


@pytest.mark.parametrize(
    ("architecture", "change", "named"),
    [
        pytest.param("apertus", drop_key("xielu.beta"), "xielu.beta", id="no-slopes"),
        pytest.param("apertus", set_key("xielu.alpha_n", float("nan")), "xielu.alpha_n", id="not-a-number"),
        pytest.param("apertus", set_key("xielu.eps", 1e9), "xielu.eps", id="absurd-epsilon"),
        pytest.param("apertus", drop("blk.1.attn_k_norm.weight"), "blk.1.attn_k_norm.weight", id="no-norm-of-heads"),
        pytest.param("cohere2", set_key("cohere2.logit_scale", 0.0), "logit_scale", id="no-logits"),
        pytest.param(
            "cohere2",
            set_key("cohere2.attention.layer_norm_epsilon", -1.0),
            "layer_norm_epsilon",
            id="negative-epsilon",
        ),
        pytest.param("starcoder2", cut_rows("blk.0.attn_norm.bias"), "blk.0.attn_norm.bias", id="bias-of-a-norm-short"),
        pytest.param("starcoder2", cut_rows("blk.1.ffn_up.bias"), "blk.1.ffn_up.bias", id="bias-short"),
        pytest.param("hunyuan-dense", drop("blk.0.attn_q_norm.weight"), "blk.0.attn_q_norm.weight", id="no-query-norm"),
    ],
)
def test_broken_parts_of_layers(
    tmp_path: Path, architecture: str, change: Callable[[Content], object], named: str
) -> None:
    path = TinyModel(architecture=architecture, format=Format.F32).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        Core(rewrite(path, change))


def test_layers_without_numbers_of_their_own(tmp_path: Path) -> None:
    path = TinyModel("apertus", Format.F32, keys={"xielu.beta": [0.5, 0.4, 0.3]}).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match=r"xielu\.beta has no numbers for 2 layers"):
        Core(path)


def test_vocabulary_longer_than_the_embedding(tiny_path: Path) -> None:
    def change(content: Content) -> None:
        tokens, *kinds = content.metadata["tokenizer.ggml.tokens"]
        content.metadata["tokenizer.ggml.tokens"] = ([*tokens, "extra"], *kinds)

    with pytest.raises(ModelFileError, match=str(len(vocabulary()) + 1)):
        Core(rewrite(tiny_path, change))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_weights_that_are_not_numbers_give_bad_logits(tiny_path: Path, poison: float) -> None:
    def change(content: Content) -> None:
        array, format = content.tensors["blk.1.ffn_down.weight"]
        array = array.copy()
        array[5] = poison
        content.tensors["blk.1.ffn_down.weight"] = (array, format)

    core = Core(rewrite(tiny_path, change))
    (sample,) = core.samples([(core.sequence(1), [7])])
    assert sample.bad_logits
    assert sample.token == -1


def test_a_router_that_is_not_a_number_gives_bad_logits(tmp_path: Path) -> None:
    def poison(content: Content) -> None:
        array, format = content.tensors["blk.1.ffn_gate_inp.weight"]
        content.tensors["blk.1.ffn_gate_inp.weight"] = (np.full_like(array, np.nan), format)

    path = TinyModel(architecture="qwen3moe", format=Format.F32).write(tmp_path / "tiny.gguf")
    core = Core(rewrite(path, poison))
    samples = core.samples([(core.sequence(4), [1, 2, 3, 4])])
    assert all(sample.bad_logits for sample in samples)


@pytest.fixture
def core(tiny_path: Path) -> Core:
    return Core(tiny_path, num_blocks=2, max_batch_tokens=8)


@pytest.mark.parametrize("tokens", [[len(vocabulary())], [-1], [1] * 9], ids=["too-large", "negative", "too-many"])
def test_step_refuses_tokens(core: Core, tokens: list[int]) -> None:
    with pytest.raises(UsageError):
        core.step([(core.sequence(16), tokens)])


@pytest.mark.parametrize("blocks", [[2], [-1]], ids=["outside-the-pool", "none"])
def test_step_refuses_blocks(core: Core, blocks: list[int]) -> None:
    with pytest.raises(UsageError):
        core.step([(Sequence(blocks), [1])])


def test_step_refuses_a_position_past_the_block_table(core: Core) -> None:
    with pytest.raises(UsageError):
        core.step([(Sequence([0], tokens=[1] * 32), [1])])

"""Writes a GGUF file's weights as the folder that Hugging Face programs read, in bf16: config.json and safetensors.

For engines that read no GGUF file here. There is no tokenizer in it: the benchmarks feed token ids.
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
MODEL_PARTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_folder(model: Path, folder: Path) -> None:
    reader = gguf.GGUFReader(model)
    config = hugging_face_config(reader)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    with (folder / "model.safetensors").open("wb") as file:
        header = json.dumps(safetensors_header(reader)).encode()
        header += b" " * (-len(header) % 8)  # the format wants what follows aligned
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in reader.tensors:
            file.write(bf16_bits(weights(tensor, config)).tobytes())


def hugging_face_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    def value(key: str, otherwise: Any = None) -> Any:
        field = reader.get_field(key)
        return otherwise if field is None else field.contents()

    family = value("general.architecture")
    if family not in CLASSES:
        raise ValueError(f"the model is of the family {family}; only {' and '.join(CLASSES)} can be written")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if value(f"{family}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors:
        raise ValueError("the model scales its rotary positions, which this script does not write")
    num_heads = value(f"{family}.attention.head_count")
    return {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "num_hidden_layers": value(f"{family}.block_count"),
        "hidden_size": value(f"{family}.embedding_length"),
        "intermediate_size": value(f"{family}.feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": value(f"{family}.attention.head_count_kv", num_heads),
        "max_position_embeddings": value(f"{family}.context_length"),
        "rms_norm_eps": value(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope_theta": value(f"{family}.rope.freq_base", 10000.0),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
    }


def safetensors_header(reader: gguf.GGUFReader) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in reader.tensors:
        begin, end = end, end + 2 * int(tensor.n_elements)
        header[hugging_face_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": shape_of(tensor),
            "data_offsets": [begin, end],
        }
    return header


def hugging_face_name(name: str) -> str:
    part, kind = name.rsplit(".", 1)
    if not part.startswith("blk."):
        return f"{MODEL_PARTS[part]}.{kind}"
    _, layer, part = part.split(".", 2)
    return f"model.layers.{layer}.{LAYER_PARTS[part]}.{kind}"


def shape_of(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    return tuple(int(count) for count in reversed(tensor.shape))


def weights(tensor: gguf.ReaderTensor, config: dict[str, Any]) -> Floats:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape_of(tensor))
    if config["model_type"] != "llama":
        return values
    if ".attn_q." in tensor.name:
        return halves_apart(values, config["num_attention_heads"])
    if ".attn_k." in tensor.name:
        return halves_apart(values, config["num_key_value_heads"])
    return values


def halves_apart(rows: Floats, num_heads: int) -> Floats:
    """Rows of a query or key product in the order of Hugging Face's llama.

    GGUF has the two rows that rotate together side by side, Hugging Face has them half a head apart.
    """
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def bf16_bits(values: Floats) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    arguments = parser.parse_args()
    folder = arguments.model.with_name(arguments.model.stem + "-bf16")
    write_folder(arguments.model, folder)
    print(folder)


if __name__ == "__main__":
    main()

"""Writes GGUF files with random weights of the shape of a 1.7B llama, to time formats without a model at hand.

The blocks are random but valid, not a quantisation of anything; speed does not depend on them, and what such a model
says means nothing. The tokenizer is copied from another GGUF file, so that every engine can load the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from numpy.typing import NDArray

HIDDEN = 2048
FEED_FORWARD = 8192
HEADS = 32
SEED = 1
RANDOM_BLOCKS = 1 << 14  # repeated along a tensor: nothing reads a file so fast that it would notice

# What llama.cpp's mixes of these names use: the main format, that of half of `attn_v` and `ffn_down`, and of the head.
MIXES = {
    "Q4_0": (Format.Q4_0, Format.Q4_0, Format.Q6_K),
    "Q4_K_M": (Format.Q4_K, Format.Q6_K, Format.Q6_K),
    "Q5_K_M": (Format.Q5_K, Format.Q6_K, Format.Q6_K),
    "Q8_0": (Format.Q8_0, Format.Q8_0, Format.Q8_0),
    "Q2_K": (Format.Q2_K, Format.Q3_K, Format.Q6_K),
    "Q3_K_M": (Format.Q3_K, Format.Q5_K, Format.Q6_K),
    "IQ4_XS": (Format.IQ4_XS, Format.Q5_K, Format.Q6_K),
    "IQ4_NL": (Format.IQ4_NL, Format.Q5_K, Format.Q6_K),
    "MXFP4": (Format.MXFP4, Format.MXFP4, Format.Q8_0),
    "TQ2_0": (Format.TQ2_0, Format.TQ2_0, Format.Q6_K),
    "TQ1_0": (Format.TQ1_0, Format.TQ1_0, Format.Q6_K),
}
# Where the f16 factors of a block lie, as (byte offset, factor for weights of about 1 / sqrt(columns)); MXFP4 has the
# exponent of a power of two instead.
FACTORS = {
    Format.Q4_0: [(0, 0.002)],
    Format.Q8_0: [(0, 0.00015)],
    Format.Q4_K: [(0, 0.00008), (2, 0.0006)],
    Format.Q5_K: [(0, 0.00004), (2, 0.0006)],
    Format.Q6_K: [(208, 0.00001)],
    Format.Q2_K: [(80, 0.0012), (82, 0.0018)],
    Format.Q3_K: [(108, 0.0005)],
    Format.IQ4_XS: [(0, 0.000016)],
    Format.IQ4_NL: [(0, 0.0003)],
    Format.TQ2_0: [(64, 0.02)],
    Format.TQ1_0: [(52, 0.02)],
}
MXFP4_EXPONENTS = (119, 121)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--tokenizer", type=Path, required=True, help="GGUF file whose tokenizer to copy")
    parser.add_argument("--mix", nargs="*", choices=MIXES, default=["Q4_0", "Q4_K_M", "Q5_K_M", "Q8_0"])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--kv-heads", type=int, default=32, choices=[8, 16, 32])
    return parser.parse_args()


def random_rows(source: np.random.Generator, rows: int, columns: int, weight_format: Format) -> NDArray[np.uint8]:
    block, block_bytes = gguf.GGML_QUANT_SIZES[weight_format]
    blocks = source.integers(0, 256, (RANDOM_BLOCKS, block_bytes), np.uint8)
    if weight_format == Format.MXFP4:
        blocks[:, 0] = source.integers(*MXFP4_EXPONENTS, RANDOM_BLOCKS)
    for offset, factor in FACTORS.get(weight_format, ()):
        spread = source.uniform(0.8, 1.2, RANDOM_BLOCKS) * factor
        blocks[:, offset : offset + 2] = spread.astype("<f2").view(np.uint8).reshape(-1, 2)
    num_blocks = rows * (columns // block)
    return np.resize(blocks, (num_blocks, block_bytes)).reshape(rows, -1)


def tensors(arguments: argparse.Namespace, vocab_size: int, mix: str) -> Iterator[tuple[str, int, int, Format]]:
    """Name, rows, columns and format, in the order of the file."""
    main, better, head = MIXES[mix]
    kv_rows = HIDDEN // HEADS * arguments.kv_heads
    yield "token_embd.weight", vocab_size, HIDDEN, head  # the head too: such models tie them
    for layer in range(arguments.layers):
        # The first and last eighth of the layers, and every third between them.
        eighth = arguments.layers // 8
        inner = eighth <= layer < arguments.layers - eighth
        mixed = main if inner and (layer - eighth) % 3 != 2 else better
        yield f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN, main
        yield f"blk.{layer}.attn_k.weight", kv_rows, HIDDEN, main
        yield f"blk.{layer}.attn_v.weight", kv_rows, HIDDEN, mixed
        yield f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN, main
        yield f"blk.{layer}.ffn_gate.weight", FEED_FORWARD, HIDDEN, main
        yield f"blk.{layer}.ffn_up.weight", FEED_FORWARD, HIDDEN, main
        yield f"blk.{layer}.ffn_down.weight", HIDDEN, FEED_FORWARD, mixed


def copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def write_model(arguments: argparse.Namespace, mix: str) -> Path:
    reader = gguf.GGUFReader(arguments.tokenizer)
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    path: Path = arguments.folder / f"synthetic-1.7b-{mix}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"synthetic 1.7B {mix} (random weights)")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(arguments.layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(arguments.kv_heads)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(130000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)
    copy_tokenizer(reader, writer)
    source = np.random.default_rng(SEED)
    for name, rows, columns, weight_format in tensors(arguments, vocab_size, mix):
        writer.add_tensor(name, random_rows(source, rows, columns, weight_format), raw_dtype=weight_format)
    norms = [f"blk.{layer}.{part}_norm.weight" for layer in range(arguments.layers) for part in ("attn", "ffn")]
    for name in [*norms, "output_norm.weight"]:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for mix in arguments.mix:
        path = write_model(arguments, mix)
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()

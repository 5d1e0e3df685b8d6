"""Write the seed corpus of the GGUF fuzz target: small files that reach every branch of the reader.

Files that must be refused are seeds too: a mutation away from the edge finds more than noise does.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.oracles import gguf_bytes as g

BETWEEN_SHARDS = b"\nSHARD\n"


def _every_value() -> bytes:
    kinds = [kind for kind in range(13) if kind not in (g.STR, g.ARR)]
    keys = [g.key(f"scalar.{kind}", kind, 1) for kind in kinds]
    keys += [g.array_key(f"array.{kind}", kind, [1, 0, 1]) for kind in kinds]
    keys += [g.key("text", g.STR, "naïve 안녕 😀"), g.array_key("tokenizer.ggml.tokens", g.STR, ["a", "", "Ġthe", "é"])]
    return g.header(0, len(keys)) + b"".join(keys)


def _nested(depth: int) -> bytes:
    innermost = g.array(g.STR, ["x", "y"]) + g.array(g.U8, [1, 2])
    value = g.array_head(g.ARR, 1) * (depth - 2) + g.array_head(g.ARR, 2) + innermost
    return g.string("nested") + g.ARR.to_bytes(4, "little") + value


def _tensors(alignment: int = 32) -> bytes:
    """One tensor of every block size and rank, each at the next aligned offset."""
    wanted = [
        ([5], 0, 20),
        ([3, 2], 1, 12),
        ([32, 2, 2], 2, 72),
        ([256, 2], 14, 420),
        ([2, 1, 2, 1], 28, 32),
        ([128], 41, 18),
    ]
    entries, body = b"", b""
    for index, (dims, kind, num_bytes) in enumerate(wanted):
        entries += g.tensor(f"blk.{index}.weight", dims, kind, len(body))
        body += g.padded(bytes([index + 1]) * num_bytes, alignment)
    head = g.header(len(wanted), 1) + g.key("general.alignment", g.U32, alignment)
    return g.padded(head + entries, alignment) + body


def _shard(number: int, count: int, total: int) -> bytes:
    keys = [
        g.key("split.no", g.U16, number),
        g.key("split.count", g.U16, count),
        g.key("split.tensors.count", g.I32, total),
        g.array_key("shared", g.STR, ["same", "in", "all"]),
        _nested(3),
    ]
    entry = g.tensor(f"t{number}", [8], g.TYPE_F32, 0)
    return g.padded(g.header(1, len(keys)) + b"".join(keys) + entry) + bytes([number]) * 32


def _lies() -> list[bytes]:
    one = g.header(1, 0)
    return [
        g.padded(one + g.tensor("t", [8], g.TYPE_F32, 2**64 - 32)) + bytes(32),
        g.padded(one + g.tensor("t", [4, 2**30 - 1, 2**30 + 1], g.TYPE_F32, 0)) + bytes(32),
        g.padded(one + g.tensor("t", [2**61], g.TYPE_F32, 2**62)) + bytes(32),
        g.padded(g.header(2, 0) + g.tensor("a", [16], 0, 0) + g.tensor("b", [8], 0, 32)) + bytes(64),
        g.header(0, 1) + g.array_key("a", g.STR, ["x"], count=2**61),
        g.header(0, 1) + g.string("k", length=2**64 - 1),
        g.header(0, 1) + _nested(9),
        g.header(0, 1) + g.key("general.alignment", g.U32, 0),
    ]


def main(folder: Path) -> None:
    """Write each seed under the hash of its bytes, as libFuzzer does."""
    folder.mkdir(parents=True, exist_ok=True)
    valid = [
        _every_value(),
        g.header(0, 1) + _nested(8),
        _tensors(),
        _tensors(8),
        _tensors(4096),
        g.header(0, 0, version=2),
    ]
    split = [BETWEEN_SHARDS.join(_shard(i, n, n) for i in range(n)) for n in (2, 3)]
    for seed in [*valid, *split, *_lies()]:
        (folder / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes the golden files beside this one: excerpts of real vocabularies with token ids that llama.cpp gave.

Needs llama-cpp-python and gguf, and a folder with the vocabulary files ``ggml-vocab-*.gguf`` that llama.cpp ships::

    python make_golden.py FOLDER NAME...          # for example: llama-bpe qwen2 llama-spm gemma-4
    python make_golden.py FOLDER NAME=OTHER.gguf  # a file under another name

An excerpt keeps every token and merge that can occur while the texts below are encoded, and no more. A merge can only
give a piece of a word of the text, so the excerpt encodes these texts exactly as the whole vocabulary does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from llama_cpp import Llama

TEXTS = [
    "3333", "1234", "501", "Cửa Việt", "' era", "\n\n\n", "ied 4 ½ months", "w048 7tuijk dsdfhu",
    " this is 🦙.cpp", "Hello", " Hello", "  Hello", "333", "!!!!!!", "a  b and    c", "\t\t\tx", " " * 12 + "X",
    "I'll say WE'RE don't 'tis", "Hello, World!\r\n\r\n  x\n \ny  ", "CamelCase XMLHttpRequest naïve STRASSE",
    "1234567890 3.14 ²½Ⅷ", "привет, мир!", "漢字とカタカナ 한국어", "हिन्दी नमस्ते สวัสดี", "😀👩‍👩‍👧🇰🇷 e\u0301\u0302",
    "def f(x):\n    return x**2  # ok\n", "https://x.org/a?b=1&c=[2]", "=====-----~~~~", "ababababa aaaaaaaaa",
    "\u00a0nbsp\u3000wide\u200bzero", "<b>bold</b>\n\n<h1>", "the end.",
]  # fmt: skip
KEPT_KEYS = ("model", "pre", "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix")


def alphabet() -> dict[int, str]:
    """How GPT-2's vocabularies spell bytes."""
    shown = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174]
    spare = iter(range(256, 512))
    return {byte: chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)}


def spelled(text: str, model: str) -> str:
    """The text in the characters the vocabulary spells its tokens with."""
    if model != "gpt2":
        return "\u2581" + text.replace(" ", "\u2581")
    return "".join(alphabet()[byte] for byte in text.encode())


def excerpt(metadata: dict[str, Any]) -> dict[str, Any]:
    """The tokens, as id, text, type and score, and the merges that the texts can reach; all bytes in any case."""
    model, tokens = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    reachable = "\0".join(spelled(text, model) for text in TEXTS) + "\0" + "\0".join(TEXTS)
    single = set(alphabet().values()) if model == "gpt2" else set()
    named = {value for key, value in metadata.items() if key.endswith("_token_id")}
    kept = [i for i, text in enumerate(tokens) if i in named or types[i] == 6 or text in single or text in reachable]
    merges = [each for each in metadata.get("tokenizer.ggml.merges", []) if each.replace(" ", "") in reachable]
    pieces = {piece for merge in merges for piece in [*merge.split(" ", 1), merge.replace(" ", "")]}
    kept = sorted({*kept, *(i for i, text in enumerate(tokens) if text in pieces)})
    return {"tokens": [[i, tokens[i], types[i], scores[i]] for i in kept], "merges": merges}


def main() -> None:
    """Write one golden file for each name."""
    folder = Path(sys.argv[1])
    for argument in sys.argv[2:]:
        name, _, file = argument.partition("=")
        path = folder / (file or f"ggml-vocab-{name}.gguf")
        metadata = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
        model = Llama(str(path), vocab_only=True, verbose=False)
        golden = {
            "metadata": {
                f"tokenizer.ggml.{key}": metadata[f"tokenizer.ggml.{key}"]
                for key in KEPT_KEYS
                if f"tokenizer.ggml.{key}" in metadata
            },
            **excerpt(metadata),
            "cases": [[text, model.tokenize(text.encode(), add_bos=False, special=False)] for text in TEXTS],
        }
        target = Path(__file__).parent / f"{name}.json"
        target.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Token ids against other tokenizers: llama.cpp's on excerpts of real vocabularies, a naive one on invented ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import sentencepiece
from tiny_vocabularies import sentence_pieces
from treadle.models.tokenizer import Tokenizer

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


class Excerpt:
    """A tokenizer over part of a vocabulary that speaks in the ids of the whole one."""

    def __init__(self, path: Path) -> None:
        golden = json.loads(path.read_text(encoding="utf-8"))
        ids, tokens, types, scores = zip(*golden["tokens"], strict=True)
        own_ids = {original: index for index, original in enumerate(ids)}
        metadata: dict[str, Any] = golden["metadata"]
        for key in [key for key in metadata if key.endswith("_token_id")]:
            metadata[key] = own_ids[metadata[key]]
        metadata |= {"tokenizer.ggml.tokens": list(tokens), "tokenizer.ggml.token_type": list(types)}
        metadata |= {"tokenizer.ggml.scores": list(scores), "tokenizer.ggml.merges": golden["merges"]}
        self.tokenizer = Tokenizer.from_metadata(metadata)
        self.cases: list[tuple[str, list[int]]] = [(text, ids) for text, ids in golden["cases"]]
        self._ids = ids

    def encode(self, text: str) -> list[int]:
        return [self._ids[token_id] for token_id in self.tokenizer.encode(text, add_bos=False)]


@pytest.fixture(scope="module")
def excerpts() -> dict[str, Excerpt]:
    return {path.stem: Excerpt(path) for path in GOLDEN}


@pytest.mark.parametrize("name", [path.stem for path in GOLDEN])
def test_ids_equal_those_of_llama_cpp(excerpts: dict[str, Excerpt], name: str) -> None:
    excerpt = excerpts[name]
    assert len(excerpt.cases) > 30
    for text, ids in excerpt.cases:
        assert excerpt.encode(text) == ids, text


@pytest.mark.parametrize("name", [path.stem for path in GOLDEN])
def test_decoding_gives_the_text_back(excerpts: dict[str, Excerpt], name: str) -> None:
    tokenizer = excerpts[name].tokenizer
    awkward = ["a  b and    c", "\t\t\tx", " " * 64 + "X", "<s>G", "", " ", "<|im_start|><unk><0x41>", "\0\x7f\ufeff"]
    for text in [text for text, _ in excerpts[name].cases] + awkward:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("llama-bpe", "3333", [8765, 18]),
        ("qwen2", "3333", [18, 18, 18, 18]),
        ("llama-bpe", "Cửa Việt", [34, 91163, 101798]),  # the second word is a token that no merge makes
        ("qwen2", "Cửa Việt", [34, 90063, 128324]),
        ("llama-bpe", "' era", [6, 11639]),
        ("qwen2", "' era", [6, 11385]),
        ("llama-bpe", "\n\n\n", [1432]),
        ("qwen2", "\n\n\n", [1406]),
        ("deepseek-llm", "\n\n\n", [185, 185, 185]),
        ("qwen2", "ied 4 ½ months", [1122, 220, 19, 220, 26062, 3951]),
        ("llama-bpe", "w048 7tuijk dsdfhu", [86, 23904, 220, 22, 83, 2005, 42908, 11729, 3013, 17156]),
        ("qwen2", " this is 🦙.cpp", [419, 374, 11162, 99, 247, 13, 10821]),
        ("smollm", "1234", [33, 34, 35, 36]),
        ("llama-spm", "Hello", [15043]),
        ("llama-spm", " Hello", [29871, 15043]),
        ("llama-spm", "  Hello", [259, 15043]),
        ("llama-spm", "333", [29871, 29941, 29941, 29941]),
        ("gemma-4", "  Hello", [138, 9259]),
        ("gemma-4", "!!!!!!", [123947]),
        ("gemma-4", "333", [236800, 236800, 236800]),
        ("gemma-4", "\n\n\n", [109]),
    ],
)
def test_ids_that_other_programs_got_wrong(excerpts: dict[str, Excerpt], name: str, text: str, ids: list[int]) -> None:
    assert excerpts[name].encode(text) == ids


PIECES = st.dictionaries(
    st.text("ab\u2581é", min_size=1, max_size=4), st.sampled_from([-1.0, -2.0, -3.0]), min_size=1, max_size=20
)


@given(pieces=PIECES, text=st.text("ab \u00e9語", max_size=30))
def test_sentence_pieces_merge_like_the_naive_reference(pieces: dict[str, float], text: str) -> None:
    metadata = sentence_pieces(pieces, add_space_prefix=False)
    tokenizer = Tokenizer.from_metadata(metadata)
    first = metadata["tokenizer.ggml.tokens"].index(next(iter(pieces)))
    known = {piece: (first + index, score) for index, (piece, score) in enumerate(pieces.items())}
    expected = sentencepiece.encode(text.replace(" ", "\u2581"), known, {byte: byte + 3 for byte in range(256)})
    assert tokenizer.encode(text, add_bos=False) == expected

"""WordPiece against the library that BERT's own tokenizer is part of, and files that are broken or hostile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models, normalizers, pre_tokenizers, processors

from treadle.errors import ModelFileError, UsageError
from treadle.models.tokenizer import Tokenizer

CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "cafe",
    "Café",
    "café",
    "cat",
    "s",
    "un",
    "北",
    "!",
    "'",
    "ß",
    "st",
    "i",
    "don",
    "t",
    "▁",
    "[",
    "]",
    "cls",
]
PIECES = ["##s", "##aff", "##able", "##e", "##t", "##北", "##▁"]
TEXTS = [
    "The cats, unaffable!",
    "Café CAFÉ cafe\u0301",
    "北京北 cat北s",
    "don't  \t\n the\u00a0cat \u200b\u00ad\x00\ufffd\x07s",
    "x" * 101 + " the " + "st" * 50,
    "STRASSE ẞ İ ﬁ Ⅷ ½ 한국어 🤖",
    "[CLS] the [SEP] ▁the ##s",
    " ",
]


def metadata(**changes: Any) -> dict[str, Any]:
    marked = [*(f"▁{word}" for word in WORDS), *(piece[2:] for piece in PIECES)]
    keys: dict[str, Any] = {
        "model": "bert",
        "tokens": [*CONTROL, *dict.fromkeys(marked)],
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
    }
    keys["token_type"] = [3] * len(CONTROL) + [1] * (len(keys["tokens"]) - len(CONTROL))
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **changes}.items() if value is not None}


def reference(*, lowercase: bool) -> Reference:
    """BERT's tokenizer as the library builds it from a vocabulary with ##."""
    ids = {text: index for index, text in enumerate([*CONTROL, *WORDS, *PIECES])}
    tokenizer = Reference(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def flags(lowercase: bool) -> dict[str, Any]:
    return {} if lowercase else {"normalizer.lowercase": False}


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_what_the_library_makes_of_them(text: str, lowercase: bool) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(**flags(lowercase)), is_complete=True)
    assert tokenizer.encode(text) == reference(lowercase=lowercase).encode(text).ids


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_any_text(text: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata(), is_complete=True)
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(UsageError, match="no UTF-8 form"):
            tokenizer.encode(text)
        return
    assert tokenizer.encode(text) == (reference(lowercase=True).encode(text).ids if text else [])


def test_the_file_says_what_becomes_of_accents() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(**{"normalizer.strip_accents": False}))
    assert [tokenizer.vocabulary.tokens[token_id] for token_id in tokenizer.encode("CAFÉ")][1:-1] == ["▁café"]


def test_tokens_read_as_words_again() -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    assert tokenizer.decode(tokenizer.encode("the cats unaffable")) == "the cats unaffable"


def test_control_tokens_are_never_found_in_text() -> None:
    kinds = metadata()["tokenizer.ggml.token_type"]
    kinds[metadata()["tokenizer.ggml.tokens"].index("▁cat")] = 3
    tokenizer = Tokenizer.from_metadata(metadata(token_type=kinds))
    assert tokenizer.encode("cat [MASK]") == [2, 1, *tokenizer.encode("[")[1:-1], 1, *tokenizer.encode("]")[1:-1], 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": None}, "unknown_token_id is missing"),
        ({"unknown_token_id": 10**9}, "unknown_token_id: expected an id below"),
        ({"seperator_token_id": "x"}, "seperator_token_id: expected an id below"),
        ({"add_sep_token": True, "seperator_token_id": None}, "add_sep_token is true, but .*seperator_token_id"),
        ({"normalizer.lowercase": 1}, "normalizer.lowercase: expected true or false"),
        ({"tokens": ["a", "a"], "token_type": None}, "two ids"),
    ],
)
def test_broken_files_are_refused_by_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(metadata(**changes))


def test_a_book_is_refused_early() -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    with pytest.raises(UsageError, match="far more than 8 tokens"):
        tokenizer.encode("the " * 100_000, max_tokens=8)

"""Unigram vocabularies against the plainest search, the library that XLM-RoBERTa's own tokenizer is part of, and files
that are broken or hostile."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models, normalizers, pre_tokenizers

from oracles import unigram
from tiny_vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from treadle.errors import ModelFileError, UsageError
from treadle.models.tokenizer import Tokenizer

HEAD = [("<s>", CONTROL), ("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
# Scores whose sums are never alike, so that there is one best cut.
PIECES = {
    text: -2.0 - 0.37 * index - 0.0113 * index * index
    for index, text in enumerate(
        ["▁", "▁the", "▁ca", "▁cat", "t", "s", "the", "a", "c", "h", "e", "▁北", "京", "北京", "é", "fi", "at", "▁un"]
    )
}
TABLE = {
    "\t": " ",
    "\n": " ",
    "\u3000": " ",
    "ﬁ": "fi",
    "Ａ": "a",
    "ﷺ": "the cat",
    "e\u0301": "é",
    "\u00ad": "",
    "①": "1",
}
LONG_TABLE = {**TABLE, "e\u0301\u0327": "ȩ́", "\r\n": " ", "a\u0301": "á", "京\u0301": "e\u0301"}
ALPHABET = "the cats ﬁＡﷺ北京 ▁\t\n\u3000e\u0301\u0327\r\u00ad①☃🤖\0<s>"
TEXTS = [
    "the cats",
    "  the   cat ",
    "",
    " ",
    "▁the",
    "cafe\u0301s",
    "☃☃ ☃",
    "<s> the </s><unk>",
    "北京北京\t京",
    "\0the\0",
]


def metadata(pieces: dict[str, float] | None = None, *special: tuple[str, int], **changes: Any) -> dict[str, Any]:
    pieces = PIECES if pieces is None else pieces
    head = [*HEAD, *special]
    keys: dict[str, Any] = {
        "model": "t5",
        "tokens": [*(text for text, _ in head), *pieces],
        "token_type": [*(kind for _, kind in head), *[NORMAL] * len(pieces)],
        "scores": [*[0.0] * len(head), *pieces.values()],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "add_bos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": unigram.pack_char_map(TABLE),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **changes}.items() if value is not None}


def plainly(text: str, pieces: dict[str, float], table: dict[str, str], *, merges: bool = True) -> list[int]:
    ids = {piece: (len(HEAD) + index, score) for index, (piece, score) in enumerate(pieces.items())}
    marked = unigram.mark_spaces(unigram.replace(text, table), merges=merges)
    return [0, *unigram.encode(marked, ids, 3), 2]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_cut_as_the_plainest_search_cuts_them(text: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    assert tokenizer.encode(text) == plainly(text, PIECES, TABLE)


@settings(deadline=None)
@given(st.text(ALPHABET, max_size=30), st.booleans())
def test_any_text_with_sequences_that_are_replaced(text: str, merges: bool) -> None:
    table = unigram.pack_char_map(LONG_TABLE)
    tokenizer = Tokenizer.from_metadata(metadata(precompiled_charsmap=table, remove_extra_whitespaces=merges))
    expected = plainly(text, PIECES, LONG_TABLE, merges=merges) if text else [0, 2]
    assert tokenizer.encode(text) == expected


def test_random_vocabularies_are_read_as_the_library_reads_them() -> None:
    rng = random.Random(7)
    for _ in range(40):
        pieces = {"▁": -3.0}
        for _ in range(60):
            word = "".join(rng.choices("abcé☃京", k=rng.randint(1, 4)))
            pieces.setdefault(("▁" if rng.random() < 0.4 else "") + word, -20 * rng.random())
        tokenizer = Tokenizer.from_metadata(metadata(pieces))
        names = [*(("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)), *pieces.items()]
        reference = Reference(models.Unigram(names, 3, False))
        reference.normalizer = normalizers.Precompiled(bytes(unigram.pack_char_map(TABLE)))
        reference.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
        )
        for _ in range(25):
            text = "".join(rng.choices("abcé☃京 \t\nＡﬁ①xy", k=rng.randint(0, 40)))
            assert tokenizer.encode(text)[1:-1] == reference.encode(text).ids, (text, pieces)


def test_tokens_with_a_space_inside_are_found() -> None:
    pieces = {**PIECES, "▁the▁cat": -1.0, "▁▁": -1.5}
    tokenizer = Tokenizer.from_metadata(metadata(pieces, remove_extra_whitespaces=False))
    for text in ("the cat", "the   cat", "a the cats"):
        assert tokenizer.encode(text) == plainly(text, pieces, TABLE, merges=False)


def test_control_byte_and_unused_tokens_are_never_found_in_text() -> None:
    special = (("[PAD]", UNUSED), ("<0x41>", BYTE))
    tokenizer = Tokenizer.from_metadata(metadata({**PIECES, "<": -9.0, ">": -9.5}, *special))
    for text in ("<s>", "</s>", "[PAD]", "<0x41>", "<unk>"):
        assert not {0, 1, 2, 4, 5} & set(tokenizer.encode(text)[1:-1]), text


def test_characters_without_a_token_are_bytes_where_there_are_bytes() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(None, *((f"<0x{byte:02X}>", BYTE) for byte in range(256))))
    ids = tokenizer.encode("the☃☃ cat")[1:-1]
    assert [tokenizer.token_bytes(token_id) for token_id in ids][1:-1] == [bytes([each]) for each in "☃☃".encode()]
    assert tokenizer.decode(ids) == "the☃☃ cat"


def test_half_of_the_bytes_are_not_enough() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(None, ("<0xE2>", BYTE)))
    assert tokenizer.encode("the☃")[2:-1] == [3]


def test_user_defined_tokens_keep_the_spaces_around_them() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(None, ("<ﬁ>", USER_DEFINED)))
    tokens = tokenizer.vocabulary.tokens
    assert [tokens[each] for each in tokenizer.encode("the  <ﬁ>  cat ")[1:-1]] == ["▁the", "▁", "<ﬁ>", "▁cat"]
    assert [tokens[each] for each in tokenizer.encode("<ﬁ>s")[1:-1]] == ["▁", "<ﬁ>", "s"]


def test_a_file_may_do_without_table_and_flags() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(precompiled_charsmap=None, unknown_token_id=None, add_bos_token=None))
    assert tokenizer.encode("the\tcat") == plainly("the\tcat", PIECES, {})[1:]


def test_tokens_read_as_text_again() -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    assert tokenizer.decode(tokenizer.encode("the cats the 北京")) == "the cats the 北京"


def test_bytes_may_be_signed() -> None:
    signed = [value - 256 if value > 127 else value for value in unigram.pack_char_map(TABLE)]
    assert Tokenizer.from_metadata(metadata(precompiled_charsmap=signed)).encode("ﬁ") == plainly("fi", PIECES, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": 10**9}, "unknown_token_id: expected an id below"),
        ({"scores": [0.0]}, "scores: expected one for each of"),
        ({"scores": None}, "scores: is missing"),
        ({"precompiled_charsmap": "abc"}, "precompiled_charsmap: expected a list"),
        ({"precompiled_charsmap": [1, 2]}, "2 bytes are no table"),
        ({"precompiled_charsmap": [255, 255, 255, 255, 0, 0, 0, 0]}, "8 bytes are no table"),
        ({"precompiled_charsmap": [3, 0, 0, 0, 1, 1, 1]}, "7 bytes are no table"),
        ({"add_space_prefix": 1}, "add_space_prefix: expected true or false"),
    ],
)
def test_broken_files_are_refused_by_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(metadata(**changes))


def test_a_vocabulary_without_an_unknown_token_is_refused() -> None:
    names = ["<s>", "<pad>", "</s>", "<none>", *PIECES]
    with pytest.raises(ModelFileError, match="unknown_token_id is missing"):
        Tokenizer.from_metadata(metadata(tokens=names, unknown_token_id=None))


def test_replacements_that_are_not_there_are_refused() -> None:
    whole = unigram.pack_char_map({"a": "x"})
    with pytest.raises(ModelFileError, match="expected a replacement of at most 256 bytes"):
        Tokenizer.from_metadata(metadata(precompiled_charsmap=whole[:-1]))
    with pytest.raises(ModelFileError, match="expected a replacement of at most 256 bytes"):
        Tokenizer.from_metadata(metadata(precompiled_charsmap=unigram.pack_char_map({"a": "x" * 257})))
    with pytest.raises(ModelFileError, match="is no UTF-8"):
        Tokenizer.from_metadata(metadata(precompiled_charsmap=[*whole[:-2], 0xFF, 0]))


def test_damaged_tables_end_in_one_kind_of_error() -> None:
    rng = random.Random(5)
    whole = unigram.pack_char_map(LONG_TABLE)
    for _ in range(150):
        damaged = list(whole)
        for _ in range(rng.randint(1, 40)):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        try:
            tokenizer = Tokenizer.from_metadata(metadata(precompiled_charsmap=damaged))
            tokenizer.encode(ALPHABET * 3)
        except ModelFileError:
            continue


def test_a_book_is_refused_early() -> None:
    tokenizer = Tokenizer.from_metadata(metadata())
    with pytest.raises(UsageError, match="far more than 8 tokens"):
        tokenizer.encode("the " * 100_000, max_tokens=8)


def test_a_text_without_spaces_takes_no_longer_than_its_length() -> None:
    tokenizer = Tokenizer.from_metadata(metadata(precompiled_charsmap=unigram.pack_char_map(LONG_TABLE)))
    assert len(tokenizer.encode("北京e\u0301" * 60_000)) > 60_000

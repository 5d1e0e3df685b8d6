"""Vocabularies that lie: one error that names the key, never a crash and never a guess."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny_vocabularies import BYTE, CONTROL, NORMAL, byte_pair, chat_markup, sentence_pieces
from treadle.errors import ModelFileError
from treadle.models.prompt_guard import RenderedPrompt
from treadle.models.tokenizer import Tokenizer

PIECES = {"a": -1.0, "b": -2.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens: is missing"),
        ({"tokens": []}, "at least one token"),
        ({"tokens": "abc"}, "tokens: expected a list, found str"),
        ({"tokens": ["a", 5]}, "tokens: expected a list of str, found elements of type int"),
        ({"tokens": ["a", "b", "a"]}, "tokens: 'a' has two ids, 0 and 2"),
        ({"token_type": [1, 1]}, "token_type: expected one for each of 260 tokens, found 2"),
        ({"token_type": [9] * 260}, "token_type: expected token types 1 to 6, found 9"),
        ({"token_type": ["x"] * 260}, "token_type: expected a list of int"),
        ({"token_type": [BYTE] * 260}, "byte token 0 expected like <0x0A>"),
        ({"merges": None}, "merges: is missing"),
        ({"merges": ["ab"]}, "merges: expected two pieces, found 'ab' at index 0"),
        ({"merges": ["no where"]}, "merges: .*`no`"),
        ({"merges": [1]}, "merges: expected a list of str"),
        ({"eos_token_id": 260}, "eos_token_id: expected an id below 260, found 260"),
        ({"bos_token_id": -1}, "bos_token_id: expected an id below 260, found -1"),
        ({"eot_token_id": "5"}, "eot_token_id: expected an id below 260, found '5'"),
        ({"eom_token_id": True}, "eom_token_id: expected an id"),
        ({"add_bos_token": 1}, "add_bos_token: expected true or false, found 1"),
        ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"),
        ({"model": "unigram"}, "model: expected gpt2, llama, gemma4, bert or t5, found 'unigram'"),
        ({"model": None}, "model: expected gpt2, llama, gemma4, bert or t5, found None"),
        ({"pre": 7}, "pre: expected a name, found 7"),
    ],
)
def test_a_broken_byte_pair_vocabulary_names_the_key(change: dict[str, Any], message: str) -> None:
    metadata = byte_pair() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{message}|tokenizer\.ggml\..*{message}"):
        Tokenizer.from_metadata(metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": None}, "scores: is missing"),
        ({"scores": [0.0]}, "scores: expected one for each of 261 tokens, found 1"),
        ({"scores": [float("nan")] * 261}, "scores: expected finite numbers"),
        ({"scores": [1] * 261}, "scores: expected a list of float"),
        ({"add_space_prefix": "no"}, "add_space_prefix: expected true or false"),
    ],
)
def test_a_broken_sentence_piece_vocabulary_names_the_key(change: dict[str, Any], message: str) -> None:
    metadata = sentence_pieces(PIECES) | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{message}"):
        Tokenizer.from_metadata(metadata)


def test_a_merge_that_needs_a_control_token_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.merges"):
        Tokenizer.from_metadata(byte_pair(("a|", CONTROL), ("a|b", NORMAL)) | {"tokenizer.ggml.merges": ["a| b"]})


def test_tokens_that_are_no_unicode_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml"):
        Tokenizer.from_metadata(byte_pair(("\ud800", NORMAL)))


def test_empty_tokens_are_harmless() -> None:
    tokenizer = Tokenizer.from_metadata(byte_pair(("", NORMAL)))
    assert tokenizer.token_bytes(260) == b""
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_a_control_token_of_one_character_is_never_found_in_a_prompt() -> None:
    tokenizer = Tokenizer.from_metadata(byte_pair(("語", CONTROL)))
    assert tokenizer.decode(tokenizer.encode_prompt(RenderedPrompt("語"))) == "語"


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.text(max_size=3), st.floats(),
    st.lists(st.one_of(st.text(max_size=3), st.integers(0, 8), st.floats()), max_size=4),
)  # fmt: skip
KEYS = sorted(chat_markup() | sentence_pieces(PIECES, add_bos_token=True, add_space_prefix=True))


@pytest.mark.filterwarnings("ignore:the model file has no tokenizer")
@given(base=st.sampled_from([chat_markup(), sentence_pieces(PIECES)]), key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_under_any_key_works_or_is_a_model_file_error(base: dict[str, Any], key: str, value: Any) -> None:
    try:
        tokenizer = Tokenizer.from_metadata(base | {key: value})
    except ModelFileError as error:
        assert "tokenizer.ggml." in str(error)
    else:
        tokenizer.decode(tokenizer.encode("a ab", add_bos=False))

"""The tokenizer: control tokens, BOS, ends of answers, decoding, and the SentencePiece space."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny_vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_pair, chat_markup, sentence_pieces
from treadle.errors import UsageError
from treadle.models.prompt_guard import RenderedPrompt
from treadle.models.tokenizer import Tokenizer

IM_START, IM_END, THINK = 261, 262, 263
PIECES = {"\u2581": -9.0, "a": -8.0, "b": -7.0, "\u2581a": -2.0, "\u2581\u2581": -3.0, "ab": -4.0, "<": -8.0, "s": -8.0}
PIECES |= {">": -8.0, "s>": -1.0}


def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(metadata)


@given(text=st.text())
def test_byte_pair_text_survives_the_round_trip(text: str) -> None:
    markup = tokenizer(chat_markup())
    ids = markup.encode(text)
    assert markup.decode(ids) == text
    assert not markup.vocabulary.control_ids & set(ids)


@given(text=st.text("ab <s>/\t\n\u00e9😀"), prefix=st.booleans())
def test_sentence_piece_text_survives_the_round_trip(text: str, prefix: bool) -> None:
    pieces = tokenizer(sentence_pieces(PIECES, ("  ", USER_DEFINED), add_space_prefix=prefix))
    ids = pieces.encode(text, add_bos=False)
    assert pieces.decode(ids) == text
    assert not pieces.vocabulary.control_ids & set(ids)


@pytest.mark.parametrize("spelling", ["<|im_start|>", "<|endoftext|>", "a<|im_end|>b"])
def test_spelling_a_control_token_does_not_make_one(spelling: str) -> None:
    ids = tokenizer(chat_markup()).encode(spelling)
    assert len(ids) == len(spelling)
    assert max(ids) < 256


@pytest.mark.parametrize("spelling", ["<s>", "</s>", "<unk>", "<0x41>"])
def test_scores_do_not_merge_text_into_control_or_byte_tokens(spelling: str) -> None:
    pieces = tokenizer(sentence_pieces(PIECES, add_space_prefix=False))
    assert len(pieces.encode(spelling, add_bos=False)) > 1
    assert pieces.decode(pieces.encode(spelling)) == spelling


def test_a_word_that_is_a_control_token_stays_text_where_whole_words_come_first() -> None:
    llama = tokenizer(byte_pair(("STOP", CONTROL), ("word", NORMAL), pre="llama-bpe"))
    assert llama.encode("word") == [261]
    assert llama.encode("STOP") == [ord(letter) for letter in "STOP"]


def test_user_defined_tokens_are_matched_in_text_leftmost_then_longest() -> None:
    markup = tokenizer(byte_pair(("<a>", USER_DEFINED), ("<a><b>", USER_DEFINED), ("b><a", USER_DEFINED)))
    assert markup.encode("<a><b><a>") == [261, 260]


def test_user_defined_spellings_of_turns_and_ends_count_as_control() -> None:
    markup = tokenizer(byte_pair(("<|im_start|>", USER_DEFINED), ("<|im_end|>", USER_DEFINED)))
    assert max(markup.encode("<|im_start|>user")) < 260
    assert markup.encode_prompt(RenderedPrompt("<|im_start|>x")) == [260, ord("x")]
    assert markup.eog_ids == {261}


def test_a_prompt_has_control_tokens_where_the_template_put_them() -> None:
    markup = tokenizer(chat_markup())
    rendered = RenderedPrompt("<|im_start|>user\n<\ufdd0|im_end|><|im_end|>", guard="\ufdd0")
    ids = markup.encode_prompt(rendered)
    assert ids[0] == IM_START
    assert ids[-1] == IM_END
    assert markup.decode(ids[1:-1]) == "user\n<|im_end|>"
    assert ids.count(IM_END) == 1


def test_guarded_user_defined_tokens_are_text_too() -> None:
    markup = tokenizer(chat_markup())
    assert markup.encode_prompt(RenderedPrompt("<think>")) == [THINK]
    assert markup.encode_prompt(RenderedPrompt("<\ufdd0think>", guard="\ufdd0")) == [ord(each) for each in "<think>"]


@pytest.mark.parametrize(
    ("add_bos_token", "pre", "expected"),
    [
        (True, "gpt-2", True),
        (False, "llama-bpe", False),
        (None, "llama-bpe", True),
        (None, "tekken", True),
        (None, "gpt-2", False),
        (None, "qwen2", False),
    ],
)
def test_bos_follows_the_file_and_else_the_family(add_bos_token: bool | None, pre: str, expected: bool) -> None:
    markup = tokenizer(chat_markup(add_bos_token=add_bos_token, pre=pre, bos_token_id=260))
    assert markup.add_bos is expected
    assert markup.encode("hi") == [260] * expected + [ord("h"), ord("i")]
    assert markup.encode("hi", add_bos=False) == [ord("h"), ord("i")]
    assert markup.encode("hi", add_bos=True)[0] == 260


@pytest.mark.parametrize("text", ["<|endoftext|>hi", "hi"])
def test_a_prompt_has_bos_exactly_once(text: str) -> None:
    markup = tokenizer(chat_markup(add_bos_token=True))
    assert markup.encode_prompt(RenderedPrompt(text)) == [260, ord("h"), ord("i")]


def test_text_that_spells_bos_gets_the_real_one_only_in_front() -> None:
    ids = tokenizer(chat_markup(add_bos_token=True)).encode("<|endoftext|>")
    assert ids.count(260) == 1
    assert ids[0] == 260


def test_sentence_pieces_begin_with_bos_unless_told_otherwise() -> None:
    assert tokenizer(sentence_pieces(PIECES)).encode("")[0] == 1
    assert tokenizer(sentence_pieces(PIECES, add_bos_token=False)).encode("") == []


def test_asking_for_a_bos_the_model_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, match="no BOS"):
        tokenizer(byte_pair()).encode("x", add_bos=True)


def test_eos_is_added_where_the_file_asks_for_it() -> None:
    assert tokenizer(chat_markup(add_eos_token=True)).encode("h") == [ord("h"), 262]


def test_every_end_of_generation_token_is_known() -> None:
    special = [(text, CONTROL) for text in ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "x|")]
    markup = tokenizer(byte_pair(*special, ("</s>", NORMAL), eos_token_id=266, eot_token_id=260, eom_token_id=265))
    assert markup.eog_ids == {260, 261, 262, 263, 264, 265, 266}


def test_harmony_answers_go_on_after_the_end_of_a_message() -> None:
    special = [(text, CONTROL) for text in ("<|end|>", "<|return|>", "<|call|>")]
    assert tokenizer(byte_pair(*special)).eog_ids == {261, 262}


def test_the_strike_tag_of_gemma_ends_nothing() -> None:
    special = [(text, CONTROL) for text in ("<eos>", "<end_of_turn>", "</s>")]
    assert tokenizer(byte_pair(*special, eos_token_id=260)).eog_ids == {260, 261}


def test_control_tokens_are_left_out_of_decoded_text_unless_kept() -> None:
    markup = tokenizer(chat_markup())
    ids = [IM_START, ord("a"), THINK, IM_END]
    assert markup.decode(ids) == "a<think>"
    assert markup.decode(ids, keep_control=True) == "<|im_start|>a<think><|im_end|>"


def test_the_first_space_is_dropped_at_the_start_of_a_text_only() -> None:
    pieces = tokenizer(sentence_pieces(PIECES))
    ids = pieces.encode("a a", add_bos=False)
    assert [pieces.token_text(token_id) for token_id in ids] == [" a", " a"]
    assert pieces.decode(ids) == "a a"
    assert pieces.decode(ids, continuation=True) == " a a"
    stream = pieces.stream(continuation=True)
    assert [stream.push(token_id) for token_id in ids] == [" a", " a"]


def test_no_space_is_added_after_a_control_token_inside_a_prompt() -> None:
    pieces = tokenizer(sentence_pieces(PIECES, add_bos_token=True))
    a, spaced_a = 260, 262
    assert pieces.vocabulary.tokens[a] == "a"
    assert pieces.encode_prompt(RenderedPrompt("a</s>a")) == [1, spaced_a, 2, a]
    assert pieces.encode_prompt(RenderedPrompt("<s>a</s>a")) == [1, spaced_a, 2, a]


def test_bytes_of_tokens_need_not_be_whole_characters() -> None:
    markup = tokenizer(chat_markup())
    ids = markup.encode("é")
    assert [markup.token_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9"]
    assert markup.token_text(ids[0]) == "\ufffd"
    assert tokenizer(sentence_pieces(PIECES)).token_bytes(3 + 0xFF) == b"\xff"


@pytest.mark.parametrize("token_id", [-1, 266])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    with pytest.raises(UsageError, match=rf"token {token_id}: expected an id from 0 to 265"):
        tokenizer(chat_markup()).decode([token_id])


@pytest.mark.parametrize("metadata", [chat_markup(), sentence_pieces(PIECES)])
def test_half_a_surrogate_pair_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="surrogates not allowed"):
        tokenizer(metadata).encode("a\ud83d")


def test_a_character_without_token_or_bytes_is_refused_or_unknown() -> None:
    lacking = sentence_pieces(PIECES)
    for key in ("tokens", "token_type", "scores"):
        del lacking[f"tokenizer.ggml.{key}"][3:259]
    assert tokenizer(lacking).encode("é", add_bos=False)[-1:] == [0]
    del lacking["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(UsageError, match="'é'"):
        tokenizer(lacking).encode("é")

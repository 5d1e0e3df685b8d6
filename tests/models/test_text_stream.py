"""Streaming: whatever the tokens cut, characters come out whole and the sum equals decoding at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.text_stream import TextStream


def streamed(pieces: list[bytes]) -> list[str]:
    stream = TextStream(lambda index: pieces[index])
    return [stream.push(index) for index in range(len(pieces))] + [stream.finish()]


@pytest.mark.parametrize("text", ["안녕하세요 😀 สวัสดี ďábel 🇰🇷", "plain", ""])
def test_single_bytes_give_whole_characters(text: str) -> None:
    chunks = streamed([bytes([byte]) for byte in text.encode()])
    assert [chunk for chunk in chunks if chunk] == list(text)


@given(text=st.text(), cuts=st.lists(st.integers(0, 400)))
def test_joined_chunks_equal_the_text(text: str, cuts: list[int]) -> None:
    encoded = text.encode()
    edges = sorted({0, len(encoded), *(cut for cut in cuts if cut < len(encoded))})
    chunks = streamed([encoded[begin:end] for begin, end in pairwise(edges)])
    assert "".join(chunks) == text
    assert all("\ufffd" not in chunk for chunk in chunks if "\ufffd" not in text)


@given(pieces=st.lists(st.binary(max_size=5)))
def test_invalid_bytes_are_replaced_as_in_decoding_at_once(pieces: list[bytes]) -> None:
    assert "".join(streamed(pieces)) == b"".join(pieces).decode(errors="replace")


def test_invalid_bytes_are_replaced_as_soon_as_they_are_known_invalid() -> None:
    assert streamed([b"a\xf0\x9f", b"x", b"\xff"]) == ["a", "\ufffdx", "\ufffd", ""]


def test_a_character_cut_off_by_the_end_gives_one_replacement() -> None:
    assert streamed([b"a", "😀".encode()[:3]]) == ["a", "", "\ufffd"]

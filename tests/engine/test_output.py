"""The text of an answer: stop strings across tokens, and nothing lost or leaked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeStream
from treadle.engine.output import TextOutput


def released(pieces: Sequence[str], stop: Sequence[str], tail: str = "") -> tuple[list[str], bool]:
    """Push `pieces` until a stop string ends the answer; return what came out each time, and whether it was stopped."""
    output = TextOutput(FakeStream(lambda index: pieces[index], tail), stop)
    texts = []
    for index in range(len(pieces)):
        texts.append(output.push(index))
        if output.stop is not None:
            break
    texts.append(output.finish())
    return texts, output.stop is not None


def test_holds_back_a_stop_string_that_spans_tokens() -> None:
    texts, stopped = released(["alpha", " be", "ta", " ga", "mma", " delta"], ["ta gam"])
    assert texts == ["alpha", " be", "", "", "", ""]
    assert stopped


def test_releases_what_turned_out_not_to_be_a_stop_string() -> None:
    texts, stopped = released(["a b", "eta", " g", "o"], ["beta gamma"])
    assert texts == ["a ", "", "", "beta go", ""]
    assert not stopped


def test_gives_the_held_end_when_the_answer_ends() -> None:
    assert released(["gamma ", "delta"], ["delta!"]) == (["gamma ", "", "delta"], False)


def test_restarts_inside_a_failed_match() -> None:
    assert released(["a", "a", "b"], ["ab"]) == (["", "a", "", ""], True)


def test_without_stop_strings_nothing_is_held() -> None:
    assert released(["a", "", "b"], [], tail="!") == (["a", "", "b", "!"], False)


def test_a_stop_string_completed_by_the_last_bytes_still_counts() -> None:
    assert released(["en"], ["end"], tail="d.") == (["", ""], True)


@pytest.mark.parametrize("pieces", [["abcd"], ["a", "b", "c", "d"], ["ab", "cd"]])
def test_the_match_that_ends_first_wins(pieces: list[str]) -> None:
    texts, stopped = released(pieces, ["abcd", "bc"])
    assert ("".join(texts), stopped) == ("a", True)


@given(
    text=st.text(alphabet="ab", max_size=20),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
def test_text_does_not_depend_on_where_the_tokens_are_cut(text: str, stop: list[str], cuts: list[int]) -> None:
    ends = (
        [min((text.find(s) + len(s), text.find(s)) for s in stop if s in text)] if any(s in text for s in stop) else []
    )
    expected = text[: ends[0][1]] if ends else text
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    texts, stopped = released(pieces, stop)
    assert ("".join(texts), stopped) == (expected, bool(ends))


def test_stop_strings_wait_for_the_shortest_length() -> None:
    pieces = ["end", " en", "d a", "n end", "!"]
    output = TextOutput(FakeStream(lambda index: pieces[index]), ["end"], min_tokens=3)
    assert [output.push(index) for index in range(4)] == ["end", " en", "d a", "n "]
    assert output.stop == "end"

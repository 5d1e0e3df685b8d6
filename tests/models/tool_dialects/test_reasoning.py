"""Reasoning is set apart from the answer, whatever the cuts."""

from __future__ import annotations

import pytest

from treadle.models.tool_dialects import Content, Part, Reasoning, ReasoningParser, ToolCall, find_reasoning
from treadle.models.tool_dialects.dialect import DIALECTS

HERMES = next(dialect for dialect in DIALECTS if dialect.name == "hermes")
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def read(text: str, *, is_open: bool = False) -> list[Part]:
    markers = find_reasoning("… </think> …")
    assert markers is not None
    parser = ReasoningParser(markers, HERMES.parser({}), is_open=is_open)
    parts: list[Part] = []
    for part in [*(part for piece in text for part in parser.push(piece)), *parser.finish()]:
        if parts and type(part) is type(parts[-1]) and not isinstance(part, ToolCall):
            parts[-1] = type(part)(parts[-1].text + part.text)
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>a < b</think>\n\nYes.", False, [Reasoning("a < b"), Content("Yes.")]),
        ("a</think>Yes.", True, [Reasoning("a"), Content("Yes.")]),
        ("\n<think>x</think>", False, [Reasoning("x")]),
        ("<think>cut off </thi", False, [Reasoning("cut off </thi")]),
        ("Yes </think> no", False, [Content("Yes </think> no")]),
        ("<thin", False, [Content("<thin")]),
        ("", True, []),
        (f"<think>{CALL}</think>{CALL}", False, [Reasoning(CALL), ToolCall("now", "{}")]),
    ],
)
def test_reasoning(text, is_open, expected):
    assert read(text, is_open=is_open) == expected


def test_a_template_without_tags_has_no_reasoning():
    assert find_reasoning("{{ message.content }}") is None

"""Finds the calls in an answer, also where the model wrote them otherwise than its template taught it.

Small models often write a call as bare JSON or in a ``json`` fence. Such text is a call if it is one whole JSON object
of an offered tool's ``name`` and of ``arguments`` or ``parameters``; nothing is repaired. What is meant for a call and
cannot be read as one is told apart from an answer, so that the model can be told.

Leaves to others: the dialects of the models (``models.tool_dialects``) and what arguments mean (``arguments``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.models.tool_dialects import AnswerParser, Content, Part, ToolCall, ToolSchemas
from treadle.models.tool_dialects.call_json import DECODER, call_from
from treadle.models.tool_dialects.fenced import fenced_parser
from treadle.models.tool_dialects.hermes import CLOSING, OPENING, hermes_parser
from treadle.models.tool_dialects.llama import llama_parser

__all__ = ["BrokenCall", "LooseParser", "ReadAnswer", "read_rest"]

_CALL_HEAD = re.compile(r'\{\s*"name"\s*:\s*"(?P<name>[^"]*)"')
_ARGUMENTS = re.compile(r'"(arguments|parameters)"\s*:')
_MARKERS = re.compile(r"</?(?:tool_call|tools|tool)>|```(?:tool_call|json)?")
# What only seems to be an answer, and what to tell a model that writes it.
_NO_ANSWERS = {
    OPENING: 'expected JSON with "name" and "arguments" in the tags',
    "<tool_response>": "only tools give results, which come in a message of their own",
}
_KEYS = {"name", "arguments", "parameters", "id", "type"}


@dataclass(frozen=True)
class BrokenCall:
    """Text that was meant for a call, as the model wrote it, and why it is none."""

    text: str
    problem: str


@dataclass(frozen=True)
class ReadAnswer:
    """What an answer is made of: text for the reader, calls, and what was meant for calls."""

    content: str
    calls: Sequence[ToolCall]
    broken: Sequence[BrokenCall]


class LooseParser:
    """Reads content piece by piece and takes out whole calls: bare, in a fence, or in tags that no engine read."""

    def __init__(self, tools: ToolSchemas) -> None:
        self._parsers: list[AnswerParser] = [llama_parser(tools), fenced_parser(tools), hermes_parser(tools)]

    def push(self, text: str) -> list[Part]:
        """Read more text and return the parts that are now certain."""
        parts: list[Part] = [Content(text)]
        for parser in self._parsers:
            parts = _pushed(parser, parts)
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back, once the answer has ended."""
        parts: list[Part] = []
        for parser in self._parsers:
            parts = [*_pushed(parser, parts), *parser.finish()]
        return parts


def _pushed(parser: AnswerParser, parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        found += parser.push(part.text) if isinstance(part, Content) else [part]
    return found


def read_rest(content: str, calls: Sequence[ToolCall], tools: ToolSchemas) -> ReadAnswer:
    """Look through what is left of an answer once its whole calls were taken out.

    Args:
        content: The text that is left.
        calls: The calls that were taken out.
        tools: The schemas of the tools on offer.
    """
    found, broken = list(calls), []
    rest, position = [], 0
    for match in _CALL_HEAD.finditer(content):
        if match.start() < position:
            continue
        is_marked = OPENING in content[: match.start()] or not _MARKERS.sub("", content[: match.start()]).strip()
        result, end = _read_at(content, match, tools, is_marked=is_marked)
        if result is None:
            continue
        rest.append(content[position : match.start()])
        position = end
        if isinstance(result, ToolCall):
            found.append(result)
        else:
            broken.append(result)
    rest.append(content[position:])
    text = "".join(rest)
    unmarked = _MARKERS.sub("", text).strip()
    if len(found) > len(calls) or broken or not unmarked:
        text = unmarked
    for marker, problem in _NO_ANSWERS.items():
        start = text.find(marker)
        if start >= 0:
            broken.append(BrokenCall(text[start:], problem))
            text = text[:start].strip()
    return ReadAnswer(text, found, broken)


def _read_at(
    content: str, match: re.Match[str], tools: ToolSchemas, *, is_marked: bool
) -> tuple[ToolCall | BrokenCall | None, int]:
    """Read what begins like a call; ``is_marked`` says that nothing but markers for calls stands before it."""
    start, name = match.start(), match["name"]
    if not (name in tools or is_marked) or not _ARGUMENTS.search(content, start):
        return None, start
    try:
        value, end = DECODER.raw_decode(content, start)
    except (ValueError, RecursionError) as error:
        closing = content.find(CLOSING, start)
        end = closing if closing >= 0 else len(content)
        return BrokenCall(content[start:end].strip(), f"it is not JSON: {error}"), end
    if not isinstance(value, Mapping) or not set(value) <= _KEYS:
        return None, start
    call = call_from(value, tools)
    if call is None:
        return BrokenCall(content[start:end], _why_not(value)), end
    return call, end


def _why_not(value: Mapping[str, Any]) -> str:
    if not value["name"]:
        return "it has no name"
    given = value.get("arguments", value.get("parameters"))
    if given in (None, ""):
        return "its arguments are missing"
    return "its arguments are not a JSON object"

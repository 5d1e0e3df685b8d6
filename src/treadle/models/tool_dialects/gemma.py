"""The dialect of Gemma: ``call:name{key:value}`` between control tokens, with text between delimiters of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.models.tool_dialects.call_json import call_from, read_number
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas

__all__ = ["FUNCTION_GEMMA", "GEMMA", "GemmaMarkers", "gemma_parser"]

_MAX_DEPTH = 32
_HEAD = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_BARE = re.compile(r"[^,{}\[\]\s]+")


@dataclass(frozen=True)
class GemmaMarkers:
    """The control tokens of one generation of the dialect; ``quote`` stands on both sides of every text."""

    opening: str
    closing: str
    quote: str


GEMMA = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")


def gemma_parser(markers: GemmaMarkers) -> Callable[[ToolSchemas], AnswerParser]:
    """Return the parser of one generation of the dialect."""

    def create(tools: ToolSchemas) -> AnswerParser:
        def read(body: str) -> list[ToolCall] | None:
            head = _HEAD.match(body)
            if head is None:
                return None
            try:
                arguments, end = _Reader(body, markers.quote).value(head.end(), 0)
            except _MalformedError:
                return None
            call = call_from({"name": head[1], "arguments": arguments}, tools) if not body[end:].strip() else None
            return None if call is None else [call]

        return MarkedParser((markers.opening,), markers.closing, read)

    return create


class _MalformedError(ValueError):
    pass


class _Reader:
    """Reads one value at a place and returns it with the place after it."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _MAX_DEPTH:
            raise _MalformedError
        at = self._skip(at)
        if self._text.startswith(self._quote, at):
            return self._quoted(at)
        if self._text.startswith("{", at):
            return self._object(at + 1, depth)
        if self._text.startswith("[", at):
            return self._array(at + 1, depth)
        match = _BARE.match(self._text, at)
        if match is None:
            raise _MalformedError
        return _bare_value(match[0]), match.end()

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while not self._text.startswith("}", at := self._skip(at)):
            if found:
                at = self._expect(",", at)
            key, at = self._key(self._skip(at))
            found[key], at = self.value(self._expect(":", at), depth + 1)
        return found, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while not self._text.startswith("]", at := self._skip(at)):
            if found:
                at = self._expect(",", at)
            each, at = self.value(at, depth + 1)
            found.append(each)
        return found, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, at):
            return self._quoted(at)
        end = self._text.find(":", at)
        if end <= at:
            raise _MalformedError
        return self._text[at:end].strip(), end

    def _quoted(self, at: int) -> tuple[str, int]:
        start = at + len(self._quote)
        end = self._text.find(self._quote, start)
        if end < 0:
            raise _MalformedError
        return self._text[start:end], end + len(self._quote)

    def _expect(self, character: str, at: int) -> int:
        at = self._skip(at)
        if not self._text.startswith(character, at):
            raise _MalformedError
        return at + 1

    def _skip(self, at: int) -> int:
        while at < len(self._text) and self._text[at].isspace():
            at += 1
        return at


def _bare_value(word: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if word in words:
        return words[word]
    number = read_number(word)
    if number is None:
        raise _MalformedError
    return number

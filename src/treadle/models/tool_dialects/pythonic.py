"""The dialect of LFM2: a list of Python calls between control tokens, such as ``[f(city="Paris", days=3)]``."""

from __future__ import annotations

import json
import re
from typing import Any

from treadle.models.tool_dialects.call_json import call_from, read_number
from treadle.models.tool_dialects.marked import MarkedParser
from treadle.models.tool_dialects.parts import AnswerParser, ToolCall, ToolSchemas

__all__ = ["CLOSING", "OPENING", "pythonic_parser"]

OPENING, CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"

_MAX_DEPTH = 32
_NAME = re.compile(r"[^\W\d][\w.-]*")
_WORD = re.compile(r"[\w.+-]+")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""} | {mark: mark for mark in "\\'\"/"}
_UNICODE = re.compile(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})")


def pythonic_parser(tools: ToolSchemas) -> AnswerParser:
    """Read calls as Python writes them, or as JSON, which these models write when they are asked to."""

    def read(body: str) -> list[ToolCall] | None:
        calls = [call_from(each, tools) for each in _json_calls(body) or _python_calls(body)]
        found = [call for call in calls if call is not None]
        return found if found and len(found) == len(calls) else None

    return MarkedParser((OPENING,), CLOSING, read)


def _json_calls(body: str) -> list[Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else [found]


def _python_calls(body: str) -> list[dict[str, Any]]:
    try:
        return _Reader(body).calls()
    except _MalformedError:
        return []


class _MalformedError(ValueError):
    pass


class _Reader:
    """Reads from ``at`` on; whatever it does not know is malformed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def calls(self) -> list[dict[str, Any]]:
        is_list = self._takes("[")
        found = [self._call()]
        while self._takes(","):
            found.append(self._call())
        if is_list:
            self._expect("]")
        self._skip()
        if self._at < len(self._text):
            raise _MalformedError
        return found

    def _call(self) -> dict[str, Any]:
        name = self._match(_NAME)
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._takes(")"):
            if arguments:
                self._expect(",")
            key = self._match(_NAME)
            if key in arguments:  # one of the values would be lost
                raise _MalformedError
            self._expect("=")
            arguments[key] = self._value(0)
        return {"name": name, "arguments": arguments}

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _MalformedError
        self._skip()
        if self._text.startswith(("'", '"'), self._at):
            return self._string()
        for opening, closing in ("[]", "()"):
            if self._takes(opening):
                return self._items(closing, depth)
        if self._takes("{"):
            return self._object(depth)
        return _word_value(self._match(_WORD))

    def _items(self, closing: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._takes(closing):
            if found:
                self._expect(",")
            found.append(self._value(depth + 1))
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._takes("}"):
            if found:
                self._expect(",")
            self._skip()
            key = self._string()
            self._expect(":")
            found[key] = self._value(depth + 1)
        return found

    def _string(self) -> str:
        quote = self._text[self._at : self._at + 1]
        if quote not in ("'", '"'):
            raise _MalformedError
        self._at += 1
        parts: list[str] = []
        while not self._text.startswith(quote, self._at):
            if self._at >= len(self._text):
                raise _MalformedError
            parts.append(self._character())
        self._at += 1
        try:  # escapes may give a character in two halves
            return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _MalformedError from None

    def _character(self) -> str:
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return character
        if code := _UNICODE.match(self._text, self._at):
            self._at = code.end()
            return chr(int(code[1] or code[2], 16))
        escape = self._text[self._at : self._at + 1]
        if escape not in _ESCAPES:
            raise _MalformedError
        self._at += 1
        return _ESCAPES[escape]

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _MalformedError
        self._at = found.end()
        return found[0]

    def _takes(self, mark: str) -> bool:
        self._skip()
        found = self._text.startswith(mark, self._at)
        self._at += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._takes(mark):
            raise _MalformedError

    def _skip(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def _word_value(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    number = read_number(word)
    if number is None:
        raise _MalformedError
    return number

"""Keeps what people wrote apart from what a chat template wrote, all the way to the tokenizer.

Rendering is left to ``chat_template``, encoding to ``tokenizer``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.errors import UsageError
from treadle.models.token_splitter import TokenSplitter

__all__ = ["ControlSpellings", "PromptGuard", "RenderedPrompt"]

# Unicode noncharacters: never assigned, never whitespace, unchanged by case and normalisation.
_GUARD_CHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# What models write around thoughts and tool calls. Templates look for these in an assistant's own words, so there they
# keep their meaning; in what users and tools say they are words like any other.
_ASSISTANT_MARKS = frozenset(
    {"<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"}
)
_MARKS = _ASSISTANT_MARKS | {"<tool_response>", "</tool_response>", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"}
_NO_MARKS: frozenset[str] = frozenset()
# No vocabulary has longer control tokens; a hostile one must not make every text slow to check.
_LONGEST_SPELLING = 256
# The fields of a message that hold what its author said.
_WORDS = frozenset({"content", "reasoning_content"})


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered chat.

    Tokens are looked for in ``text`` while the guard character is still in it; then the guard is taken out, and the
    words it stood in are encoded as ordinary text.
    """

    text: str
    guard: str = ""

    def __str__(self) -> str:
        return self.text.replace(self.guard, "") if self.guard else self.text

    def continued(self, text: str) -> RenderedPrompt:
        """Return the chat with more text of the template's own kind after it."""
        return RenderedPrompt(self.text + text, self.guard)


class ControlSpellings:
    """The spellings that must not come about by chance, ready for search; made once for a vocabulary."""

    def __init__(self, control: Collection[str]) -> None:
        self.control = frozenset(control)
        self._forwards = sorted(control)
        self._backwards = sorted(text[::-1] for text in control)
        self._longest = min(_LONGEST_SPELLING, max(map(len, control), default=0))
        self._joined = "\0".join(control)
        self._finders: dict[frozenset[str], TokenSplitter] = {}

    def break_up(self, text: str, spellings: frozenset[str], guard: str) -> str:
        """Put the guard into and around a text wherever a spelling is or could be completed."""
        if not text or text.isidentifier():
            return text
        if spellings not in self._finders:
            self._finders[spellings] = TokenSplitter(dict.fromkeys(spellings, 0))
        begin, parts = 0, []
        for start in self._finders[spellings].starts(text):
            parts.append(text[begin : start + 1])
            begin = start + 1
        guarded = guard.join([*parts, text[begin:]])
        reach = range(1, min(len(text), self._longest) + 1)
        if any(_is_prefix(text[:length][::-1], self._backwards) for length in reach):
            guarded = guard + guarded
        if any(_is_prefix(text[-length:], self._forwards) for length in reach) or text in self._joined:
            guarded += guard
        return guarded


class PromptGuard:
    """Breaks up every spelling of a control token in given texts with a character that occurs in none of them.

    A spelling is broken after its first character. A text that ends or begins with part of a spelling, or is the
    inside of one, is marked there too, so that no template completes it by putting pieces side by side. Identifiers
    stay as they are, for templates look keys up and compare values by name.

    ``mark`` is another character that occurs in none of them.
    """

    def __init__(self, spellings: ControlSpellings, inputs: Any) -> None:
        texts = list(_strings(inputs))
        unused = (each for each in _GUARD_CHARACTERS if not any(each in text for text in texts))
        found, mark = next(unused, None), next(unused, None)
        if found is None or mark is None:
            raise UsageError("the messages hold the Unicode noncharacters from U+FDD0 to U+FDEF; remove two")
        self.character = found
        self.mark = mark
        self._spellings = spellings
        self._control = spellings.control

    def protect_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with everything in it made safe except its role."""
        role = message["role"]
        own_words = spellings = self._control | (_NO_MARKS if role == "system" else _MARKS)
        if role == "assistant":
            own_words = self._control - _ASSISTANT_MARKS
        return {
            key: value if key == "role" else self._protect(value, own_words if key in _WORDS else spellings)
            for key, value in message.items()
        }

    def protect_other(self, value: Any) -> Any:
        """Tool definitions, or what else came with the messages, made safe."""
        return self._protect(value, self._control | _MARKS)

    def _protect(self, value: Any, spellings: frozenset[str]) -> Any:
        if isinstance(value, str):
            return self._spellings.break_up(value, spellings, self.character)
        if isinstance(value, Mapping):
            return {self._protect(key, spellings): self._protect(item, spellings) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._protect(item, spellings) for item in value]
        return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(list(value))
        yield from _strings(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _is_prefix(text: str, ordered: list[str]) -> bool:
    """Whether one of some sorted texts begins with a text."""
    index = bisect_left(ordered, text)
    return index < len(ordered) and ordered[index].startswith(text)

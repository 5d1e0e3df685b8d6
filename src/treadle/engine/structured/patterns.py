"""Reads the regular expressions of JSON schemas and spells them for the grammar engine, meaning no more than they do.

Leaves to others: which texts they bind (``structured.json_schema``). Schemas use JavaScript's language, validators
often Python's, and the grammar engine Rust's: where these differ, the result matches what all do, or it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

from treadle.errors import UsageError

__all__ = ["portable_pattern"]

_ESCAPE = re.compile(r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[pP]\{[^}]*\}|c[A-Za-z]|[\s\S])")
_GROUP = re.compile(r"\(\?P?<[A-Za-z_]\w*>|\(\?:")
# White space that JavaScript or Python knows beyond ASCII's.
_SPACES = r"\x1c-\x1f\x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
# What belongs to a class by all of them, and, for a class of what is left out, what belongs to it by one of them.
_CLASSES = {
    r"\d": "[0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\s": r"[\t-\r ]",
    r"\D": r"[^\p{Nd}]",
    r"\W": r"[\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7f]",
    r"\S": rf"[^\t-\r {_SPACES}]",
}
_LEFT_OUT = {
    r"\d": r"\p{Nd}",
    r"\w": r"[_\p{L}\p{N}]",
    r"\s": rf"[\t-\r {_SPACES}]",
    r"\D": "[^0-9]",
    r"\W": "[^0-9A-Za-z_]",
    r"\S": r"[^\t-\r ]",
}
_ANY = r"[^\n\r\u2028\u2029]"


def portable_pattern(pattern: str) -> str:
    """Return ``pattern`` for the grammar engine.

    Raises:
        UsageError: It uses what the grammar engine cannot follow, or what validators do not agree on.
    """
    return "".join(_spelled(pattern))


def _spelled(pattern: str) -> Iterator[str]:
    at = 0
    while at < len(pattern):
        text = pattern[at]
        if text == "\\":
            text = _match(_ESCAPE, pattern, at)
            yield _CLASSES.get(text) or _escape(text, is_in_class=False)
        elif text == "[":
            text = yield from _class(pattern, at)
        elif pattern.startswith("(?", at):
            text = _match(_GROUP, pattern, at)
            yield "(?:"
        else:
            yield _ANY if text == "." else text
        at += len(text)


def _class(pattern: str, start: int) -> Generator[str, None, str]:
    """Spell the class of characters that begins at ``start``; return what was read."""
    at = start + (2 if pattern.startswith("[^", start) else 1)
    yield pattern[start:at]
    meanings = _CLASSES if at == start + 1 else _LEFT_OUT
    if pattern.startswith("]", at):
        raise UsageError("an empty class means different things to different validators")
    while at < len(pattern) and pattern[at] != "]":
        text = pattern[at]
        if text == "\\":
            text = _match(_ESCAPE, pattern, at)
            yield meanings.get(text) or _escape(text, is_in_class=True)
        else:  # plain in JavaScript's classes, but Rust's nest and have operators
            is_operator = text == "[" or (text in "&-~" and pattern[at - 1] == text)
            yield f"\\{text}" if is_operator else text
        at += len(text)
    yield "]"
    return pattern[start : at + 1]


def _match(kind: re.Pattern[str], pattern: str, at: int) -> str:
    match = kind.match(pattern, at)
    if match is not None:
        return match[0]
    if kind is _ESCAPE:
        raise UsageError("it ends with a single backslash")
    if pattern.startswith(("(?=", "(?!", "(?<"), at):
        raise UsageError("look-ahead and look-behind cannot be enforced")
    raise UsageError(f"the group {pattern[at : at + 3]!r} is not known to every validator")


def _escape(text: str, *, is_in_class: bool) -> str:
    kind = text[1]
    if kind == "b" and is_in_class:
        return r"\x08"
    if kind in "bB":
        raise UsageError(f"the word boundary {text} cannot be enforced")
    if kind in "123456789k":
        raise UsageError(f"the reference {text} to a group cannot be enforced")
    if kind in "AZzG":
        raise UsageError(f"{text} means different things to different validators, use ^ and $")
    if kind == "c":
        return rf"\x{ord(text[2]) % 32:02x}"
    return r"\x00" if kind == "0" else text

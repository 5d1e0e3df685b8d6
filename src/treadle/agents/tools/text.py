"""What the bytes of a file are as text, how that text becomes the same kind of bytes again, and how it is shortened.

Leaves to others: where the bytes come from and what is done with the text.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from treadle.errors import ToolError

__all__ = ["MAX_RESULT_CHARS", "TextForm", "decode", "head", "size_text", "without_fence"]

# What one call may show: some 2,500 tokens, so that a context of 8,192 holds a few of them.
MAX_RESULT_CHARS = 8000
_PROBED_BYTES = 8192
# Code never begins with a fence of Markdown, but what small models give as code often does.
_FENCE = re.compile(r"\s*```[a-zA-Z0-9]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True)
class TextForm:
    """How a text is kept in a file: its encoding, the mark in front, and whether lines end in CR LF."""

    encoding: str = "utf-8"
    mark: bytes = b""
    has_crlf: bool = False

    def encode(self, text: str) -> bytes:
        """Return ``text``, whose lines end in LF, as a file of this form has it.

        Raises:
            ToolError: The encoding lacks a character.
        """
        if self.has_crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            bad = text[error.start]
            raise ToolError(f"the file is kept in {self.encoding}, which has no {bad!r}") from None


def decode(content: bytes, name: str) -> tuple[str, TextForm]:
    """Return the text of a file and the form it is kept in; lines end in LF if all of them ended in CR LF.

    What is neither marked nor UTF-8 is read as Latin-1, which keeps every byte.

    Raises:
        ToolError: It is no text.
    """
    mark, encoding = next(((mark, each) for mark, each in _MARKS if content.startswith(mark)), (b"", "utf-8"))
    body = content[len(mark) :]
    if not mark and b"\0" in body[:_PROBED_BYTES]:
        raise ToolError(f"{name} is no text but binary, {size_text(len(content))}")
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        if mark:
            raise ToolError(f"{name} is marked as {encoding} but is not") from None
        encoding = "latin-1"
        text = body.decode(encoding)
    num_lines = text.count("\n")
    has_crlf = num_lines > 0 and text.count("\r\n") == num_lines
    return (text.replace("\r\n", "\n") if has_crlf else text), TextForm(encoding, mark, has_crlf)


def head(text: str, max_chars: int = MAX_RESULT_CHARS) -> str:
    """Return a text, or its beginning and a line that tells how much of it that is."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: the first {max_chars:,} of {len(text):,} characters]"


def without_fence(code: str) -> str:
    """Return code without the fence of Markdown around all of it, if there is one."""
    found = _FENCE.fullmatch(code)
    return found[1] if found else code


def size_text(num_bytes: int) -> str:
    """Return a number of bytes in words, such as "12.3 kB"."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    value, unit = num_bytes / 1e3, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 999.95:
            break
        value, unit = value / 1e3, larger
    return f"{value:.1f} {unit}"

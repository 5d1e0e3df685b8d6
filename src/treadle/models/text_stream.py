"""Tokens to text as they arrive, without ever splitting a character.

Which bytes a token stands for is the tokenizer's knowledge; stop strings are held back further up.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

__all__ = ["TextStream"]


class TextStream:
    """Decodes one answer token by token; what was pushed, joined, equals decoding all ids at once.

    Bytes that may still become a character are held back. Bytes that can no longer become one give U+FFFD, and so does
    a character that the end cuts off: exactly once, from ``finish``.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, drop_space: Callable[[int], bool] | None = None) -> None:
        self._token_bytes = token_bytes
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often a word, sometimes nothing yet."""
        piece = self._token_bytes(token_id)
        if piece and self._drop_space is not None:
            if self._drop_space(token_id):
                piece = piece.removeprefix(b" ")
            self._drop_space = None
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left at the end: nothing, or one U+FFFD for a character that was cut off."""
        return self._decoder.decode(b"", final=True)

"""Keeps numbers in JSON answers within what programs read: without it, digits may follow each other without end.

Leaves to others: what the answer's grammar demands (``structured.grammar``), which prevails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["DigitTokens", "NumberLimit"]

_MAX_DIGITS = 20  # in a row: what 64 bits hold
_MAX_EXPONENT_DIGITS = 2  # far enough from the end of floating point for as many digits before it
_LEADING = re.compile(rb"[0-9]*")
_QUOTE, _BACKSLASH, _ZERO, _NINE = b'"\\09'


class DigitTokens:
    """With how many digits each token of a vocabulary begins."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._counts = np.zeros(-(-len(tokens) // 32) * 32, dtype=np.int64)
        self._counts[: len(tokens)] = [match.end() if (match := _LEADING.match(token)) else 0 for token in tokens]
        self._masks: dict[int, NDArray[np.uint32]] = {}

    def more_than(self, num_digits: int) -> NDArray[np.uint32]:
        """Return the tokens that begin with more digits, as bits of a mask."""
        if num_digits not in self._masks:
            self._masks[num_digits] = np.packbits(self._counts > num_digits, bitorder="little").view(np.uint32)
        return self._masks[num_digits]


class NumberLimit:
    """Reads one answer and counts the digits in a row, outside of texts, that it ends with."""

    def __init__(self, digits: DigitTokens) -> None:
        self._digits = digits
        self._is_text = False
        self._is_escaped = False
        self._num_left = _MAX_DIGITS

    def accept(self, token_id: int) -> None:
        """Read one token."""
        for byte in self._digits.tokens[token_id]:
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_text = byte != _QUOTE
                self._is_escaped = byte == _BACKSLASH
            elif _ZERO <= byte <= _NINE:
                self._num_left -= 1
            elif byte in b"eE":
                self._num_left = _MAX_EXPONENT_DIGITS
            elif byte not in b"+-" or self._num_left != _MAX_EXPONENT_DIGITS:
                self._is_text = byte == _QUOTE
                self._num_left = _MAX_DIGITS

    def restrict(self, mask: NDArray[np.uint32]) -> None:
        """Take what would be too many digits out of ``mask``, if anything is left then."""
        rest = mask & ~self._digits.more_than(max(self._num_left, 0))
        if rest.any():
            mask[:] = rest

"""What SentencePiece makes of characters before it cuts a text into tokens: the table that a GGUF file carries.

Leaves to others: spaces, which are no business of the table, and tokens (``unigram``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.errors import ModelFileError

__all__ = ["CharMap"]

_KEY = "tokenizer.ggml.precompiled_charsmap"
_HEADER_BYTES = 4
_MAX_KEY_LENGTH = 16  # characters that are replaced together; the tables of the field have up to 4
_MAX_REPLACEMENT_BYTES = 256  # Unicode has none beyond 33
_NODES_AT_A_TIME = 4096
_LABEL_BITS, _LEAF_BIT, _WIDE_BIT, _VALUE_BITS = 0x8000_00FF, 1 << 8, 1 << 9, 0x7FFF_FFFF

_Units = NDArray[np.uint32]


class _Node(NamedTuple):
    """Where reading of the table got to: what follows is under ``base`` of the array, and so is the value of a leaf."""

    base: int
    is_leaf: bool


class CharMap:
    """Replaces characters, and sequences of several, the longest that begins at a place.

    Args:
        blob: The size in bytes of a double array of what is replaced, the array (that of Darts-clone, whose units have
            32 bits), and the replacements, each with a zero behind it.

    Raises:
        ModelFileError: The table is broken.
    """

    def __init__(self, blob: Sequence[int]) -> None:
        content = bytes(value & 0xFF for value in blob)
        array_bytes = int.from_bytes(content[:_HEADER_BYTES], "little")
        if len(content) < _HEADER_BYTES or array_bytes % 4 or not 4 <= array_bytes <= len(content) - _HEADER_BYTES:
            raise ModelFileError(f"{_KEY}: {len(content)} bytes are no table of characters")
        units = np.frombuffer(content, "<u4", array_bytes // 4, _HEADER_BYTES)
        self._units: list[int] = units.tolist()
        self._replacements = content[_HEADER_BYTES + array_bytes :]
        self._root = int(_offsets(units[:1])[0])
        firsts = _characters(units, [self._root])
        self._single = {ord(text): self._replacement(node) for text, node in firsts if node.is_leaf}
        # Characters that are replaced together with one before them are few, mostly accents: to look for those, and not
        # for what a sequence may begin with, is what keeps ordinary text cheap.
        seconds = _class_of(_characters(units, {node.base for _, node in firsts}))
        self._second = re.compile(f"{seconds}(?<={_class_of(firsts)}{seconds})") if seconds else None

    def apply(self, text: str) -> str:
        """Return the text with everything replaced.

        Raises:
            ModelFileError: What is to be put in is not there.
        """
        if self._second is None:
            return text.translate(self._single)
        parts, done = [], 0
        for match in self._second.finditer(text):
            at = match.start() - 1
            if at < done:
                continue
            length, node = self._longest(text[at : at + _MAX_KEY_LENGTH])
            if length > 1:
                parts += [text[done:at].translate(self._single), self._replacement(node)]
                done = at + length
        parts.append(text[done:].translate(self._single))
        return "".join(parts)

    def _longest(self, text: str) -> tuple[int, _Node]:
        """Return how many of the first characters are replaced together, and where the table says by what."""
        node = _Node(self._root, False)
        best = 0, node
        for length, character in enumerate(text, 1):
            for byte in character.encode():
                place = node.base ^ byte
                if byte == 0 or place >= len(self._units) or self._units[place] & _LABEL_BITS != byte:
                    return best
                unit = self._units[place]
                node = _Node(place ^ (unit >> 10) << ((unit & _WIDE_BIT) >> 6), bool(unit & _LEAF_BIT))
            if node.is_leaf:
                best = length, node
        return best

    def _replacement(self, leaf: _Node) -> str:
        place = self._units[leaf.base] & _VALUE_BITS if leaf.base < len(self._units) else len(self._replacements)
        end = self._replacements.find(b"\0", place, place + _MAX_REPLACEMENT_BYTES + 1)
        if end < 0:
            expected = f"expected a replacement of at most {_MAX_REPLACEMENT_BYTES} bytes"
            raise ModelFileError(f"{_KEY}: {expected} at place {place} of {len(self._replacements)}")
        try:
            return self._replacements[place:end].decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{_KEY}: the replacement at place {place} is no UTF-8") from None


def _class_of(characters: Iterable[tuple[str, _Node]]) -> str:
    """Return a pattern for any of the characters, nothing for none."""
    texts = "".join(sorted({text for text, _ in characters}))
    return f"[{re.escape(texts)}]" if texts else ""


def _characters(units: _Units, bases: Iterable[int]) -> list[tuple[str, _Node]]:
    """Return every whole character that may follow at places of the array; bytes that make none match no text."""
    found = []
    open_bytes = [(b"", base) for base in bases]
    for length in range(1, 5):
        following = []
        for first in range(0, len(open_bytes), _NODES_AT_A_TIME):
            for begun, node in _children(units, open_bytes[first : first + _NODES_AT_A_TIME]):
                if length < _num_bytes(begun[0]):
                    following.append((begun, node.base))
                elif (text := begun.decode(errors="ignore")).encode() == begun:
                    found.append((text, node))
        open_bytes = following
    return found


def _children(units: _Units, nodes: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, _Node]]:
    """Return the bytes that may come next at places of the array, behind those read so far."""
    labels = np.arange(1, 256, dtype=np.uint32)
    places = np.array([base for _, base in nodes], dtype=np.uint32)[:, None] ^ labels
    inside = places < len(units)
    found = units[np.where(inside, places, 0)]
    parents, columns = np.nonzero(inside & ((found & np.uint32(_LABEL_BITS)) == labels))
    own = found[parents, columns]
    bases, leaves = places[parents, columns] ^ _offsets(own), (own & np.uint32(_LEAF_BIT)) != 0
    return [
        (nodes[parent][0] + bytes([column + 1]), _Node(base, is_leaf))
        for parent, column, base, is_leaf in zip(
            parents.tolist(), columns.tolist(), bases.tolist(), leaves.tolist(), strict=True
        )
    ]


def _offsets(units: _Units) -> _Units:
    return (units >> np.uint32(10)) << ((units & np.uint32(_WIDE_BIT)) >> np.uint32(6))


def _num_bytes(first: int) -> int:
    """Return how many bytes a character has that begins with this one."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4

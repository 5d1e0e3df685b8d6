"""SentencePiece byte-pair encoding: pairs merge by the score of the token they make, whatever the pieces were.

Written out here because the merge list that ``tokenizers`` wants cannot say it: equal scores go to the leftmost pair,
and characters that are no token themselves may still form one. Special tokens are cut out before the text comes here.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from treadle.errors import UsageError
from treadle.models.vocabulary import Vocabulary, read_flag, read_scores

__all__ = ["SentencePieceEncoder"]

_SPACE_MARK = "\u2581"
_CACHED_WORDS = 1 << 15
_CACHED_WORD_LENGTH = 32


class SentencePieceEncoder:
    """The ``llama`` model of GGUF, which Gemma up to 3 uses as well.

    A U+2581 in a text reads as a space, for that is how these vocabularies spell one.
    """

    add_bos = True
    finds_user_defined = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self.space_prefix = read_flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        scores = read_scores(metadata, len(vocabulary.tokens))
        # Only ordinary tokens merge: a user who spells a control or byte token gets its characters.
        self._ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens) if text}
        for token_id in vocabulary.control_ids | frozenset(vocabulary.byte_ids.values()):
            self._ids.pop(vocabulary.tokens[token_id], None)
        self._scores = scores
        self._word_start = _compile_word_start(self._ids)
        self._cached_word = lru_cache(_CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        ids: list[int] = []
        for word in self._word_start.split(text.replace(" ", _SPACE_MARK)):
            ids.extend(self._cached_word(word) if len(word) <= _CACHED_WORD_LENGTH else self._encode_word(word))
        return ids

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes an ordinary token stands for."""
        return self._vocabulary.tokens[token_id].replace(_SPACE_MARK, " ").encode()

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for piece in self._merge(word):
            token_id = self._ids.get(piece)
            if token_id is None:
                ids.extend(self._fall_back(piece))
            else:
                ids.append(token_id)
        return tuple(ids)

    def _merge(self, word: str) -> list[str]:
        """Join neighbours, best score first and leftmost among equals, until no pair is a token."""
        pieces: list[str] = list(word)
        before = list(range(-1, len(pieces) - 1))
        after = [*range(1, len(pieces)), -1]
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            token_id = self._ids.get(pieces[left] + pieces[right])
            if token_id is not None:
                heapq.heappush(queue, (-self._scores[token_id], left, right, len(pieces[left]) + len(pieces[right])))

        for left in range(len(pieces) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            # Pieces only grow or vanish, so an unchanged total means that neither has been merged since.
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
                offer(left, after[right])
            if before[left] >= 0:
                offer(before[left], left)
        return [piece for piece in pieces if piece]

    def _fall_back(self, character: str) -> list[int]:
        byte_ids, unknown = self._vocabulary.byte_ids, self._vocabulary.special_ids.get("unknown")
        found = [byte_ids.get(byte, unknown) for byte in character.encode()]
        ids = [token_id for token_id in found if token_id is not None]
        if len(ids) < len(found):
            raise UsageError(f"the model's vocabulary has neither a token nor bytes for the character {character!r}")
        return ids if byte_ids else ids[:1]


def _compile_word_start(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Where text may be cut without changing its tokens: before a space that no token has in its middle.

    Merges never reach across such a place, so each word is encoded, and remembered, on its own.
    """
    joined = {text[at - 1] for text in ids for at in _inner_marks(text)}
    excluded = re.escape(_SPACE_MARK + "".join(sorted(joined)))
    return re.compile(f"(?<=[^{excluded}])(?={_SPACE_MARK})")


def _inner_marks(text: str) -> list[int]:
    if _SPACE_MARK not in text[1:]:
        return []
    return [at for at in range(1, len(text)) if text[at] == _SPACE_MARK and text[at - 1] != _SPACE_MARK]

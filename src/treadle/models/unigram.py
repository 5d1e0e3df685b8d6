"""Unigram vocabularies of SentencePiece: of all ways to cut a text, the one whose tokens are likeliest together.

Searching for it is left to the ``tokenizers`` library, replacing characters to ``char_map``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from treadle.errors import ModelFileError
from treadle.models.char_map import CharMap
from treadle.models.token_splitter import TokenSplitter
from treadle.models.vocabulary import Vocabulary, read_flag, read_list, read_scores

__all__ = ["UnigramEncoder"]

_SPACE_MARK = "\u2581"
_UNKNOWN_SPELLING = "<unk>"
_SPACES = re.compile(" +")


class UnigramEncoder:
    """The ``t5`` model of GGUF, which XLM-RoBERTa and its descendants use (Kudo 2018).

    User-defined tokens are found here, since spaces around them count as those around words do. Characters without a
    token are the bytes they are made of where the vocabulary has those, else a run of them is one unknown token.

    Raises:
        ModelFileError: The file names no unknown token, or its table of characters or scores are broken.
    """

    add_bos = False
    finds_user_defined = True

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self.space_prefix = read_flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        self._merges_spaces = read_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", False)
        key = "tokenizer.ggml.precompiled_charsmap"
        self._char_map = CharMap(read_list(metadata, key, int)) if metadata.get(key) else None
        self._splitter = TokenSplitter(vocabulary.user_defined)
        unknown_id = vocabulary.special_ids.get("unknown", vocabulary.control.get(_UNKNOWN_SPELLING))
        if unknown_id is None:
            raise ModelFileError("tokenizer.ggml.unknown_token_id is missing, and Unigram needs a token for the rest")
        self._unknown_id = unknown_id
        self._tokenizer = Tokenizer(models.Unigram(self._pieces(metadata), unknown_id, byte_fallback=False))
        if not any(_SPACE_MARK in text[1:] for text in vocabulary.tokens) and _SPACE_MARK in vocabulary.tokens:
            # No token goes on from one word into the next, so words are cut, and remembered, on their own.
            self._tokenizer.pre_tokenizer = pre_tokenizers.Split(_SPACE_MARK, "merged_with_next")

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        normalised = self._normalise(text)
        # Unlike the library's other ways to encode, these leave the interpreter to other threads.
        [encoding] = self._tokenizer.encode_batch_fast([normalised], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._vocabulary.byte_ids and self._unknown_id in ids:
            return self._with_bytes(normalised)
        return ids

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes an ordinary token stands for."""
        return self._vocabulary.tokens[token_id].replace(_SPACE_MARK, " ").encode()

    def _pieces(self, metadata: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Every token with its score; what no text may turn into has a spelling that no text has."""
        vocabulary = self._vocabulary
        scores = read_scores(metadata, len(vocabulary.tokens))
        hidden = vocabulary.control_ids | vocabulary.byte_values.keys() | vocabulary.unused_ids
        ordinary = [
            score
            for token_id, score in enumerate(scores)
            if token_id not in hidden and token_id not in vocabulary.literal_ids
        ]
        # An unknown character costs ten more than the worst of them, so the others must not have worse ones.
        lowest = min(ordinary, default=0.0)
        pieces = []
        for token_id, (text, score) in enumerate(zip(vocabulary.tokens, scores, strict=True)):
            if token_id in hidden or not text:
                pieces.append((f" {token_id}\ufdd0", lowest))
            elif token_id in vocabulary.literal_ids:
                pieces.append((text, max(0.0, lowest)))
            else:
                pieces.append((text, score))
        return pieces

    def _normalise(self, text: str) -> str:
        """Replace characters but those of user-defined tokens, and spaces by the mark that tokens have for them."""
        parts = list(self._splitter.split(text))
        for index, part in enumerate(parts):
            if isinstance(part, int):
                parts[index] = self._vocabulary.tokens[part]
                continue
            found = part if self._char_map is None else self._char_map.apply(part)
            if self._merges_spaces:
                found = _SPACES.sub(" ", found.rstrip(" ") if index == len(parts) - 1 else found)
            parts[index] = found.replace(" ", _SPACE_MARK)
        return "".join(map(str, parts))

    def _with_bytes(self, normalised: str) -> list[int]:
        [encoding] = self._tokenizer.encode_batch([normalised], add_special_tokens=False)
        byte_ids = self._vocabulary.byte_ids
        ids: list[int] = []
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            spelt = normalised[begin:end].encode() if token_id == self._unknown_id else b""
            known = [byte_ids[byte] for byte in spelt if byte in byte_ids]
            ids += known if spelt and len(known) == len(spelt) else [token_id]
        return ids

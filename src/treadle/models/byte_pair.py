"""Byte-pair encoding with the merges a GGUF file lists, run by the ``tokenizers`` library.

Special tokens are cut out of the text before it comes here; how words are cut is said in ``pretokenizers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from treadle.errors import ModelFileError
from treadle.models.pretokenizers import WordCut
from treadle.models.vocabulary import Vocabulary, read_list

__all__ = ["BytePairEncoder", "SpacedBytePairEncoder"]

_SPACE_MARK = "\u2581"
_MERGES_KEY = "tokenizer.ggml.merges"


def _printable_bytes() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    alphabet = {chr(byte): byte for byte in range(256) if 33 <= byte <= 126 or (byte >= 161 and byte != 173)}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _printable_bytes()


class BytePairEncoder:
    """Merges over bytes spelled in GPT-2's alphabet: the ``gpt2`` model of GGUF.

    A byte the vocabulary has no token for is dropped, as the library and the models' own tokenizers do; in real
    vocabularies that concerns a few control characters and unassigned code points.
    """

    space_prefix = False
    finds_user_defined = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any], cut: WordCut) -> None:
        self.add_bos = cut.add_bos
        self._vocabulary = vocabulary
        self._tokenizer = Tokenizer(_build_model(vocabulary, metadata, ignore_merges=cut.whole_words_first))
        splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        return _encode(self._tokenizer, text)

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes an ordinary token stands for; characters outside the alphabet stand for their UTF-8."""
        text = self._vocabulary.tokens[token_id]
        try:
            return bytes([_BYTE_OF_CHARACTER[character] for character in text])
        except KeyError:
            return b"".join(
                bytes([_BYTE_OF_CHARACTER[character]]) if character in _BYTE_OF_CHARACTER else character.encode()
                for character in text
            )


class SpacedBytePairEncoder:
    """Merges over characters, spaces spelled U+2581, other characters falling back to byte tokens: ``gemma4``."""

    space_prefix = False
    finds_user_defined = False
    add_bos = True

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = Tokenizer(_build_model(vocabulary, metadata, byte_fallback=True))
        self._newlines = {text: i for i, text in enumerate(vocabulary.tokens) if text and not text.strip("\n")}

    def encode(self, text: str) -> list[int]:
        """The ids of plain text; a run of newlines that is a token stays whole."""
        ids: list[int] = []
        for piece in re.findall(r"\n+|[^\n]+", text.replace(" ", _SPACE_MARK)):
            if piece in self._newlines:
                ids.append(self._newlines[piece])
            else:
                ids.extend(_encode(self._tokenizer, piece))
        return ids

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes an ordinary token stands for."""
        return self._vocabulary.tokens[token_id].replace(_SPACE_MARK, " ").encode()


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # Unlike its other ways to encode, this one leaves the interpreter to other threads; a long text takes seconds.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _build_model(vocabulary: Vocabulary, metadata: Mapping[str, Any], **options: bool) -> models.BPE:
    merges = [tuple(merge.split(" ", 1)) for merge in read_list(metadata, _MERGES_KEY, str)]
    if set(map(len, merges)) - {2}:
        index = next(index for index, merge in enumerate(merges) if len(merge) != 2)
        raise ModelFileError(f"{_MERGES_KEY}: expected two pieces, found {merges[index][0]!r:.80} at index {index}")
    # Leaving control tokens out is what keeps plain text from ever becoming one.
    ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens) if text}
    for text in vocabulary.control:
        del ids[text]
    try:
        return models.BPE(ids, merges, **options)
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"{_MERGES_KEY}: {error}") from None

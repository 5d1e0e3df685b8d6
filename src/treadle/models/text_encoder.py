"""The kinds of vocabulary that GGUF files have, and what encodes the texts of each.

Leaves to others: the encoders themselves, and tokens that are more than text (``tokenizer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from treadle.errors import ModelFileError, UnsupportedModelError
from treadle.models.byte_pair import BytePairEncoder, SpacedBytePairEncoder
from treadle.models.pretokenizers import word_cut
from treadle.models.sentencepiece import SentencePieceEncoder
from treadle.models.unigram import UnigramEncoder
from treadle.models.vocabulary import Vocabulary
from treadle.models.wordpiece import WordPieceEncoder

__all__ = ["MODEL_KEY", "TextEncoder", "check_tokenizer", "own_encoder"]

MODEL_KEY = "tokenizer.ggml.model"
_PRE_KEY = "tokenizer.ggml.pre"


class TextEncoder(Protocol):
    """Cuts plain text into ordinary tokens.

    ``space_prefix`` says that a first word begins with a space, ``add_bos`` whether texts begin with BOS when the file
    does not say, ``finds_user_defined`` that it finds the user-defined tokens of a text by itself.
    """

    space_prefix: bool
    add_bos: bool
    finds_user_defined: bool

    def encode(self, text: str) -> list[int]:
        """Return the ids of text that holds no token of its own right."""

    def text_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an ordinary token."""


def own_encoder(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> TextEncoder:
    """Return what encodes the texts of a vocabulary; see ``check_tokenizer`` for which there are."""
    model = metadata.get(MODEL_KEY)
    if model == "gpt2":
        return BytePairEncoder(vocabulary, metadata, word_cut(_read_name(metadata, _PRE_KEY)))
    if model == "bert":
        return WordPieceEncoder(vocabulary, metadata)
    if model == "gemma4":
        return SpacedBytePairEncoder(vocabulary, metadata)
    if model == "t5":
        return UnigramEncoder(vocabulary, metadata)
    return SentencePieceEncoder(vocabulary, metadata)


def check_tokenizer(metadata: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError if a file names a tokenizer that is not known here."""
    model, pre = metadata.get(MODEL_KEY), metadata.get(_PRE_KEY)
    if model == "gpt2":
        if isinstance(pre, str):
            word_cut(pre)
    elif model not in ("bert", "gemma4", "llama", "t5"):
        raise UnsupportedModelError(
            f"{MODEL_KEY}: expected gpt2, llama, gemma4, bert or t5, found {model!r:.80}",
            hint="Treadle reads byte-pair, SentencePiece, WordPiece and Unigram vocabularies",
        )


def _read_name(metadata: Mapping[str, Any], key: str) -> str | None:
    found = metadata.get(key)
    if found is not None and not isinstance(found, str):
        raise ModelFileError(f"{key}: expected a name, found {found!r:.80}")
    return found

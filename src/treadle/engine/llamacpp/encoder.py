"""Text to tokens as llama.cpp reads it, for the vocabularies that our own tokenizer does not know.

Leaves to others: control tokens, byte tokens and prompts (``models.tokenizer``).
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32

from treadle.engine.llamacpp.model import LlamaCppModel
from treadle.errors import InternalError

__all__ = ["LlamaCppEncoder"]


class LlamaCppEncoder:
    """Plain text and ordinary tokens; nothing in a text is a control token.

    With ``is_complete`` what is encoded is a whole text, and gets the tokens that begin and end one.
    """

    space_prefix = False  # where a vocabulary wants one, llama.cpp adds it by itself
    finds_user_defined = False

    def __init__(self, model: LlamaCppModel, *, is_complete: bool = False) -> None:
        self._model = model
        self._is_complete = is_complete
        self.add_bos: bool = model.library.llama_vocab_get_add_bos(model.vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        encoded = text.encode()
        size = len(encoded) + 4
        while True:
            ids = (c_int32 * size)()
            count = self._model.library.llama_tokenize(
                self._model.vocabulary, encoded, len(encoded), ids, size, self._is_complete, False
            )
            if count >= 0:
                return ids[:count]
            size = -count

    def text_bytes(self, token_id: int) -> bytes:
        """Return the bytes an ordinary token stands for."""
        size = 64
        while True:
            piece = ctypes.create_string_buffer(size)
            count = self._model.library.llama_token_to_piece(self._model.vocabulary, token_id, piece, size, 0, False)
            if count >= 0:
                return piece.raw[:count]
            if -count <= size:
                raise InternalError(f"llama.cpp has no text for token {token_id}")
            size = -count

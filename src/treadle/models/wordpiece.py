"""WordPiece, the tokenizer of BERT: words are cut into the longest pieces there are, run by the ``tokenizers`` library.

Tokens that begin and end a text are the business of ``tokenizer``, what the ids mean that of ``vocabulary``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from treadle.errors import ModelFileError
from treadle.models.vocabulary import Vocabulary, read_flag

__all__ = ["WordPieceEncoder"]

_WORD_MARK = "\u2581"
_CONTINUATION = "##"
_MAX_WORD_LENGTH = 100  # a longer word is unknown, as BERT's own tokenizer has it


class WordPieceEncoder:
    """The ``bert`` model of GGUF, whose files mark pieces that begin a word with U+2581 and leave the others bare.

    Text is brought to BERT's form first: control characters go, accents and capitals too unless the file says
    otherwise, and punctuation and Chinese characters are words of their own.

    Raises:
        ModelFileError: The file names no token for unknown words.
    """

    space_prefix = True
    add_bos = True
    finds_user_defined = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        unknown_id = vocabulary.special_ids.get("unknown")
        if unknown_id is None:
            raise ModelFileError("tokenizer.ggml.unknown_token_id is missing, and WordPiece needs a token for words")
        unknown = vocabulary.tokens[unknown_id]
        # Leaving control tokens out is what keeps plain text from ever becoming one.
        ids = {
            _spelling(text): token_id
            for token_id, text in enumerate(vocabulary.tokens)
            if text.strip(_WORD_MARK) and token_id not in vocabulary.control_ids
        }
        ids[unknown] = unknown_id
        self._tokenizer = Tokenizer(
            models.WordPiece(
                ids,
                unk_token=unknown,
                continuing_subword_prefix=_CONTINUATION,
                max_input_chars_per_word=_MAX_WORD_LENGTH,
            )
        )
        lowercase = read_flag(metadata, "tokenizer.ggml.normalizer.lowercase", True)
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=read_flag(metadata, "tokenizer.ggml.normalizer.strip_accents", lowercase),
            lowercase=lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """The ids of plain text."""
        # Unlike its other ways to encode, this one leaves the interpreter to other threads.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def text_bytes(self, token_id: int) -> bytes:
        """The bytes an ordinary token stands for; a piece that begins a word has a space before it."""
        return self._vocabulary.tokens[token_id].replace(_WORD_MARK, " ").encode()


def _spelling(text: str) -> str:
    """Return a token as the library wants it, where pieces that go on with a word are the marked ones."""
    return text[1:] if text.startswith(_WORD_MARK) else _CONTINUATION + text

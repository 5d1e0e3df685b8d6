"""Text to token ids and back, as the model in a GGUF file was trained to read it.

Chat templates are rendered elsewhere; this module knows only where a rendered prompt may hold control tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from treadle.errors import ContextError, ModelFileError, UnsupportedModelError, UsageError
from treadle.models.prompt_guard import RenderedPrompt
from treadle.models.text_encoder import MODEL_KEY, TextEncoder, check_tokenizer, own_encoder
from treadle.models.text_stream import TextStream
from treadle.models.token_splitter import TokenSplitter
from treadle.models.vocabulary import ID_NAMES, Vocabulary, read_flag

__all__ = ["Tokenizer"]

_LONG_TOKEN = 8  # characters; a text that is mostly longer tokens is rare
_PIECE_LENGTH = 1 << 14
_CUT_TOKENS = 64  # a cut through a text changes no token that is further away from it


class Tokenizer:
    """The tokenizer of one model.

    Control tokens come from a template and from nowhere else: text that spells one is encoded as the characters it
    is made of. User-defined tokens of the vocabulary are matched in all text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: TextEncoder,
        *,
        add_bos: bool,
        last_id: int | None,
        is_complete: bool = False,
        encoder_completes: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self._encoder = encoder
        self.add_bos = add_bos
        self.last_id = last_id
        self._is_complete = is_complete
        self._encoder_completes = encoder_completes
        found_in_text = {} if encoder.finds_user_defined else vocabulary.user_defined
        self._plain_splitter = TokenSplitter(found_in_text)
        # A guard cannot break a single character, so such a control token is never found in a prompt.
        in_prompts = {text: token_id for text, token_id in vocabulary.control.items() if len(text) > 1}
        self._prompt_splitter = TokenSplitter({**found_in_text, **in_prompts})

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        other: Callable[[], TextEncoder | None] | None = None,
        is_complete: bool = False,
    ) -> Tokenizer:
        """Build the tokenizer that GGUF metadata describes; ``other`` makes encoders for those not known here.

        With ``is_complete`` texts are whole, so that an empty one has no token, and what ``other`` makes reads them all
        and itself adds the tokens that begin and end them.

        A byte-pair file without ``tokenizer.ggml.pre``, as old converters wrote, is read with the default word cut
        and a warning.

        Raises:
            ModelFileError: The metadata is incomplete or contradicts itself.
            UnsupportedModelError: It names a tokenizer that is not known here.
        """
        vocabulary = Vocabulary.from_metadata(metadata)
        if is_complete and other is not None and (found := other()) is not None:
            return cls(vocabulary, found, add_bos=False, last_id=None, is_complete=True, encoder_completes=True)
        try:
            check_tokenizer(metadata)
            encoder = own_encoder(vocabulary, metadata)
        except UnsupportedModelError:
            found = None if other is None else other()
            if found is None:
                raise
            encoder = found
        return cls(
            vocabulary,
            encoder,
            add_bos=_read_addition(metadata, vocabulary, "bos", encoder.add_bos),
            last_id=_read_last_id(metadata, vocabulary),
            is_complete=is_complete,
        )

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the file names one."""
        return self.vocabulary.special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if the file names one."""
        return self.vocabulary.special_ids.get("eos")

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, of turn, of message."""
        return self.vocabulary.end_ids

    def encode(self, text: str, *, add_bos: bool | None = None, max_tokens: int | None = None) -> list[int]:
        """Encode text in which nothing is a control token.

        Args:
            text: Anything a user, a tool or a document may hold.
            max_tokens: Read no further once a text is twice as long and more: a book must not cost more than a page to
                those who have no use for more than a page.
            add_bos: Whether to begin with the BOS token; ``None`` does what the model file says, and then also ends
                with EOS, or with SEP, where the file asks for it.

        Raises:
            ContextError: The text was not read to its end, see ``max_tokens``.
            UsageError: The text holds half of a surrogate pair and so has no UTF-8 form, or BOS is asked for and the
                model has none.
        """
        if self._is_complete and not text:
            return []
        if self._encoder_completes:
            return self._encode_part(text, max_tokens)
        ids = self._encode_parts(self._plain_splitter.split(text), max_tokens=max_tokens)
        if add_bos or (add_bos is None and self.add_bos):
            ids.insert(0, self._require_bos())
        if add_bos is None and self.last_id is not None:
            ids.append(self.last_id)
        return ids

    def beginning(self, text: str, num_tokens: int) -> list[int]:
        """Return the first tokens of a text, without those put around it; no more of it is read than that takes.

        Raises:
            UsageError: The text has no UTF-8 form.
        """
        length = _LONG_TOKEN * (num_tokens + _CUT_TOKENS)
        while True:
            ids = self._encode_parts(self._plain_splitter.split(text[:length]))
            if length >= len(text) or len(ids) >= num_tokens + _CUT_TOKENS:
                return ids[:num_tokens]
            length *= 2

    def encode_cut(self, text: str, max_tokens: int) -> list[int]:
        """Encode text as ``encode`` does by default, but no more of it than makes so many tokens with those around it.

        Raises:
            UsageError: The text has no UTF-8 form, or so many tokens are none of it.
        """
        if not text and self._is_complete:
            return []
        if self._encoder_completes:
            ids = self._encoder.encode(_checked(text))
            return ids if len(ids) <= max_tokens else [*ids[: max_tokens - 1], ids[-1]]
        begin = [self._require_bos()] if self.add_bos else []
        end = [] if self.last_id is None else [self.last_id]
        room = max_tokens - len(begin) - len(end)
        if room < 1:
            raise UsageError(
                f"{max_tokens} tokens have no room for any of a text, which has {len(begin + end)} around it"
            )
        return [*begin, *self.beginning(text, room), *end]

    def encode_prompt(self, rendered: RenderedPrompt, *, max_tokens: int | None = None) -> list[int]:
        """Encode a rendered chat: control tokens where the template put them, BOS exactly once if the model has it.

        Takes ``max_tokens`` as ``encode`` does.
        """
        ids = self._encode_parts(self._prompt_splitter.split(rendered.text), rendered.guard, max_tokens=max_tokens)
        if self.add_bos and ids[:1] != [self.bos_id]:
            ids.insert(0, self._require_bos())
        return ids

    def decode(self, ids: Iterable[int], *, keep_control: bool = False, continuation: bool = False) -> str:
        """The text of ids; see ``stream`` for the arguments.

        Raises:
            UsageError: An id is outside the vocabulary.
        """
        stream = self.stream(keep_control=keep_control, continuation=continuation)
        return "".join([stream.push(token_id) for token_id in ids]) + stream.finish()

    def stream(
        self, *, keep_control: bool = False, continuation: bool = False, shown_ids: Collection[int] = ()
    ) -> TextStream:
        """A decoder to push one answer's tokens into.

        Args:
            keep_control: Spell control tokens out instead of leaving them out.
            shown_ids: Control tokens to spell out all the same.
            continuation: The tokens go on from a text. Otherwise the space that SentencePiece vocabularies put
                before a text's first word is taken away again.
        """
        drop_space = self._is_ordinary if self._encoder.space_prefix and not continuation else None
        hidden_ids = frozenset() if keep_control else self.vocabulary.control_ids.difference(shown_ids)
        return TextStream(
            lambda token_id: b"" if token_id in hidden_ids else self.token_bytes(token_id), drop_space=drop_space
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which need not be whole characters.

        Raises:
            UsageError: The id is outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise UsageError(f"token {token_id}: expected an id from 0 to {self.vocab_size - 1}")
        if token_id in self.vocabulary.literal_ids:
            return self.vocabulary.tokens[token_id].encode()
        if token_id in self.vocabulary.byte_values:
            return bytes([self.vocabulary.byte_values[token_id]])
        return self._encoder.text_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """One token for display: its text, with U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _is_ordinary(self, token_id: int) -> bool:
        return token_id not in self.vocabulary.literal_ids

    def _require_bos(self) -> int:
        if self.bos_id is None:
            raise UsageError("the model's vocabulary names no BOS token", hint="leave add_bos out")
        return self.bos_id

    def _encode_parts(self, parts: Iterable[str | int], guard: str = "", *, max_tokens: int | None = None) -> list[int]:
        """Encode the text between tokens already found; a first word gets the leading space the model knows."""
        ids: list[int] = []
        for part in parts:
            if max_tokens is not None and len(ids) > 2 * max_tokens:
                raise _too_long(max_tokens)
            if isinstance(part, int):
                ids.append(part)
                continue
            text = part.replace(guard, "") if guard else part
            if not text:
                continue
            if self._encoder.space_prefix and (not ids or ids == [self.bos_id]):
                text = " " + text
            ids.extend(self._encode_part(text, max_tokens))
        return ids

    def _encode_part(self, text: str, max_tokens: int | None) -> list[int]:
        if max_tokens is not None and len(text) > _LONG_TOKEN * max_tokens:
            self._check_length(_checked(text), max_tokens)
        return self._encoder.encode(_checked(text))

    def _check_length(self, text: str, max_tokens: int) -> None:
        """Refuse a text that is far too long after reading no more of it than that takes.

        Cutting a text into pieces may add tokens to it, but never as many as it has.
        """
        num_tokens = 0
        for begin in range(0, len(text), _PIECE_LENGTH):
            num_tokens += len(self._encoder.encode(text[begin : begin + _PIECE_LENGTH]))
            if num_tokens > 2 * max_tokens:
                raise _too_long(max_tokens)


def _too_long(max_tokens: int) -> ContextError:
    return ContextError(
        f"the text has far more than {max_tokens} tokens, all that the context has room for",
        hint="shorten the prompt, or load the model with a larger context",
    )


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"text has no UTF-8 form: {error.reason} at character {error.start}") from None
    return text


def _read_addition(metadata: Mapping[str, Any], vocabulary: Vocabulary, role: str, default: bool) -> bool:
    """Whether texts get the token of a role; a file that asks for one it does not name contradicts itself."""
    key, name = f"tokenizer.ggml.add_{role}_token", ID_NAMES[role]
    wanted = read_flag(metadata, key, default)
    if wanted and role not in vocabulary.special_ids:
        if key in metadata:
            raise ModelFileError(f"{key} is true, but tokenizer.ggml.{name}_token_id is missing")
        return False
    return wanted


def _read_last_id(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> int | None:
    """Return the token that ends texts, None if they end as they are."""
    model = metadata.get(MODEL_KEY)
    if _read_addition(metadata, vocabulary, "sep", model == "bert"):
        return vocabulary.special_ids["sep"]
    return vocabulary.special_ids["eos"] if _read_addition(metadata, vocabulary, "eos", model == "t5") else None

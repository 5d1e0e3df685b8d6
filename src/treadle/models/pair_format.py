"""How a query and a document become one text of a model that says how well they go together.

Leaves to others: tokens (``tokenizer``) and the scores (the engine).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from treadle.errors import ModelFileError, UsageError
from treadle.models.prompt_guard import ControlSpellings, PromptGuard, RenderedPrompt
from treadle.models.tokenizer import Tokenizer

__all__ = ["PairFormat"]

_TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"\{(query|document)\}")


class PairFormat:
    """Encodes pairs for one model: with the template its file carries, or as two texts with a token between them.

    Args:
        tokenizer: The model's.
        template: Text in which {query} and {document} stand for the two.
        doubles_separator: Whether between two texts there are two of the tokens that end one, as RoBERTa was trained.

    Raises:
        ModelFileError: There is no template, and no token ends a text.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None, *, doubles_separator: bool) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._num_separators = 2 if doubles_separator else 1
        self._spellings = ControlSpellings(tokenizer.vocabulary.control)
        if template is None and tokenizer.last_id is None:
            raise ModelFileError(f"{_TEMPLATE_KEY} is missing, and no token ends the texts of the model")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], architecture: str, tokenizer: Tokenizer) -> PairFormat:
        """Return the format that the file of a model asks for.

        Raises:
            ModelFileError: It does not say how pairs are to be written, or says it wrongly.
        """
        template = metadata.get(_TEMPLATE_KEY)
        is_text = isinstance(template, str)
        if template is not None and not (is_text and set(_PLACES.findall(template)) == {"query", "document"}):
            raise ModelFileError(
                f"{_TEMPLATE_KEY}: expected text with {{query}} and {{document}}, found {template!r:.80}"
            )
        is_roberta = architecture == "bert" and metadata.get("tokenizer.ggml.model") != "bert"
        return cls(tokenizer, template, doubles_separator=is_roberta)

    def reader(self, query: str, *, context: int, max_tokens: int | None = None) -> Callable[[str], list[int]]:
        """Return what gives the tokens of the query together with a document, which may be empty.

        Args:
            query: What is asked.
            context: A text far beyond it is refused before it is read to its end.
            max_tokens: Documents are cut at their end so that no pair has more tokens.

        Raises:
            ContextError: A text is far beyond the context; what is returned raises it, too.
            UsageError: A text has no UTF-8 form, or the query leaves no room for a document; likewise.
        """
        if self._template is not None:
            return lambda document: self._render(query, document, context, max_tokens)
        last_id = self._tokenizer.last_id
        assert last_id is not None
        begin = self._tokenizer.encode(query, max_tokens=context) + [last_id] * (self._num_separators - 1)
        room = None if max_tokens is None else _room(max_tokens - len(begin) - 1, max_tokens)
        return lambda document: [*begin, *self._read(document, context, room), last_id]

    def _read(self, document: str, context: int, room: int | None) -> list[int]:
        if not document:
            return []
        if room is not None:
            return self._tokenizer.beginning(document, room)
        return self._tokenizer.encode(document, add_bos=False, max_tokens=context)

    def _render(self, query: str, document: str, context: int, max_tokens: int | None) -> list[int]:
        if max_tokens is None:
            return self._fill(query, document, context)
        kept = self._tokenizer.beginning(document, _room(max_tokens - len(self._fill(query, "", context)), max_tokens))
        while len(ids := self._fill(query, self._tokenizer.decode(kept), context)) > max_tokens:
            kept = kept[: max_tokens - len(ids)]  # text that was cut may have other tokens
        return ids

    def _fill(self, query: str, document: str, context: int) -> list[int]:
        assert self._template is not None
        guard = PromptGuard(self._spellings, [query, document])
        words = {"query": guard.protect_other(query), "document": guard.protect_other(document)}
        text = _PLACES.sub(lambda place: str(words[place[1]]), self._template)
        return self._tokenizer.encode_prompt(RenderedPrompt(text, guard.character), max_tokens=context)


def _room(room: int, max_tokens: int) -> int:
    if room < 1:
        problem = f"the query and what goes with it take all of the {max_tokens} tokens that a pair may have"
        raise UsageError(problem, hint="allow more, or shorten the query", field="query")
    return room

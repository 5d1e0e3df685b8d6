"""Turns what callers ask, text, token ids or a conversation, into the tokens of a prompt.

Leaves to others: the words (the tokenizer, the chat template) and whether a prompt fits (the scheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from treadle.engine.completion import ChatMessage
from treadle.engine.embedding import answers_refused
from treadle.engine.ranking import ranking_refused
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.load import LoadedModel
    from treadle.models.chat_template import ChatTemplate
    from treadle.models.pair_format import PairFormat
    from treadle.models.tokenizer import Tokenizer
    from treadle.models.tool_dialects import AnswerParser

__all__ = ["EncodedPrompt", "Messages", "Prompt", "PromptList", "PromptReader", "is_prompt"]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt that is ready to be answered.

    ``is_chat`` says that the answer is a text of its own and not the continuation of one; ``text`` is what a chat
    template made of the conversation, and empty for other prompts. ``shown_ids`` are control tokens that belong to the
    text of the answer, such as those around a tool call. ``parser`` makes what reads each answer into parts, if
    anything does.
    """

    token_ids: Sequence[int]
    is_chat: bool = False
    text: str = ""
    shown_ids: frozenset[int] = frozenset()
    parser: Callable[[], AnswerParser] | None = None


Prompt = str | Sequence[int] | EncodedPrompt
PromptList = list[str] | list[list[int]] | list[EncodedPrompt]
Messages = Sequence[ChatMessage | Mapping[str, Any]]


class PromptReader:
    """Encodes prompts for one model; ``name`` is that of the model in messages.

    A text far beyond the ``context`` is refused before it is read to its end, and a conversation unless the model
    ``gives_answers``. ``pairs`` is how one that ranks reads a query and a document.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        context: int,
        gives_answers: bool = True,
        pairs: PairFormat | None = None,
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._template = template
        self._context = context
        self._gives_answers = gives_answers
        self._pairs = pairs

    @classmethod
    def of(cls, loaded: LoadedModel) -> PromptReader:
        """Return what reads the prompts of a loaded model."""
        report = loaded.report
        return cls(
            report.name,
            loaded.tokenizer,
            loaded.template,
            context=report.memory_plan.context,
            gives_answers=report.gives_answers,
            pairs=loaded.pairs,
        )

    @property
    def has_chat_template(self) -> bool:
        """Tell whether the model's file carries a chat template."""
        return self._template is not None

    @property
    def template_source(self) -> str:
        """Return the text of the chat template, empty if the file carries none."""
        return "" if self._template is None else self._template.source

    def control_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the ids of those texts that are control tokens of the model."""
        control = self._tokenizer.vocabulary.control
        return frozenset(control[text] for text in texts if text in control)

    def read(self, prompt: object) -> EncodedPrompt:
        """Encode text, whose control tokens are plain text, or check a list of token ids.

        Raises:
            ContextError: It is text far beyond the context.
            UsageError: It is neither, or an id is outside the vocabulary.
        """
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if isinstance(prompt, str):
            return EncodedPrompt(self._tokenizer.encode(prompt, max_tokens=self._context))
        if not isinstance(prompt, Sequence) or not all(isinstance(token_id, int) for token_id in prompt):
            raise UsageError(
                f"prompt: expected text or a list of token ids, found {prompt!r:.80}",
                hint="`chat` takes messages",
                field="prompt",
            )
        vocab_size = self._tokenizer.vocab_size
        for token_id in prompt:
            if not 0 <= token_id < vocab_size:
                problem = f"prompt: {token_id} is not a token id, expected 0 to {vocab_size - 1}"
                raise UsageError(problem, field="prompt")
        return EncodedPrompt(list(prompt))

    def read_all(self, prompts: Sequence[object], truncate_prompt_tokens: int | None = None) -> list[EncodedPrompt]:
        """Encode a list of prompts; raises as ``read`` does, and says which of several is at fault.

        What has more than ``truncate_prompt_tokens``, -1 for the context, loses its end.
        """
        limit = self._limit(truncate_prompt_tokens)
        encoded = []
        for index, prompt in enumerate(prompts):
            try:
                encoded.append(self.read(prompt) if limit is None else self._read_cut(prompt, limit))
            except UsageError as error:
                if len(prompts) == 1:
                    raise
                raise error.about(f"prompt {index} of the list") from None
        return encoded

    def read_pairs(
        self, query: object, documents: Sequence[object], truncate_prompt_tokens: int | None = None
    ) -> list[EncodedPrompt]:
        """Encode a query with each of several documents, which lose their end where a pair has too many tokens.

        Raises:
            ContextError: A text is far beyond the context.
            UsageError: The model does not rank, the query is empty, something is no text, or no document would fit.
        """
        if self._pairs is None:
            raise ranking_refused(self._name)
        if not isinstance(query, str) or not query:
            raise UsageError(f"query: expected text that is not empty, found {query!r:.80}", field="query")
        limit = self._limit(truncate_prompt_tokens)
        try:
            read = self._pairs.reader(query, context=self._context, max_tokens=limit)
        except UsageError as error:
            raise _placed(error, "query") from None
        encoded = []
        for index, document in enumerate(documents):
            if not isinstance(document, str):
                problem = f"documents[{index}]: expected text, found {document!r:.80}"
                raise UsageError(problem, field=f"documents[{index}]")
            try:
                encoded.append(EncodedPrompt(read(document)))
            except UsageError as error:
                raise _placed(error, f"documents[{index}]") from None
        return encoded

    def _read_cut(self, prompt: object, limit: int) -> EncodedPrompt:
        if isinstance(prompt, str):
            return EncodedPrompt(self._tokenizer.encode_cut(prompt, limit))
        return EncodedPrompt(self.read(prompt).token_ids[:limit])

    def _limit(self, truncate_prompt_tokens: int | None) -> int | None:
        """Return how many tokens texts may keep, None if nothing is to be cut."""
        wanted = truncate_prompt_tokens
        if wanted is None or wanted == -1:
            return None if wanted is None else self._context
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= self._context:
            problem = f"expected -1, or 1 to {self._context}, the context, found {wanted!r:.80}"
            raise UsageError(f"truncate_prompt_tokens: {problem}", field="truncate_prompt_tokens")
        return wanted

    def read_chat(self, messages: Messages, variables: Mapping[str, Any], *, opening: str = "") -> EncodedPrompt:
        """Render a conversation with the model's own template, and encode it with the ``opening`` of the answer.

        ``variables`` are the template's, and what ``ChatTemplate.render`` takes beside them.

        Raises:
            ContextError: The text of the conversation is far beyond the context.
            TemplateError: The template refused the messages.
            UsageError: The model has no template, or gives no answers.
        """
        if not self._gives_answers:
            raise answers_refused(self._name, ranks=self._pairs is not None)
        if self._template is None:
            raise UsageError(
                f"{self._name} has no chat template, so it cannot tell whose turn a message is",
                hint="use `generate`, or `treadle run --raw`, to continue plain text",
            )
        rendered = self._template.render(messages, **variables)
        if opening:
            rendered = rendered.continued(opening)
        token_ids = self._tokenizer.encode_prompt(rendered, max_tokens=self._context)
        return EncodedPrompt(token_ids, is_chat=True, text=str(rendered))


def is_prompt(prompt: object) -> TypeGuard[Prompt]:
    """Tell one prompt from a list of prompts or of messages."""
    return isinstance(prompt, str | EncodedPrompt) or (
        isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], int)
    )


def _placed(error: UsageError, place: str) -> UsageError:
    """Return the error of a text with its place in the request, if it has none."""
    if error.field not in (None, "prompt"):
        return error
    told = error.about(place)
    told.field = place
    return told

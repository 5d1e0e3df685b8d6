"""Turns what callers ask, text, token ids or a conversation, into the tokens of a prompt.

Leaves to others: the words (the tokenizer, the chat template) and whether a prompt fits (the scheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from treadle.engine.completion import ChatMessage
from treadle.engine.embedding import answers_refused
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.load import LoadedModel
    from treadle.models.chat_template import ChatTemplate
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

    A text far beyond the ``context`` is refused before it is read to its end, and a conversation if the model
    ``embeds_only``.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        context: int,
        embeds_only: bool = False,
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._template = template
        self._context = context
        self._embeds_only = embeds_only

    @classmethod
    def of(cls, loaded: LoadedModel) -> PromptReader:
        """Return what reads the prompts of a loaded model."""
        report = loaded.report
        return cls(
            report.name,
            loaded.tokenizer,
            loaded.template,
            context=report.memory_plan.context,
            embeds_only=report.embeds_only,
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

    def read_all(self, prompts: Sequence[object]) -> list[EncodedPrompt]:
        """Encode a list of prompts; raises as ``read`` does, and says which of several is at fault."""
        encoded = []
        for index, prompt in enumerate(prompts):
            try:
                encoded.append(self.read(prompt))
            except UsageError as error:
                if len(prompts) == 1:
                    raise
                raise error.about(f"prompt {index} of the list") from None
        return encoded

    def read_chat(self, messages: Messages, variables: Mapping[str, Any], *, opening: str = "") -> EncodedPrompt:
        """Render a conversation with the model's own template, and encode it with the ``opening`` of the answer.

        ``variables`` are the template's, and what ``ChatTemplate.render`` takes beside them.

        Raises:
            ContextError: The text of the conversation is far beyond the context.
            TemplateError: The template refused the messages.
            UsageError: The model has no template, or gives no answers.
        """
        if self._embeds_only:
            raise answers_refused(self._name)
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

"""Messages to the text a model was trained on, through the chat template its file carries.

The rendered prompt still tells apart what the template and what people wrote; turning it into tokens is left to
``tokenizer``. A model without a template has none here either: nothing is guessed in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from treadle.errors import ModelFileError, TemplateError, UsageError
from treadle.models.messages import normalise_messages, normalise_tools
from treadle.models.prompt_guard import ControlSpellings, PromptGuard, RenderedPrompt
from treadle.models.template_budget import BudgetExceeded, TemplateBudget
from treadle.models.template_sandbox import GUARD_NAME, TemplateEnvironment
from treadle.models.vocabulary import Vocabulary

__all__ = ["ChatTemplate"]

_KEY = "tokenizer.chat_template"
_TOOL_KEY = "tokenizer.chat_template.tool_use"
_FILE_NAME = "<template>"
_MAX_SOURCE = 1 << 19
_TOKEN_VARIABLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "chat_template", *_TOKEN_VARIABLES})
_PROBE = "probe of the template"


class ChatTemplate:
    """The chat template of one model."""

    def __init__(self, source: str, vocabulary: Vocabulary, *, for_tools: ChatTemplate | None = None) -> None:
        self.source = source
        self._for_tools = for_tools
        self._spellings = ControlSpellings(vocabulary.control)
        self._tokens = {
            variable: vocabulary.tokens[vocabulary.special_ids[role]]
            for variable, role in _TOKEN_VARIABLES.items()
            if role in vocabulary.special_ids
        }
        if len(source) > _MAX_SOURCE:
            raise TemplateError(f"chat template: expected at most {_MAX_SOURCE} characters, found {len(source)}")
        environment = TemplateEnvironment()
        try:
            self._template = environment.from_string(environment.parse_charged(source))
        except TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from None
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateError(f"chat template: too deep or large to compile ({type(error).__name__})") from None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], vocabulary: Vocabulary | None = None) -> ChatTemplate | None:
        """The template a GGUF file carries, or ``None`` if it carries none.

        Some files carry a second one, ``tool_use``; it takes the place of the first whenever there are tools.

        Args:
            metadata: The file's metadata.
            vocabulary: Its vocabulary if it has been read already, as ``Tokenizer.vocabulary``.

        Raises:
            ModelFileError: The metadata is wrong.
            TemplateError: The template is broken; the text gives the line.
        """
        source, tool_source = _read_source(metadata, _KEY), _read_source(metadata, _TOOL_KEY)
        if source is None:
            return None
        vocabulary = vocabulary or Vocabulary.from_metadata(metadata)
        return cls(source, vocabulary, for_tools=cls(tool_source, vocabulary) if tool_source is not None else None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continues: bool = False,
        **variables: Any,
    ) -> RenderedPrompt:
        """Render messages; see ``normalise_messages`` for the forms they may have.

        Args:
            messages: Role and content of each turn.
            tools: Function definitions the model may call.
            add_generation_prompt: End with the opening of an assistant's turn.
            continues: End within the last message, which is the assistant's, where its content does.
            variables: What this model's template reads besides, such as ``enable_thinking``.

        Raises:
            UsageError: A message or variable is wrong.
            TemplateError: The template refuses the messages, is broken, or goes over its budget; the text holds the
                template's own message and the line.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, continues=continues, **variables
            )
        taken = _OWN_VARIABLES & variables.keys()
        if taken:
            raise UsageError(
                f"template variable {min(taken)!r} cannot be set by a request", field="chat_template_kwargs"
            )
        normal, known_tools = normalise_messages(messages), normalise_tools(tools)
        if any("tool_calls" in message for message in normal) and not self._takes_mappings:
            normal = [_with_argument_text(message) for message in normal]
        if continues:
            _check_continued(normal[-1], len(normal) - 1)
        try:
            guard = PromptGuard(self._spellings, [normal, known_tools, variables])
            values = guard.protect_other(variables)
            protected = [guard.protect_message(message) for message in normal]
            if continues:
                protected[-1]["content"] += guard.mark
            values["messages"] = [self._in_its_form(message) for message in protected]
            values["tools"] = guard.protect_other(known_tools)
            values["add_generation_prompt"] = add_generation_prompt and not continues
            budget = TemplateBudget(values)
        except RecursionError:
            raise UsageError("the messages, tools or template variables are nested too deeply") from None
        text = self._run(values, budget, guard.character)
        return RenderedPrompt(_until(guard.mark, text) if continues else text, guard.character)

    def _in_its_form(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": _as_parts(message["content"])} if self._wants_parts else message

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template shows content only as a list of parts, as some made for images do."""
        as_text = self._probe([{"role": "user", "content": _PROBE}])
        return _PROBE not in as_text and _PROBE in self._probe([{"role": "user", "content": _as_parts(_PROBE)}])

    @cached_property
    def _takes_mappings(self) -> bool:
        """Whether the template shows a tool call's arguments rightly when given a mapping; else it gets JSON text."""
        arguments = {"city": _PROBE}
        history: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [_call(arguments)]},
            {"role": "tool", "content": "!", "name": "weather", "tool_call_id": "call00001"},
            {"role": "assistant", "content": "!"},
        ]
        from_mapping = self._probe(history)
        if _PROBE in from_mapping and repr(arguments) not in from_mapping:
            return True
        history[1]["tool_calls"] = [_call(json.dumps(arguments))]
        return json.dumps(arguments) not in self._probe(history)

    def _probe(self, messages: list[dict[str, Any]]) -> str:
        values = {"messages": messages, "tools": None, "add_generation_prompt": False}
        try:
            return self._run(values, TemplateBudget(values, share=0.1), guard="")
        except TemplateError:
            return ""

    def _run(self, values: dict[str, Any], budget: TemplateBudget, guard: str) -> str:
        try:
            with budget.in_force():
                return self._template.render({**self._tokens, **values, GUARD_NAME: guard})
        except BudgetExceeded as error:
            raise TemplateError(f"chat template{_line_of(error)}: stopped, for {error}") from None
        except SecurityError as error:
            raise TemplateError(f"chat template{_line_of(error)}: refused, for {error}") from None
        except jinja2.TemplateError as error:
            raise TemplateError(f"chat template{_line_of(error)}: {error.message}") from None
        except Exception as error:  # a template can raise whatever the operations it writes can
            raise TemplateError(f"chat template{_line_of(error)}: {type(error).__name__}: {error}") from None


def _read_source(metadata: Mapping[str, Any], key: str) -> str | None:
    source = metadata.get(key)
    if source is not None and not isinstance(source, str):
        raise ModelFileError(f"{key}: expected text, found {type(source).__name__}")
    return source


def _check_continued(message: Mapping[str, Any], index: int) -> None:
    if message["role"] != "assistant" or message.get("tool_calls"):
        raise UsageError(
            f"messages[{index}]: an answer can go on with a last message of the assistant that calls nothing",
            field=f"messages[{index}]",
        )


def _until(mark: str, text: str) -> str:
    """Return what a template wrote up to the mark at the end of the content of the last message."""
    begun, *rest = text.split(mark)
    if len(rest) != 1:
        problem = "messages: the model's template does not show the last message in a way that can be gone on with"
        raise UsageError(problem, field="messages")
    return begun


def _line_of(error: BaseException) -> str:
    """Where in the template an error arose, from the frames Jinja maps back to it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line is not None else ""


def _with_argument_text(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _call(arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}

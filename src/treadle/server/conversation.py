"""What every chat-like API asks for, in one form, and the prompt, grammar and parser that serve it.

Leaves to others: the shape of each API's requests and answers (``server.routes``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from treadle.engine.grammar import json_rule, literal
from treadle.errors import UsageError
from treadle.models.messages import normalise_messages, normalise_tools
from treadle.models.tool_dialects import (
    AnswerParser,
    Content,
    Dialect,
    Part,
    ReasoningParser,
    find_dialect,
    find_reasoning,
)
from treadle.models.tool_dialects.fenced import explain_tools

if TYPE_CHECKING:
    from treadle.engine.async_llm import AsyncLLM
    from treadle.engine.grammar import Grammar
    from treadle.engine.prompt import EncodedPrompt

__all__ = ["Conversation", "PreparedAnswer", "ToolChoice", "prepare"]

# Whether functions may be called: not at all, if the model likes, at least one of any, or the one of that name.
ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Conversation:
    """A conversation to be answered, its messages and tools in the form of the OpenAI chat API.

    ``function`` is the only one that may be called, for the choice "required". ``answer_schema`` is what the text of
    the answer must satisfy.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice = "auto"
    function: str | None = None
    is_parallel: bool = True
    answer_schema: Mapping[str, Any] | bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedAnswer:
    """What the engine needs for an answer, and how to read it: ``parser`` makes a fresh one for each choice."""

    prompt: EncodedPrompt
    grammar: Grammar | None
    parser: Callable[[], AnswerParser]


async def prepare(engine: AsyncLLM, conversation: Conversation) -> PreparedAnswer:
    """Render, encode and compile; templates and schemas run in a thread, as both may take long.

    Raises:
        TreadleError: A message, tool, schema or the template is at fault.
    """
    return await asyncio.to_thread(_prepare, engine, conversation)


def _prepare(engine: AsyncLLM, conversation: Conversation) -> PreparedAnswer:
    source = engine.template_source
    dialect = find_dialect(source)
    tools = normalise_tools(conversation.tools) if conversation.choice != "none" else None
    messages: Sequence[Mapping[str, Any]] = normalise_messages(conversation.messages)
    if dialect.name == "fenced":
        # The template would leave out calls and results in silence.
        has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if tools or has_calls:
            messages = explain_tools(messages, tools or ())
    prompt = engine.chat_prompt(messages, tools=None if dialect.name == "fenced" else tools, **conversation.variables)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools or ()}
    rules = _rules(dialect, schemas, conversation)
    grammar = engine.grammars.compile(rules) if rules else None
    is_forced = conversation.choice == "required"
    reasoning = None if rules else find_reasoning(source)

    def parser() -> AnswerParser:
        inner: AnswerParser = _PlainParser()
        if schemas:
            inner = (dialect.forced_parser if is_forced else dialect.parser)(schemas)
        if reasoning is None:
            return inner
        is_open = prompt.text.rstrip().endswith(reasoning.opening)
        return ReasoningParser(reasoning, inner, is_open=is_open)

    shown = dialect.control_tokens if schemas else ()
    if reasoning is not None:
        shown = (*shown, reasoning.opening, reasoning.closing)
    control = engine.tokenizer.vocabulary.control
    shown_ids = frozenset(control[text] for text in shown if text in control)
    return PreparedAnswer(dataclasses.replace(prompt, shown_ids=shown_ids), grammar, parser)


def _rules(dialect: Dialect, schemas: Mapping[str, Mapping[str, Any]], conversation: Conversation) -> str | None:
    """Return the grammar of the answer, ``None`` if it is free."""
    is_forced = conversation.choice == "required"
    if not is_forced and conversation.answer_schema is None:
        return None
    rules = []
    if conversation.answer_schema is not None and not is_forced:
        rules.append(f"answer: {json_rule(conversation.answer_schema)}")
        if not schemas:
            return "\n".join(["start: answer", *rules])
    names = [conversation.function] if conversation.function else list(schemas)
    if not names:
        raise UsageError('tool_choice "required" needs at least one tool')
    for index, name in enumerate(names):
        rules.append(f"call_{index}: {_framed_call(dialect, name, schemas[name])}")
    rules.append("call: " + " | ".join(f"call_{index}" for index in range(len(names))))
    calls = 'call ("\\n" call)*' if conversation.is_parallel and dialect.is_json else "call"
    return "\n".join([f"start: {calls}" if is_forced else f"start: answer | {calls}", *rules])


def _framed_call(dialect: Dialect, name: str, schema: Mapping[str, Any]) -> str:
    frame = dialect.frame
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    arguments = {"type": "object", **{key: value for key, value in schema.items() if key not in definitions}}
    call = {
        "type": "object",
        "properties": {"name": {"const": name}, frame.arguments_key: arguments},
        "required": ["name", frame.arguments_key],
        "additionalProperties": False,
        **definitions,
    }
    opening, closing = (literal(text) if text else "" for text in (frame.opening, frame.closing))
    return " ".join(term for term in (opening, json_rule(call), closing) if term)


class _PlainParser:
    """An answer in which nothing but text is looked for."""

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []

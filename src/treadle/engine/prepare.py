"""Makes of a conversation what the local engines take: a prompt, a grammar, and a parser for the answer.

Leaves to others: rendering and encoding (``PromptReader``), compiling (``Grammars``) and reading (the dialects).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.engine.form import JsonForm
from treadle.engine.grammar import Rules, form_rule, json_rule, literal
from treadle.engine.json_schema import enforceable
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
    from treadle.engine.conversation import Conversation
    from treadle.engine.form import AnswerForm
    from treadle.engine.prompt import EncodedPrompt, PromptReader
    from treadle.models.tool_dialects.dialect import CallFrame

__all__ = ["prepare_conversation"]

_Schemas = Mapping[str, Mapping[str, Any]]


def prepare_conversation(
    prompts: PromptReader, conversation: Conversation, form: AnswerForm | None
) -> tuple[EncodedPrompt, Rules | None]:
    """Return the prompt of a conversation, and the grammar of its answer or None if that is free.

    Args:
        prompts: Renders and encodes.
        conversation: What to answer.
        form: What the text of the answer must be.

    Raises:
        TreadleError: A message, tool, schema or the template is at fault.
    """
    source = prompts.template_source
    dialect = find_dialect(source)
    tools = normalise_tools(conversation.tools) if conversation.choice != "none" else None
    messages: Sequence[Mapping[str, Any]] = normalise_messages(conversation.messages)
    if dialect.name == "fenced":
        # The template would leave out calls and results in silence.
        has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if tools or has_calls:
            messages = explain_tools(messages, tools or ())
    if dialect.is_enveloped:
        messages = [_with_thoughts(message) for message in messages]
        tools = [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools or ()]
    shown_tools = None if dialect.name == "fenced" else tools
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools or ()}
    has_form = form is not None or conversation.choice == "required"
    strict = {tool["function"]["name"] for tool in tools or () if tool["function"].get("strict")}
    rules = _rules(dialect, schemas, conversation, form) if has_form else _strict_rules(dialect, schemas, strict)
    opening = dialect.forced_opening if has_form else ""
    prompt = prompts.read_chat(messages, {"tools": shown_tools, **conversation.variables}, opening=opening)
    reasoning = None if has_form else find_reasoning(source)
    is_read = bool(schemas) or (dialect.is_enveloped and not has_form)

    def parser() -> AnswerParser:
        inner: AnswerParser = _PlainParser()
        if is_read:
            inner = (dialect.forced_parser if has_form else dialect.parser)(schemas)
        if reasoning is None:
            return inner
        is_open = prompt.text.rstrip().endswith(reasoning.opening)
        return ReasoningParser(reasoning, inner, is_open=is_open)

    shown = dialect.control_tokens if is_read else ()
    if reasoning is not None:
        shown = (*shown, reasoning.opening, reasoning.closing)
    return dataclasses.replace(prompt, shown_ids=prompts.control_ids(shown), parser=parser), rules


def _rules(dialect: Dialect, schemas: _Schemas, conversation: Conversation, form: AnswerForm | None) -> Rules:
    """Return the grammar of an answer that has a form, or must be calls."""
    is_forced = conversation.choice == "required"
    is_json = is_forced or isinstance(form, JsonForm)
    rules = []
    if form is not None and not is_forced:
        rules.append(f"answer: {form_rule(form)}")
        if not schemas:
            return Rules("\n".join(["start: answer", *rules]), is_json)
    names = [conversation.function] if conversation.function else list(schemas)
    if not names:
        raise UsageError('tool_choice "required" needs at least one tool')
    for index, name in enumerate(names):
        rules.append(f"call_{index}: {_framed_call(dialect.frame, name, schemas[name])}")
    rules.append(_one_of_calls(len(names)))
    calls = 'call ("\\n" call)*' if conversation.is_parallel and dialect.is_json else "call"
    return Rules("\n".join([f"start: {calls}" if is_forced else f"start: answer | {calls}", *rules]), is_json)


def _strict_rules(dialect: Dialect, schemas: _Schemas, strict: Collection[str]) -> Rules | None:
    """Return the grammar of free text whose calls are of functions there are, by their schemas if these are strict.

    None where nothing is strict, or where the dialect has no control token that tells a call from text.
    """
    marker = dialect.frame.opening.strip()
    if not strict or marker not in dialect.control_tokens:
        return None
    frame = dataclasses.replace(dialect.frame, opening=dialect.frame.opening.removeprefix(marker))
    anything = r"(.|\n)*"
    rules = [
        "start: (text call)* REST?",
        f"text[suffix={literal(marker)}]: /{anything}/",
        f"REST: /{anything}/ & ~/{anything}{re.escape(marker)}{anything}/",
        _one_of_calls(len(schemas)),
    ]
    for index, (name, schema) in enumerate(schemas.items()):
        rules.append(f"call_{index}: {_framed_call(frame, name, schema if name in strict else {})}")
    return Rules("\n".join(rules), is_json=False)


def _one_of_calls(count: int) -> str:
    return "call: " + " | ".join(f"call_{index}" for index in range(count))


def _framed_call(frame: CallFrame, name: str, schema: Mapping[str, Any]) -> str:
    try:
        arguments = {"type": "object", **enforceable(schema)}
    except UsageError as error:
        raise UsageError(f"the function {name!r:.80}: {error.args[0]}", field="tools") from None
    if arguments["type"] != "object":
        found = arguments["type"]
        text = f"the function {name!r:.80}: expected a schema of type object, found {found!r:.80}"
        raise UsageError(text, field="tools")
    definitions = {"$defs": arguments.pop("$defs")} if "$defs" in arguments else {}
    call = {
        "type": "object",
        "properties": {"name": {"const": name}, frame.arguments_key: arguments},
        "required": ["name", frame.arguments_key],
        "additionalProperties": False,
        **definitions,
    }
    opening, closing = (literal(text) if text else "" for text in (frame.opening, frame.closing))
    return " ".join(term for term in (opening, json_rule(call), closing) if term)


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name the reasoning before a call as harmony's template does, which takes no content beside it."""
    thoughts = message.get("reasoning_content")
    return {**message, "thinking": thoughts} if thoughts and not message["content"] else message


class _PlainParser:
    """An answer in which nothing but text is looked for."""

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []

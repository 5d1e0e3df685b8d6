"""Makes of a conversation what the local engines take: a prompt, a grammar, and a parser for the answer.

Leaves to others: rendering and encoding (``PromptReader``), compiling (``Grammars``) and reading (the dialects).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.engine.structured.answer_rules import forced_rules, free_rules, tells_calls
from treadle.errors import UsageError
from treadle.models.messages import normalise_messages, normalise_tools
from treadle.models.tool_dialects import (
    AnswerParser,
    Content,
    Dialect,
    Part,
    ReasoningMarkers,
    ReasoningParser,
    find_dialect,
    find_reasoning,
)
from treadle.models.tool_dialects.fenced import explain_tools

if TYPE_CHECKING:
    from treadle.engine.conversation import Conversation
    from treadle.engine.prompt import EncodedPrompt, PromptReader
    from treadle.engine.structured.form import AnswerForm
    from treadle.engine.structured.grammar import Rules

__all__ = ["prepare_conversation"]

_OWN_VARIABLES = frozenset({"tools", "continues"})


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
    has_form = form is not None or conversation.choice == "required"
    _check(conversation, has_form=has_form)
    tools = _shown_tools(conversation, dialect, has_form=has_form)
    messages: Sequence[Mapping[str, Any]] = normalise_messages(conversation.messages)
    if dialect.name == "fenced":
        # The template would leave out calls and results in silence.
        has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if tools or has_calls:
            messages = explain_tools(messages, tools)
    if dialect.is_enveloped:
        messages = [_with_thoughts(message) for message in messages]
        tools = [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]
    rules = _rules(conversation, dialect, form)
    prompt = prompts.read_chat(
        messages,
        {
            **conversation.variables,
            "tools": tools if tools and dialect.name != "fenced" else None,
            "continues": conversation.continues,
        },
        opening=dialect.forced_opening if has_form else "",
    )
    reasoning = None if has_form else find_reasoning(source)
    schemas = _schemas(conversation)
    is_read = bool(schemas) or (dialect.is_enveloped and not has_form)

    def parser() -> AnswerParser:
        inner: AnswerParser = _PlainParser()
        if is_read:
            inner = (dialect.parser if rules is None else dialect.forced_parser)(schemas)
        if conversation.continues:
            inner.push(dialect.forced_opening)
        if reasoning is None:
            return inner
        begun = messages[-1]["content"] if conversation.continues else prompt.text
        return ReasoningParser(reasoning, inner, is_open=_is_open(reasoning, begun, conversation))

    shown = dialect.control_tokens if is_read else ()
    if reasoning is not None:
        shown = (*shown, reasoning.opening, reasoning.closing)
    return dataclasses.replace(prompt, shown_ids=prompts.control_ids(shown), parser=parser), rules


def _check(conversation: Conversation, *, has_form: bool) -> None:
    """Refuse what contradicts itself."""
    names = {tool["function"]["name"] for tool in normalise_tools(conversation.tools) or ()}
    if unknown := [name for name in conversation.functions if name not in names]:
        raise UsageError(f"tool_choice: there is no {unknown[0]!r:.80} among the tools", field="tool_choice")
    if conversation.choice == "required" and not names:
        raise UsageError('tool_choice "required" needs at least one tool', field="tool_choice")
    if taken := _OWN_VARIABLES & conversation.variables.keys():
        problem = f"template variable {min(taken)!r} cannot be set by a request"
        raise UsageError(problem, field="chat_template_kwargs")
    if conversation.continues and has_form:
        problem = "messages: an answer that goes on with a message cannot be held to a form, nor to calls"
        raise UsageError(problem, hint="leave out the last message of the assistant", field="messages")


def _shown_tools(conversation: Conversation, dialect: Dialect, *, has_form: bool) -> list[dict[str, Any]]:
    """Return the tools that the model is told of: all of them, lest the prompt change with those that may be called.

    Where no grammar can keep it from calling the others, only those that may be.
    """
    if conversation.choice == "none":
        return []
    tools = normalise_tools(conversation.tools) or []
    if conversation.functions and not has_form and not tells_calls(dialect):
        tools = [tool for tool in tools if tool["function"]["name"] in conversation.functions]
    return [{**tool, "function": _without_strict(tool["function"])} for tool in tools]


def _without_strict(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the model is told of a function; how strict the server is does not concern it."""
    return {name: value for name, value in function.items() if name != "strict"}


def _schemas(conversation: Conversation) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the functions that may be called, by name."""
    if conversation.choice == "none":
        return {}
    functions = [tool["function"] for tool in normalise_tools(conversation.tools) or ()]
    allowed = conversation.functions or [function["name"] for function in functions]
    return {each["name"]: each.get("parameters") or {} for each in functions if each["name"] in allowed}


def _rules(conversation: Conversation, dialect: Dialect, form: AnswerForm | None) -> Rules | None:
    """Return the grammar of the answer, None if it is free or a grammar could not tell its calls from text."""
    schemas = _schemas(conversation)
    if conversation.choice == "required":
        return forced_rules(dialect, schemas, None, is_parallel=conversation.is_parallel)
    if form is not None:
        return forced_rules(dialect, schemas, form, is_parallel=conversation.is_parallel)
    strict = {tool["function"]["name"] for tool in conversation.tools if tool["function"].get("strict")}
    is_limited = len(schemas) < len(conversation.tools)
    if schemas and (is_limited or strict & schemas.keys()) and tells_calls(dialect):
        return free_rules(dialect, schemas, strict)
    return None


def _is_open(markers: ReasoningMarkers, begun: str, conversation: Conversation) -> bool:
    """Tell whether the answer begins amid reasoning, as what comes before it ends there."""
    if conversation.continues:
        return begun.rfind(markers.opening) > begun.rfind(markers.closing)
    return begun.rstrip().endswith(markers.opening)


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

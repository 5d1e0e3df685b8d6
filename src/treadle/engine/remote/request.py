"""Writes what is asked of us as a request to an OpenAI-compatible server, or says what that server cannot do.

A setting of ours that is at its default is left out, so that the server's own default holds.

Leaves to others: sending it (``remote.http``) and reading the answer (``remote.answer``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from treadle.engine.conversation import Conversation
from treadle.engine.prompt import EncodedPrompt
from treadle.engine.sampling import SamplingParams
from treadle.engine.structured.form import ChoiceForm, JsonForm, RegexForm
from treadle.errors import UsageError
from treadle.models.messages import normalise_tools

if TYPE_CHECKING:
    from treadle.engine.prompt import Prompt
    from treadle.engine.remote.server import RemoteServer, ServerKind
    from treadle.engine.request import Priority
    from treadle.engine.structured.form import AnswerForm

__all__ = ["chat_fields", "text_prompt", "write_request"]

_COMMON = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_EXTRA = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
_DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}
_ANY_OBJECT = {"type": "object"}


def write_request(
    server: RemoteServer, prompt: Prompt | Conversation, params: SamplingParams, priority: Priority
) -> tuple[str, dict[str, Any]]:
    """Return the path below the URL of the server, and the body.

    Raises:
        UsageError: The server cannot do what is asked.
    """
    options = {"include_usage": True}
    if server.kind.has_continuous_usage:
        options["continuous_usage_stats"] = True
    body = {"model": server.model, "stream": True, "stream_options": options, **_sampling(server.kind, params)}
    if server.kind.has_priority and priority != "interactive":
        body["priority"] = priority
    if isinstance(prompt, Conversation):
        body |= chat_fields(server.kind, prompt)
        if params.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": params.logprobs}
        if params.form is not None:
            body |= _chat_form(server.kind, params.form)
        return "/chat/completions", body
    body["prompt"] = text_prompt(prompt)
    if params.logprobs is not None:
        body["logprobs"] = params.logprobs
    if params.form is not None:
        body |= _structured_outputs(server.kind, params.form)
    return "/completions", body


def chat_fields(kind: ServerKind, conversation: Conversation) -> dict[str, Any]:
    """Return the fields that say what is to be answered."""
    found: dict[str, Any] = {"messages": [_message(each) for each in _checked(conversation.messages)]}
    variables = dict(conversation.variables)
    if "reasoning_effort" in variables:
        found["reasoning_effort"] = variables.pop("reasoning_effort")
    if variables:
        if not kind.has_template_variables:
            raise _cannot(kind, f"set {', '.join(sorted(variables))} of the chat template")
        found["chat_template_kwargs"] = variables
    if conversation.continues:
        if kind.continuation is None:
            raise _cannot(kind, "go on with a message of the assistant")
        found |= kind.continuation
    if conversation.choice == "required" and not conversation.tools:
        raise UsageError('tool_choice "required" needs at least one tool')
    if tools := normalise_tools(conversation.tools):
        if conversation.functions and not kind.has_allowed_tools:
            tools = [tool for tool in tools if tool["function"]["name"] in conversation.functions]
        found["tools"] = tools
        found["tool_choice"] = _tool_choice(kind, conversation)
        if not conversation.is_parallel:
            found["parallel_tool_calls"] = False
    return found


def _sampling(kind: ServerKind, params: SamplingParams) -> dict[str, Any]:
    changed = {name: value for name, value in vars(params).items() if value != _DEFAULTS[name]}
    body = {name: changed[name] for name in _COMMON if name in changed}
    if params.max_tokens is not None:
        body["max_tokens"] = params.max_tokens
    if params.stop_strings:
        body["stop"] = list(params.stop_strings)
    if params.n > 1:
        body["n"] = params.n
    if params.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    for name in _EXTRA:
        if name not in changed or not (changed[name] or name == "repetition_penalty"):
            continue
        if name not in kind.sampling:
            raise _cannot(kind, f"set {name}")
        value = changed[name]
        body[kind.sampling[name]] = list(value) if isinstance(value, tuple) else value
    return body


def _chat_form(kind: ServerKind, form: AnswerForm) -> dict[str, Any]:
    if not isinstance(form, JsonForm):
        return _structured_outputs(kind, form)
    if form.schema == _ANY_OBJECT:
        return {"response_format": {"type": "json_object"}}
    named = {"name": "answer", "schema": form.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _structured_outputs(kind: ServerKind, form: AnswerForm) -> dict[str, Any]:
    if not kind.has_forms:
        wanted = {JsonForm: "JSON outside of a chat", RegexForm: "a pattern", ChoiceForm: "a list of texts"}[type(form)]
        raise _cannot(kind, f"hold an answer to {wanted}")
    if isinstance(form, JsonForm):
        return {"structured_outputs": {"json": form.schema}}
    if isinstance(form, RegexForm):
        return {"structured_outputs": {"regex": form.pattern}}
    return {"structured_outputs": {"choice": list(form.choices)}}


def _tool_choice(kind: ServerKind, conversation: Conversation) -> Any:
    named = [{"type": "function", "function": {"name": name}} for name in conversation.functions]
    if len(named) == 1 and conversation.choice == "required":
        return named[0]
    if named and kind.has_allowed_tools:
        return {"type": "allowed_tools", "allowed_tools": {"mode": conversation.choice, "tools": named}}
    return conversation.choice


def _checked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UsageError(f"messages: expected a list, found {type(messages).__name__}")
    if not messages:
        raise UsageError("messages: expected at least one, found none")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"messages[{index}]: expected a mapping, found {type(message).__name__}")
    return messages


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the arguments of its calls as text, which is how the API has them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return dict(message)
    return {**message, "tool_calls": [_call(each) for each in calls]}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def text_prompt(prompt: Prompt) -> str | list[int]:
    """Return a prompt that is no conversation as the API takes it; raises UsageError for one that is encoded."""
    if isinstance(prompt, EncodedPrompt):
        raise UsageError("prompt: an engine elsewhere takes text, token ids or a conversation, not an EncodedPrompt")
    if isinstance(prompt, str):
        return prompt
    return list(prompt)


def _cannot(kind: ServerKind, what: str) -> UsageError:
    return UsageError(f"the engine is {kind.name}, which cannot {what}")

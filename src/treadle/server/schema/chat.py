"""The body of ``/v1/chat/completions``.

Leaves to others: what a message may say (``models.messages`` checks it for every caller of the engine alike).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from treadle.engine.conversation import ToolChoice
from treadle.engine.structured.form import AnswerForm, JsonForm
from treadle.server.schema.base import (
    MAX_MESSAGES,
    Body,
    ModelName,
    ServiceTier,
    ShortText,
    Unsupported,
    Whole,
    mistake,
)
from treadle.server.schema.completions import StreamOptions
from treadle.server.schema.sampling import SamplingFields

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MAX_TOOLS",
    "ChatRequest",
    "FunctionTool",
    "JsonSchemaFormat",
    "Messages",
    "NamedChoice",
    "Parameters",
    "ResponseFormat",
    "StoredChatUpdate",
    "Tool",
    "TurnFields",
    "check_functions",
]

MAX_TOOLS = 256
_FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise mistake("type", "arguments have names, so it must be an object")
    return schema


# The schema of a function's arguments.
Parameters = Annotated[dict[str, Any], AfterValidator(_check_parameters)]


class FunctionTool(Body):
    """A function the model may call."""

    name: _FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool of the only kind there is here."""

    type: Literal["function"]
    function: FunctionTool


class _ChosenFunction(Body):
    name: _FunctionName


class NamedChoice(Body):
    """The choice of one function by name."""

    type: Literal["function"]
    function: _ChosenFunction


class _AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Body):
    """The choice of several functions by name: as many as the model likes, or at least one."""

    type: Literal["allowed_tools"]
    allowed_tools: _AllowedTools


class JsonSchemaFormat(Body):
    """A schema under the name a client gave it."""

    name: ShortText
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form an answer must have; ``schema`` beside ``json_object`` is a spelling other engines take."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _one_schema(self) -> ResponseFormat:
        if self.type == "json_schema":
            given = [self.schema_, self.json_schema.schema_ if self.json_schema else None]
            if sum(schema is not None for schema in given) != 1:
                raise mistake("json_schema", "type json_schema needs json_schema.schema, the JSON schema itself")
        elif self.json_schema is not None or (self.schema_ is not None and self.type == "text"):
            raise mistake("type", 'a schema needs "type": "json_schema"')
        return self

    @property
    def form(self) -> JsonForm | None:
        """Return what the text of the answer must be: any object for ``json_object``, anything for ``text``."""
        if self.type == "text":
            return None
        given = self.json_schema.schema_ if self.json_schema else self.schema_
        return JsonForm() if given is None else JsonForm(given)


def check_functions(chosen: Sequence[str], names: Sequence[str]) -> None:
    """Refuse the choice of functions that are not among the tools."""
    for name in chosen:
        if name not in names:
            raise mistake("tool_choice", f"there is no {name!r} among the tools")


def _check_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refuse results of calls that were not made: a template would show them as if somebody had asked for them."""
    called: set[Any] = set()
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            called |= {call.get("id") for call in calls if isinstance(call, dict) and _is_id(call.get("id"))}
        if message.get("role") != "tool":
            continue
        call_id = message.get("tool_call_id")
        if not called or (isinstance(call_id, str) and call_id not in called and None not in called):
            raise mistake(f"[{index}].tool_call_id", f"no call before it has the id {call_id!r:.80}")
    return messages


def _is_id(value: Any) -> bool:
    return value is None or isinstance(value, str)


Messages = Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES), AfterValidator(_check_results)]


class StoredChatUpdate(Body):
    """New labels of a stored chat."""

    metadata: Annotated[dict[ShortText, Annotated[str, StringConstraints(max_length=512)]], Field(max_length=16)] | None


class TurnFields(Body):
    """Whether the answer goes on with a last message of the assistant's, in vLLM's words."""

    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _one_turn(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise mistake("add_generation_prompt", "it and continue_final_message exclude each other")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise mistake("add_generation_prompt", "false needs continue_final_message, for an answer has a turn")
        return self


class ChatRequest(SamplingFields, TurnFields):
    """Answer a conversation; see the OpenAI API's chat completions."""

    model: ModelName | None = None
    messages: Messages
    max_tokens: Whole | None = Field(None, ge=1)
    max_completion_tokens: Whole | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # What a reasoning template reads; handed to it as it is.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    # Labels that change nothing about an answer. Prefixes are found by content, so a cache key has nothing to add.
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    metadata: dict[str, Any] | None = None
    service_tier: ServiceTier | None = None
    modalities: list[Literal["text"]] | None = None
    store: bool | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: Unsupported = None
    verbosity: Literal["medium"] | None = None  # the usual one, which is as much as a model says
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise mistake("top_logprobs", "it needs logprobs to be true")
        names = [tool.function.name for tool in self.tools or ()]
        if len(names) != len(set(names)):
            raise mistake("tools", "two functions have the same name")
        if self.structured_outputs is not None and self.response_format is not None:
            raise mistake("structured_outputs", "it and response_format exclude each other")
        if self.tool_choice == "required" and not names:
            raise mistake("tool_choice", '"required" needs at least one tool')
        check_functions(self.chosen_functions, names)
        return self

    @property
    def chosen_functions(self) -> list[str]:
        """Return the names of the only functions that may be called, none if that is not limited."""
        if isinstance(self.tool_choice, NamedChoice):
            return [self.tool_choice.function.name]
        if isinstance(self.tool_choice, AllowedChoice):
            return [each.function.name for each in self.tool_choice.allowed_tools.tools]
        return []

    @property
    def choice(self) -> ToolChoice:
        """Return whether functions may be called."""
        if isinstance(self.tool_choice, NamedChoice):
            return "required"
        if isinstance(self.tool_choice, AllowedChoice):
            return self.tool_choice.allowed_tools.mode
        return self.tool_choice or "auto"

    @property
    def form(self) -> AnswerForm | None:
        """Return what the text of the answer must be."""
        return super().form if self.response_format is None else self.response_format.form

    @property
    def form_field(self) -> str:
        """Return the field that says what an answer must be; where none does, it is the schemas of the tools."""
        if self.structured_outputs is not None:
            return "structured_outputs"
        return "tools" if self.form is None else "response_format"

    @property
    def token_limit(self) -> int | None:
        """Return the limit on the answer; the newer name wins over the one it replaced."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

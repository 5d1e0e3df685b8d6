"""The bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``, as the Anthropic API has them.

Leaves to others: what a message may say (``server.anthropic``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from treadle.engine.sampling import SamplingParams
from treadle.engine.structured.form import JsonForm
from treadle.server.schema.base import MAX_MESSAGES, Body, ModelName, Unsupported
from treadle.server.schema.chat import MAX_TOOLS
from treadle.server.schema.sampling import StopText

__all__ = ["CountTokensRequest", "MessagesRequest"]

_ToolName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
_MIN_THINKING_TOKENS = 1024


class CacheControl(Body):
    """A mark that changes nothing here: every prompt is looked up in the cache, as far as it is known."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ClientTool(Body):
    """A function that the client runs."""

    @model_validator(mode="before")
    @classmethod
    def _described(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in (None, "custom"):
            raise PydanticCustomError(
                "unsupported",
                "the type {kind} is known to Anthropic's models alone; describe the tool with an input_schema",
                {"kind": f"{kind!r:.80}"},
            )
        return tool

    name: _ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None
    input_examples: Unsupported = None


class ClientToolChoice(Body):
    """Whether tools may be called, must be, or one of them must be."""

    type: Literal["auto", "any", "tool", "none"]
    name: _ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks first. What it thinks counts towards ``max_tokens``, the limit that is enforced."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=_MIN_THINKING_TOKENS)
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Body):
    """The JSON schema that an answer satisfies."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The form of the answer, and the effort that a reasoning template reads."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class RequestMetadata(Body):
    """A label that changes nothing about an answer."""

    user_id: Annotated[str, StringConstraints(max_length=1024)] | None = None


class ContextEdit(Body):
    """What is to be taken out of the conversation: nothing, for nothing else is known here."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """Edits of the conversation, of which those that leave it as it is are taken."""

    edits: list[ContextEdit] | None = None


class CountTokensRequest(Body):
    """Count the tokens of a conversation; see the Anthropic API's messages."""

    model: ModelName
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ClientToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # an earlier name of the format in output_config
    cache_control: CacheControl | None = None

    @property
    def form(self) -> JsonForm | None:
        """Return what the text of the answer must be."""
        form = self.output_format if self.output_config is None else self.output_config.format or self.output_format
        return None if form is None else JsonForm(form.schema_)

    @model_validator(mode="after")
    def _one_format(self) -> CountTokensRequest:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise PydanticCustomError("output_format", "output_format: output_config.format is given as well")
        return self

    @model_validator(mode="after")
    def _consistent_tools(self) -> CountTokensRequest:
        names = [tool.name for tool in self.tools or ()]
        if len(names) != len(set(names)):
            raise PydanticCustomError("tools", "tools: two tools have the same name")
        if self.tool_choice is None:
            return self
        choice, name = self.tool_choice.type, self.tool_choice.name
        if (choice == "tool") != (name is not None):
            raise PydanticCustomError("tool_choice", 'tool_choice: "name" belongs to the type "tool", and to no other')
        if choice == "any" and not names:
            raise PydanticCustomError("tool_choice", 'tool_choice "any" needs at least one tool')
        if name is not None and name not in names:
            raise PydanticCustomError(
                "tool_choice", "tool_choice names {name}, which is not among the tools", {"name": repr(name)}
            )
        return self


class MessagesRequest(CountTokensRequest):
    """Answer a conversation; see the Anthropic API's messages."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    container: Unsupported = None
    context_management: ContextManagement | None = None
    diagnostics: Unsupported = None
    inference_geo: Unsupported = None
    mcp_servers: Unsupported = None
    thread: Unsupported = None

    @property
    def hides_thoughts(self) -> bool:
        """Tell whether the answer shows that the model thought, but not what."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @model_validator(mode="after")
    def _consistent_thinking(self) -> MessagesRequest:
        budget = self.thinking.budget_tokens if self.thinking is not None else None
        if budget is not None and budget >= self.max_tokens:
            raise PydanticCustomError("thinking", "thinking.budget_tokens must be less than max_tokens")
        return self

    def sampling(self, *, max_tokens: int | None) -> SamplingParams:
        """Return the engine's parameters; what a request leaves out takes their default."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
        }
        return SamplingParams(
            max_tokens=max_tokens,
            form=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )

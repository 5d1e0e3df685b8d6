"""The body of ``/v1/responses``, as the OpenAI API has it.

Leaves to others: what an input item may say (``server.response_items``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from treadle.engine.form import JsonForm
from treadle.engine.sampling import SamplingParams
from treadle.server.schema.base import MAX_MESSAGES, Body, ModelName, ShortText, Unsupported
from treadle.server.schema.chat import MAX_TOOLS

__all__ = ["ResponsesRequest", "TextFormat"]

_FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
_MetadataText = Annotated[str, StringConstraints(max_length=512)]


class ResponseTool(Body):
    """A function the model may call."""

    type: Literal["function"]
    name: _FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseToolChoice(Body):
    """The choice of one function by name."""

    type: Literal["function"]
    name: _FunctionName


class TextFormat(Body):
    """The form an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: ShortText | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise PydanticCustomError("schema", 'a schema and "type": "json_schema" need each other')
        return self


class TextConfig(Body):
    """How the text of the answer is to be."""

    format: TextFormat | None = None
    verbosity: Unsupported = None


class ReasoningConfig(Body):
    """What a reasoning template reads. Reasoning comes as the model wrote it, so there are no summaries."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Unsupported = None
    generate_summary: Unsupported = None


class ResponseStreamOptions(Body):
    """What a stream carries beside the answer; there is no padding to leave out."""

    include_obfuscation: bool | None = None


class ResponsesRequest(Body):
    """Answer an input; see the OpenAI API's responses. Reasoning comes in clear text, encrypted or not asked."""

    model: ModelName | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    store: bool | None = None
    previous_response_id: ShortText | None = None
    metadata: Annotated[dict[ShortText, _MetadataText], Field(max_length=16)] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    access_programs: Unsupported = None
    background_options: Unsupported = None
    context_management: Unsupported = None
    conversation: Unsupported = None
    image: Unsupported = None
    max_tool_calls: Unsupported = None
    moderation: Unsupported = None
    prompt: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: Unsupported = None
    top_logprobs: Unsupported = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponsesRequest:
        names = [tool.name for tool in self.tools or ()]
        if len(names) != len(set(names)):
            raise PydanticCustomError("tools", "tools: two functions have the same name")
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("tool_choice", 'tool_choice "required" needs at least one tool')
        if isinstance(self.tool_choice, ResponseToolChoice) and self.tool_choice.name not in names:
            raise PydanticCustomError(
                "tool_choice",
                "tool_choice names {name}, which is not among the tools",
                {"name": repr(self.tool_choice.name)},
            )
        return self

    @property
    def form(self) -> JsonForm | None:
        """Return what the text of the answer must be: any object for ``json_object``, anything for ``text``."""
        wanted = self.text.format if self.text is not None else None
        if wanted is None or wanted.type == "text":
            return None
        return JsonForm() if wanted.schema_ is None else JsonForm(wanted.schema_)

    def sampling(self, *, max_tokens: int | None) -> SamplingParams:
        """Return the engine's parameters; what a request leaves out takes their default."""
        given: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        return SamplingParams(
            max_tokens=max_tokens,
            form=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )

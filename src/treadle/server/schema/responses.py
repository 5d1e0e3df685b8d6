"""The body of ``/v1/responses``, as the OpenAI API has it.

Leaves to others: what an input item may say (``server.response_items``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from treadle.engine.conversation import ToolChoice
from treadle.engine.sampling import SamplingParams
from treadle.engine.structured.form import JsonForm
from treadle.server.schema.base import (
    MAX_MESSAGES,
    Body,
    ModelName,
    Off,
    ServiceTier,
    ShortText,
    Unsupported,
    Whole,
    mistake,
)
from treadle.server.schema.chat import MAX_TOOLS, Parameters, check_functions

__all__ = ["InputTokensRequest", "ResponsesRequest", "TextFormat"]

_LOGPROBS = "message.output_text.logprobs"
# What else may be asked for is of tools and media that are not here, or comes in any case.
_Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]

_FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
_MetadataText = Annotated[str, StringConstraints(max_length=512)]


class ResponseTool(Body):
    """A function the model may call."""

    type: Literal["function"]
    name: _FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class ResponseToolChoice(Body):
    """The choice of one function by name."""

    type: Literal["function"]
    name: _FunctionName


class AllowedResponseTools(Body):
    """The choice of several functions by name: as many as the model likes, or at least one."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseToolChoice], Field(min_length=1, max_length=MAX_TOOLS)]


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
            raise mistake("schema", 'a schema and "type": "json_schema" need each other')
        return self


class TextConfig(Body):
    """How the text of the answer is to be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # the usual one, which is as much as a model says


class ReasoningConfig(Body):
    """What a reasoning template reads. Reasoning comes as the model wrote it, which is the best summary there is."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Unsupported = None
    mode: Unsupported = None


class ResponseStreamOptions(Body):
    """What a stream carries beside the answer; there is no padding to leave out."""

    include_obfuscation: bool | None = None


class InputTokensRequest(Body):
    """What the model is to read: an input, what comes before it, and the tools it may use."""

    model: ModelName | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: ShortText | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | AllowedResponseTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Unsupported = None
    personality: Unsupported = None

    @model_validator(mode="after")
    def _consistent(self) -> InputTokensRequest:
        names = [tool.name for tool in self.tools or ()]
        if len(names) != len(set(names)):
            raise mistake("tools", "two functions have the same name")
        if self.tool_choice == "required" and not names:
            raise mistake("tool_choice", '"required" needs at least one tool')
        check_functions(self.chosen_functions, names)
        return self

    @property
    def chosen_functions(self) -> list[str]:
        """Return the names of the only functions that may be called, none if that is not limited."""
        if isinstance(self.tool_choice, ResponseToolChoice):
            return [self.tool_choice.name]
        if isinstance(self.tool_choice, AllowedResponseTools):
            return [each.name for each in self.tool_choice.tools]
        return []

    @property
    def choice(self) -> ToolChoice:
        """Return whether functions may be called."""
        if isinstance(self.tool_choice, ResponseToolChoice):
            return "required"
        if isinstance(self.tool_choice, AllowedResponseTools):
            return self.tool_choice.mode
        return self.tool_choice or "auto"


class ResponsesRequest(InputTokensRequest):
    """Answer an input; see the OpenAI API's responses. Reasoning comes in clear text, encrypted or not asked.

    ``max_tool_calls`` bounds the calls of tools that the server itself would run, of which there are none.
    """

    max_output_tokens: Whole | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    metadata: Annotated[dict[ShortText, _MetadataText], Field(max_length=16)] | None = None
    include: list[_Included] | None = None
    background: Off = None
    max_tool_calls: Whole | None = Field(None, ge=1)
    service_tier: ServiceTier | None = None
    user: ShortText | None = None
    safety_identifier: ShortText | None = None
    prompt_cache_key: ShortText | None = None
    access_programs: Unsupported = None
    background_options: Unsupported = None
    context_management: Unsupported = None
    image: Unsupported = None
    moderation: Unsupported = None
    prompt: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: Unsupported = None

    @property
    def form(self) -> JsonForm | None:
        """Return what the text of the answer must be: any object for ``json_object``, anything for ``text``."""
        wanted = self.text.format if self.text is not None else None
        if wanted is None or wanted.type == "text":
            return None
        return JsonForm() if wanted.schema_ is None else JsonForm(wanted.schema_)

    @property
    def logprobs(self) -> int | None:
        """Return how many of the likeliest tokens to report at each place, ``None`` if not even the one taken."""
        return self.top_logprobs or 0 if self.top_logprobs is not None or _LOGPROBS in (self.include or ()) else None

    def sampling(self, *, max_tokens: int | None) -> SamplingParams:
        """Return the engine's parameters; what a request leaves out takes their default."""
        given: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=self.logprobs,
            form=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )

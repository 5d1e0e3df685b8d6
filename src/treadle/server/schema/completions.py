"""The body of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from treadle.server.schema.base import Body, ModelName, ShortText, Unsupported
from treadle.server.schema.sampling import SamplingFields

__all__ = ["CompletionRequest", "StreamOptions"]

_MAX_PROMPTS = 64
_TokenIds = Annotated[list[int], Field(min_length=1)]


class StreamOptions(Body):
    """What a stream carries beside the answer; ``continuous_usage_stats`` is vLLM's word for usage in every event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(SamplingFields):
    """Continue plain text, token ids, or several of either; see the OpenAI API's legacy completions."""

    model: ModelName | None = None
    prompt: str | _TokenIds | Annotated[list[str] | list[_TokenIds], Field(min_length=1, max_length=_MAX_PROMPTS)]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    best_of: Unsupported = None
    suffix: Unsupported = None

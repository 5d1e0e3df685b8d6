"""The body of ``/v1/completions``."""

from __future__ import annotations

from pydantic import Field, model_validator

from treadle.server.schema.base import Body, ModelName, ShortText, Unsupported, Whole, mistake
from treadle.server.schema.inputs import Inputs
from treadle.server.schema.sampling import SamplingFields

__all__ = ["CompletionRequest", "StreamOptions"]

_MAX_PROMPTS = 64


class StreamOptions(Body):
    """What a stream carries beside the answer; ``continuous_usage_stats`` is vLLM's word for usage in every event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(SamplingFields):
    """Continue plain text, token ids, or several of either; see the OpenAI API's legacy completions.

    No tokens at all may be asked for: the answer then is the prompt, with ``echo``, and the count of its tokens.
    """

    model: ModelName | None = None
    prompt: Inputs
    max_tokens: Whole | None = Field(16, ge=0)
    logprobs: Whole | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: ShortText | None = None
    best_of: Whole | None = None
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if len(self.prompt) > _MAX_PROMPTS:
            raise mistake("prompt", f"{len(self.prompt)} prompts, expected at most {_MAX_PROMPTS}")
        if self.echo and self.logprobs is not None:
            raise mistake("logprobs", "those of an echoed prompt are not known here; leave out logprobs or echo")
        if self.best_of not in (None, self.n or 1):
            raise mistake("best_of", f"every answer is returned here; send n: {self.best_of}")
        return self

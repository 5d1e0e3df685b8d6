"""The body of ``/v1/embeddings``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from treadle.server.schema.base import Body, ModelName, ShortText, Whole
from treadle.server.schema.inputs import Inputs

__all__ = ["EmbeddingsRequest"]


class EmbeddingsRequest(Body):
    """Text, token ids, or several of either, to be turned into vectors; see the OpenAI API's embeddings.

    ``pooling``, ``normalize`` and ``priority`` are additions to that API, ``truncate_prompt_tokens`` is vLLM's and
    ``truncate`` Jina's.
    """

    model: ModelName | None = None
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = Field(None, ge=1)
    truncate_prompt_tokens: Whole | None = Field(None, ge=-1)
    truncate: bool | None = None
    user: ShortText | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool | None = None
    priority: Literal["interactive", "batch"] | None = None

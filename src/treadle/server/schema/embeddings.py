"""The body of ``/v1/embeddings``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from treadle.server.schema.base import Body, ModelName, ShortText

__all__ = ["EmbeddingsRequest"]

_TokenIds = Annotated[list[int], Field(min_length=1)]


class EmbeddingsRequest(Body):
    """Text, token ids, or several of either, to be turned into vectors; see the OpenAI API's embeddings.

    ``pooling``, ``normalize`` and ``priority`` are additions to that API.
    """

    model: ModelName | None = None
    input: str | _TokenIds | Annotated[list[str] | list[_TokenIds], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: ShortText | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool | None = None
    priority: Literal["interactive", "batch"] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """Return what to embed, one entry for each vector."""
        given: Any = self.input
        is_one = isinstance(given, str) or isinstance(given[0], int)
        return [given] if is_one else list(given)

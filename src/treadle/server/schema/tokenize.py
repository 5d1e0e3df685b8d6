"""The bodies of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from treadle.server.schema.base import Body, ModelName

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(Body):
    """Text, or a conversation, to be cut into tokens."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("tokenize", "expected either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """Token ids to be put together."""

    model: ModelName | None = None
    tokens: list[int]

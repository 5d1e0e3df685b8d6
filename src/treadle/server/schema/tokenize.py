"""The bodies of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from treadle.engine.conversation import Conversation
from treadle.server.schema.base import MAX_MESSAGES, Body, ModelName
from treadle.server.schema.chat import MAX_TOOLS, Tool

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(Body):
    """Text, or a conversation, to be cut into tokens."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("tokenize", "expected either prompt or messages")
        if self.messages is None and (self.tools or self.chat_template_kwargs):
            raise PydanticCustomError("tokenize", "tools and chat_template_kwargs belong to messages")
        return self

    @property
    def conversation(self) -> Conversation | None:
        """Return the conversation, if that is what the body holds."""
        if self.messages is None:
            return None
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return Conversation(self.messages, tools, variables=self.chat_template_kwargs or {})


class DetokenizeRequest(Body):
    """Token ids to be put together."""

    model: ModelName | None = None
    tokens: list[int]

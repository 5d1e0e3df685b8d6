"""The bodies of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from treadle.engine.conversation import Conversation
from treadle.server.schema.base import Body, ModelName, mistake
from treadle.server.schema.chat import MAX_TOOLS, Messages, Tool, TurnFields

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(TurnFields):
    """Text, or a conversation, to be cut into tokens."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise mistake("prompt", "expected either prompt or messages")
        if self.messages is None and (self.tools or self.chat_template_kwargs or self.continue_final_message):
            raise mistake("messages", "tools, chat_template_kwargs and continue_final_message belong to messages")
        return self

    @property
    def conversation(self) -> Conversation | None:
        """Return the conversation, if that is what the body holds."""
        if self.messages is None:
            return None
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        variables = self.chat_template_kwargs or {}
        return Conversation(self.messages, tools, continues=bool(self.continue_final_message), variables=variables)


class DetokenizeRequest(Body):
    """Token ids to be put together."""

    model: ModelName | None = None
    tokens: list[int]

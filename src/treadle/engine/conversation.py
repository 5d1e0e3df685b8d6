"""A conversation to be answered, as data that every engine reads.

Leaves to others: what becomes of it, a prompt (``engine.prepare``) or a request to another engine (``engine.remote``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Conversation", "ToolChoice"]

# Whether functions may be called: not at all, if the model likes, or at least one.
ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Conversation:
    """The turns so far, and the tools an answer may use, in the form of the OpenAI chat API.

    Args:
        messages: The turns, as mappings with "role" and "content".
        tools: Function definitions.
        choice: Whether functions may be called: "none", "auto" as the model likes, or "required".
        functions: The only ones of the tools that may be called; by default all of them.
        is_parallel: Whether one answer may call several.
        continues: Whether the answer goes on with the last message, which the assistant has begun.
        variables: Given to the chat template as they are, such as ``enable_thinking``.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice = "auto"
    functions: Sequence[str] = ()
    is_parallel: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

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
        function: The only one that may be called, for the choice "required".
        is_parallel: Whether one answer may call several.
        variables: Given to the chat template as they are, such as ``enable_thinking``.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice = "auto"
    function: str | None = None
    is_parallel: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)

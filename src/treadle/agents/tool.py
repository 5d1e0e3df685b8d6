"""What a tool is to the agent loop: a description for the model, and something to call.

Leaves to others: making tools, of Python functions (``function_tool``) or of anything else, and checking arguments
(``arguments``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Tool", "ToolResult", "ToolSpec", "is_name"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_name(text: str) -> bool:
    """Tell whether a tool may have that name, in every API."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told of a tool.

    Args:
        name: Letters, digits, ``_`` and ``-``, at most 64.
        description: What the tool does, for the model.
        parameters: The JSON schema of an object, whose properties are the arguments.
        is_read_only: Whether calls change nothing. Read-only calls of one answer run together, others one by one in
            their order, and only read-only ones are run again when a run that was cut off is resumed.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_read_only: bool = False

    def definition(self) -> dict[str, Any]:
        """Return the tool in the form of the OpenAI chat API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolResult:
    """What the model is shown of a call; ``is_error`` says that the call failed."""

    text: str
    is_error: bool = False


@runtime_checkable
class Tool(Protocol):
    """Something a model may call."""

    @property
    def spec(self) -> ToolSpec:
        """Return what the model is told of the tool; always the same."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Do the work; ``arguments`` satisfy the schema. Cancelling the task ends it.

        Raises:
            ToolError: The call failed. The model is shown the text, and the run goes on.
        """

    async def close(self) -> None:
        """Give back what the tool holds; may be called twice."""

"""What can be heard of a run while it goes on.

Leaves to others: making them (the loop) and showing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.agents.result import AgentResult

__all__ = [
    "AgentEvent",
    "CallBegan",
    "CallEnded",
    "ReasoningPiece",
    "RunEnded",
    "TextPiece",
    "TurnBegan",
    "Warned",
]


@dataclass(frozen=True)
class TurnBegan:
    """The model is asked for the ``turn``-th time; without tools if that ``is_closing``."""

    turn: int
    is_closing: bool = False


@dataclass(frozen=True)
class TextPiece:
    """More of what the model writes for the reader."""

    text: str


@dataclass(frozen=True)
class ReasoningPiece:
    """More of what the model writes to itself."""

    text: str


@dataclass(frozen=True)
class CallBegan:
    """A tool is called, with arguments that fit its schema."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class CallEnded:
    """What the model is shown of a call, be it that it could not be made."""

    call_id: str
    name: str
    text: str
    is_error: bool
    seconds: float


@dataclass(frozen=True)
class Warned:
    """Something that the model, or whoever runs it, should know: a loop, a broken call, a result that was shortened."""

    text: str


@dataclass(frozen=True)
class RunEnded:
    """The run is over; always the last event."""

    result: AgentResult


AgentEvent = TurnBegan | TextPiece | ReasoningPiece | CallBegan | CallEnded | Warned | RunEnded

"""What a run of an agent leaves behind.

Leaves to others: making it (the loop).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from treadle.agents.budget import BudgetEnd, Usage
from treadle.agents.trace import Trace
from treadle.errors import TreadleError

__all__ = ["AgentResult", "EndReason"]

EndReason = Literal["answered", "loop", "context", "error"] | BudgetEnd


@dataclass(frozen=True)
class AgentResult:
    """How a run ended.

    ``end`` is "answered" if the model said that it was done. After the end of a budget ("turns", "tokens", "seconds",
    "tool_seconds", "cost") and after a "loop" it was asked for an answer once more, so that there may be one as well.
    "context": the conversation no longer fits the model. "error": see ``error``; what was said until then is kept.

    ``data`` is the answer in the form of the agent's ``answer_schema``, an instance of it if that is a model class, and
    None without one. ``messages`` are the turns as the model was shown them.
    """

    answer: str
    data: Any
    end: EndReason
    messages: Sequence[Mapping[str, Any]]
    usage: Usage
    trace: Trace
    error: TreadleError | None = None

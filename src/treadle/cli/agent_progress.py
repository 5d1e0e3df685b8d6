"""Shows on stderr what an agent does while it works, and at its end what that took.

Leaves to others: the work (``agents``) and the answer itself (``cli.agent``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.agents.events import CallBegan, CallEnded, ReasoningPiece, TextPiece, TurnBegan, Warned
from treadle.cli.console import console
from treadle.hardware.memory import peak_memory_bytes

if TYPE_CHECKING:
    from treadle.agents.events import AgentEvent
    from treadle.agents.result import AgentResult

__all__ = ["Progress", "agent_facts", "closing_line"]

_MAX_CALL_CHARS, _MAX_RESULT_CHARS, _MAX_TAIL_CHARS = 100, 160, 60


class Progress:
    """Writes a line for every turn, call and result; on a terminal also what the model writes just now."""

    def __init__(self) -> None:
        self._is_live = sys.stderr is not None and sys.stderr.isatty() and not console.is_quiet
        self._said = ""

    def show(self, event: AgentEvent) -> None:
        """Show one event."""
        match event:
            case TurnBegan():
                self._said = ""
                self._draw(f"turn {event.turn}")
            case TextPiece() | ReasoningPiece():
                self._said += event.text
                self._draw(_one_line(self._said[-2 * _MAX_TAIL_CHARS :])[-_MAX_TAIL_CHARS:])
            case CallBegan():
                self._tell(self._call_text(event.name, event.arguments))
            case CallEnded():
                sign = "!" if event.is_error else "="
                self._tell(f"  {sign} {_shortened(event.text, _MAX_RESULT_CHARS)} ({event.seconds:.2f} s)")
            case Warned():
                self._tell(f"  ! {_shortened(event.text, _MAX_RESULT_CHARS)}")

    def end(self) -> None:
        """Take the live line away."""
        self._draw("")

    def _call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        if console.is_verbose:
            return f"{name} {json.dumps(arguments, ensure_ascii=False)}"
        only = next(iter(arguments.values())) if len(arguments) == 1 else None
        given = only if isinstance(only, str) else json.dumps(arguments, ensure_ascii=False) if arguments else ""
        return f"{name} {_shortened(given, _MAX_CALL_CHARS)}".rstrip()

    def _tell(self, text: str) -> None:
        self._draw("")
        console.note(text)

    def _draw(self, text: str) -> None:
        if self._is_live:
            console.draw(text)


def closing_line(result: AgentResult) -> str:
    """Return one line on what a run took: turns, calls, tokens, and how its time was divided."""
    usage, summary = result.usage, result.trace.summary()
    known = f" ({usage.cached_tokens:,} known)" if usage.cached_tokens else ""
    shares = f"model {summary.share('model'):.0%}, tools {summary.share('tools'):.0%}".replace("%", " %")
    return (
        f"{_count(usage.turns, 'turn')}, {_count(usage.calls, 'call')}, prompt {usage.prompt_tokens:,} tokens{known}, "
        f"answer {usage.answer_tokens:,} tokens, {summary.wall_seconds:.1f} s: {shares}"
    )


def agent_facts(result: AgentResult, model: str) -> dict[str, Any]:
    """Return a run and what it took as JSON takes it."""
    usage, summary = result.usage, result.trace.summary()
    return {
        "model": model,
        "answer": result.answer,
        "data": result.data,
        "end": result.end,
        "error": None if result.error is None else str(result.error),
        "turns": usage.turns,
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "answer_tokens": usage.answer_tokens,
        "seconds": {"wall": summary.wall_seconds, **summary.groups},
        "tools": {
            name: {"calls": tool.num_calls, "errors": tool.num_errors, "seconds": tool.wall_seconds}
            for name, tool in summary.tools.items()
        },
        "peak_memory_bytes": peak_memory_bytes() or None,
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _shortened(text: str, most: int) -> str:
    line = text if console.is_verbose else _one_line(text)
    return line if console.is_verbose or len(line) <= most else f"{line[:most]}..."


def _one_line(text: str) -> str:
    return " ".join(text.split())

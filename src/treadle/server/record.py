"""What is known of one HTTP request: filled on its way through the server, read by the log and the metrics at its end.

Leaves to others: filling (``server.watch``, ``server.auth``, ``server.limits``) and writing it down (``server.logs``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.engine.completion import Timings
    from treadle.server.limits import Ticket

__all__ = ["CURRENT", "AnswerPhases", "RequestRecord", "current_key_id"]

# Tasks that a request starts see their request's record, too.
CURRENT: ContextVar[RequestRecord | None] = ContextVar("treadle_request", default=None)


@dataclass(frozen=True)
class AnswerPhases:
    """Where the time of one answer went, from ``began`` on the monotonic clock."""

    index: int
    began: float
    timings: Timings


@dataclass
class RequestRecord:
    """One request; seconds on a monotonic clock, tokens and seconds added up over its answers.

    ``status`` is what the client was told, or 499 if it left before the end. ``key_id`` is the id of its API key, empty
    without any, ``client`` the address it came from. ``queued``, ``prefill`` and ``decode`` are those of its slowest
    answer. ``began_at_ns`` is when it began in nanoseconds since 1970, ``trace_headers`` what says which trace it
    belongs to.
    """

    request_id: str
    method: str
    path: str
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    began_at_ns: int = field(default_factory=time.time_ns)
    route: str = "other"
    key_id: str = ""
    client: str = ""
    ticket: Ticket | None = None
    status: int = 0
    code: str | None = None
    model: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    first_token_seconds: float | None = None
    queued_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)
    answers: list[AnswerPhases] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Return how long the request has lasted."""
        return time.monotonic() - self.began


def current_key_id() -> str:
    """Return which API key the request that runs came with, empty without any."""
    record = CURRENT.get()
    return "" if record is None else record.key_id

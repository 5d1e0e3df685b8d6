"""Draws the phases of a model's answer as spans: queue, prefill, decode.

Leaves to others: measuring them (the engines).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from treadle.agents.trace.spans import Span, SpanKind

if TYPE_CHECKING:
    from treadle.engine.completion import Completion

__all__ = ["add_model_spans"]

_NS = 1_000_000_000


def add_model_spans(span: Span, completion: Completion, *, is_remote: bool = False, end_ns: int | None = None) -> None:
    """Add the phases of an answer to its "model" span, and what is known of its tokens.

    The phases are counted back from the answer's end; what is left of the span before them went into the prompt:
    template, tokens, form.

    Args:
        span: The span that is around the request, open or ended.
        completion: The answer.
        is_remote: Whether an engine elsewhere gave it (``engine.report`` is None). Its queue, its prompt and the
            network cannot be told apart: all is before the first token.
        end_ns: When the answer was complete, on the clock of ``time.perf_counter_ns``; by default now.
    """
    timings = completion.timings
    phases: tuple[tuple[SpanKind, str, float], ...] = (
        ("queue", "queue", timings.queued_seconds),
        ("prefill", "until the first token" if is_remote else "prefill", timings.prefill_seconds),
        ("decode", "decode", timings.decode_seconds),
    )
    now = time.perf_counter_ns() if end_ns is None else end_ns
    begin = now - round(sum(seconds for _, _, seconds in phases) * _NS)
    for kind, name, seconds in phases:
        end = begin + round(seconds * _NS)
        if seconds > 0 and end > span.start_ns:
            span.add(kind, name, max(begin, span.start_ns), end)
        begin = end
    span.attributes.update(
        prompt_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        answer_tokens=sum(each.answer_tokens for each in (completion, *completion.alternatives)),
        finish_reason=completion.finish_reason,
        is_remote=is_remote,
    )

"""Notes what becomes of the inputs of requests for vectors or scores: in the record, metrics and recent requests.

Leaves to others: answers (``AnswerWatch``) and the form of the reports (``server.logs``, ``server.metrics``).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from treadle.server.disconnect import ClientGoneError
from treadle.server.record import CURRENT

if TYPE_CHECKING:
    from treadle.engine.embedding import Embedding
    from treadle.server.hub import ServedModel
    from treadle.server.metrics import Metrics
    from treadle.server.recent import InputsKind

__all__ = ["EmbeddingWatch"]


class EmbeddingWatch:
    """Follows the inputs of one request; each counts like a prompt whose answer has no token.

    Args:
        model: What embeds them.
        num_inputs: How many inputs there are.
        metrics: Where to count.
        kind: What they are turned into.
    """

    def __init__(self, model: ServedModel, num_inputs: int, metrics: Metrics, kind: InputsKind = "embeddings") -> None:
        self._metrics = metrics.of_model(model.name)
        self._recent = model.recent.begin_embeddings(num_inputs, kind)
        self._num_open = num_inputs
        self._record = CURRENT.get()
        self._began = time.monotonic() if self._record is None else self._record.began
        if self._record is not None:
            self._record.model = model.name

    def took(self, embedding: Embedding) -> None:
        """Count a vector."""
        self._num_open -= 1
        self._recent.took(embedding)
        timings, num_tokens = embedding.timings, embedding.num_tokens
        self._metrics.prompt_tokens.inc(num_tokens)
        self._metrics.request_prompt_tokens.observe(num_tokens)
        self._metrics.end_to_end.observe(time.monotonic() - self._began)
        self._metrics.queue.observe(timings.queued_seconds)
        self._metrics.prefill.observe(timings.prefill_seconds)
        self._metrics.inference.observe(timings.prefill_seconds)
        self._note_end("stop", 1)
        record = self._record
        if record is None:
            return
        record.prompt_tokens += num_tokens
        record.cached_tokens += embedding.cached_tokens
        record.queued_seconds = max(record.queued_seconds, timings.queued_seconds)
        record.prefill_seconds = max(record.prefill_seconds, timings.prefill_seconds)
        if record.ticket is not None:
            record.ticket.start()
            record.ticket.spend(num_tokens)

    def ended(self, error: BaseException) -> None:
        """Count the inputs that are left as ended: because of ``error``, which may be that the client has gone."""
        if self._num_open:
            is_gone = isinstance(error, asyncio.CancelledError | ClientGoneError)
            self._recent.ended(is_error=not is_gone)
            self._note_end("abort" if is_gone else "error", self._num_open)
            self._num_open = 0

    def _note_end(self, reason: str, num_inputs: int) -> None:
        self._metrics.finished(reason).inc(num_inputs)
        if self._record is not None and reason not in self._record.finish_reasons:
            self._record.finish_reasons.append(reason)

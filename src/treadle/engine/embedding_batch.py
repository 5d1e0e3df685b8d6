"""Embeds a list of inputs, so many of them at a time, for a caller that waits in its own way.

Leaves to others: waiting for events (``LLM`` with a mailbox, ``AsyncLLM`` with an inbox) and the vectors
(``EmbeddingRequest``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.engine.answer_batch import max_pending
from treadle.engine.embedding import Embedding, EmbeddingOptions, EmbeddingRequest
from treadle.errors import CapacityError, TreadleError, UsageError

if TYPE_CHECKING:
    from treadle.engine.host import ModelHost
    from treadle.engine.prompt import EncodedPrompt
    from treadle.engine.request import TokenEvent
    from treadle.engine.service import Service

__all__ = ["EmbeddingBatch"]


class EmbeddingBatch:
    """The inputs of one call; a ``with`` block that is left early frees what the open ones hold.

    Args:
        host: The model.
        inputs: What to embed; all of them are checked before any is computed.
        options: What vectors are wanted.
        service: How the requests are to be served; the timeout is that of all together.
        deliver: Where their events go, for the caller to bring them to ``take``; called in the engine's thread.

    Raises:
        UsageError: An input is empty or too long for the context, an option is out of range, or the model was closed.
        CapacityError: An input could never fit in the KV blocks.
    """

    def __init__(
        self,
        host: ModelHost,
        inputs: Sequence[EncodedPrompt],
        options: EmbeddingOptions,
        service: Service,
        deliver: Callable[[TokenEvent], None],
    ) -> None:
        self._host = host
        self._inputs = inputs
        self._options = options
        self._service = service
        self._deliver = deliver
        self._deadline = None if service.timeout is None else time.perf_counter() + service.timeout
        self._max_open = max_pending(host)
        self._num_queued = 0
        self._open: dict[EmbeddingRequest, int] = {}
        self._found: dict[int, Embedding] = {}
        for index, prompt in enumerate(inputs):
            try:
                host.check_embedding(prompt, options)
            except (CapacityError, UsageError) as error:
                raise self._name(index, error) from None

    @property
    def results(self) -> list[Embedding]:
        """Return the embeddings there are, in the order of the inputs."""
        return [self._found[index] for index in sorted(self._found)]

    def advance(self) -> bool:
        """Queue as many of the inputs as may be open at a time; false if there is nothing left to wait for."""
        while self._num_queued < len(self._inputs) and len(self._open) < self._max_open:
            prompt = self._inputs[self._num_queued]
            request = self._host.submit_embedding(
                prompt, self._options, self._deliver, priority=self._service.priority, deadline=self._deadline
            )
            self._open[request] = self._num_queued
            self._num_queued += 1
        return bool(self._open)

    def take(self, events: Sequence[TokenEvent], on_embedding: Callable[[Embedding], None] | None = None) -> None:
        """Take events, each of which ends a request, and tell what came; raises the error of one that failed."""
        for event in events:
            request = event.request
            assert isinstance(request, EmbeddingRequest)
            index = self._open.pop(request)
            if event.error is not None:
                raise self._name(index, event.error)
            self._found[index] = request.result(self._options)
            if on_embedding is not None:
                on_embedding(self._found[index])

    def _name(self, index: int, error: TreadleError) -> TreadleError:
        """Say which of several inputs an error is about."""
        if self._options.ranks:
            told = error.about(f"documents[{index}]")
            if isinstance(told, UsageError):
                told.field = f"documents[{index}]"
            return told
        if len(self._inputs) == 1:
            return error
        return error.about(f"prompt {index} of the list")

    def __enter__(self) -> EmbeddingBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._open:
            request, _ = self._open.popitem()
            self._host.cancel(request)

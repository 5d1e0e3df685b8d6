"""Tells everybody who wants to know what becomes of the answers to a prompt.

Leaves to others: what they make of it (``server.recent``, ``server.watch``, ``server.spans``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.engine.contract import AnswerObserver, OpenTimings

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.errors import TreadleError

__all__ = ["ObserveModel", "Observers"]


# As ``contract.Observe``, but called with the name of the model first, by which the server offers it.
ObserveModel = Callable[[str, int | None, OpenTimings], AnswerObserver]


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[AnswerObserver]) -> None:
        self._observers = observers

    def took(self, chunk: CompletionChunk) -> None:
        """Pass a chunk on."""
        for observer in self._observers:
            observer.took(chunk)

    def ended(self, unfinished: Mapping[int, Timings], error: TreadleError | None, *, is_complete: bool) -> None:
        """Pass an early end on."""
        for observer in self._observers:
            observer.ended(unfinished, error, is_complete=is_complete)

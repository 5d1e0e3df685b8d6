"""Decides which tokens may come next in one answer: what its constraint allows, and no end before its shortest length.

Leaves to others: what a constraint means (whoever made it) and drawing among the allowed tokens (the native sampler).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from treadle.errors import InternalError, TreadleError, UsageError

if TYPE_CHECKING:
    from treadle.engine.request import Sampler

__all__ = ["Constraint", "Guide"]

Mask = NDArray[np.uint32]


class Constraint(Protocol):
    """What one answer may be, such as a grammar; asked token by token, between the steps of the engine.

    An error that it raises ends the answer, and only that one.
    """

    def accept(self, token_id: int) -> None:
        """Take in the next token of the answer."""

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens that must come next, none where there is a choice; each is given to ``accept`` then."""

    def allowed_tokens(self) -> Mask | None:
        """Return which tokens may come next: bit ``i % 32`` of word ``i // 32`` for token ``i``; None allows all."""


class Guide:
    """The rules of one answer, and the mask of its sampler that follows from them.

    Args:
        sampler: Where the mask goes.
        vocab_size: How many tokens a mask speaks of.
        constraint: What the answer may be. Where it allows nothing but an end, it prevails over ``min_tokens``.
        end_ids: The tokens that end an answer.
        min_tokens: How many tokens must come before one of them.
        takes_forced: Whether forced tokens are taken without being sampled; they have no log-probabilities then.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        vocab_size: int,
        constraint: Constraint | None = None,
        end_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        takes_forced: bool = True,
    ) -> None:
        self._sampler = sampler
        self._vocab_size = vocab_size
        self._constraint = constraint
        self._end_ids = np.array(sorted(end_ids), dtype=np.int64)
        self._min_tokens = min_tokens if end_ids else 0
        self._takes_forced = takes_forced
        self._num_tokens = 0
        self._is_masked = False

    def advance(self, token_ids: Sequence[int], most_forced: int) -> list[int]:
        """Take in the tokens that came; return those that must follow, at most ``most_forced``, already taken in.

        Raises:
            TreadleError: The constraint failed, or it allows nothing.
        """
        try:
            self._accept(token_ids)
            forced: list[int] = []
            if self._constraint is not None and self._takes_forced:
                forced = list(self._constraint.forced_tokens()[:most_forced])
                self._accept(forced)
            self._set_mask()
        except TreadleError:
            raise
        except Exception as error:
            raise InternalError(f"the constraint of an answer failed: {type(error).__name__}: {error}") from error
        return forced

    def _accept(self, token_ids: Sequence[int]) -> None:
        self._num_tokens += len(token_ids)
        if self._constraint is not None:
            for token_id in token_ids:
                self._constraint.accept(token_id)

    def _set_mask(self) -> None:
        mask = self._constraint.allowed_tokens() if self._constraint is not None else None
        if self._num_tokens < self._min_tokens:
            mask = self._without_ends(mask)
        if mask is not None and not mask.any():
            raise UsageError(f"the constraint of the answer allows no token after {self._num_tokens} tokens")
        if mask is not None or self._is_masked:
            self._sampler.set_mask(mask)
            self._is_masked = mask is not None

    def _without_ends(self, mask: Mask | None) -> Mask:
        rest = np.full((self._vocab_size + 31) // 32, 0xFFFFFFFF, dtype=np.uint32) if mask is None else mask.copy()
        bits = np.left_shift(np.uint32(1), (self._end_ids % 32).astype(np.uint32))
        np.bitwise_and.at(rest, self._end_ids // 32, ~bits)
        return rest if mask is None or rest.any() else mask

"""The tokens of one call of llama.cpp, in arrays that are made once.

Leaves to others: which tokens (``runner``) and the call itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.engine.llamacpp.library import Batch

__all__ = ["TokenBatch"]


class TokenBatch:
    """Room for ``max_tokens`` tokens of sequences below ``max_sequences``; ``structure`` is what llama.cpp reads."""

    def __init__(self, max_tokens: int, max_sequences: int) -> None:
        self._tokens = np.zeros(max_tokens, dtype=np.int32)
        self._positions = np.zeros(max_tokens, dtype=np.int32)
        self._has_output = np.zeros(max_tokens, dtype=np.int8)
        self._num_ids = np.ones(max_tokens, dtype=np.int32)
        self._ids = np.arange(max_sequences, dtype=np.int32)
        self._id_pointers = np.zeros(max_tokens, dtype=np.uintp)
        self.structure = Batch(
            token=self._tokens.ctypes.data,
            pos=self._positions.ctypes.data,
            n_seq_id=self._num_ids.ctypes.data,
            seq_id=self._id_pointers.ctypes.data,
            logits=self._has_output.ctypes.data,
        )

    @property
    def num_tokens(self) -> int:
        """Return how many tokens there are."""
        return int(self.structure.n_tokens)

    def clear(self) -> None:
        """Begin anew."""
        self.structure.n_tokens = 0

    def add(self, token_ids: Sequence[int], start: int, num_tokens: int, sequence: int) -> None:
        """Add ``token_ids[start : start + num_tokens]`` at their positions of a sequence, without output."""
        begin = self.num_tokens
        end = begin + num_tokens
        self._tokens[begin:end] = token_ids[start : start + num_tokens]
        self._positions[begin:end] = range(start, start + num_tokens)
        self._id_pointers[begin:end] = self._ids.ctypes.data + sequence * self._ids.itemsize
        self._has_output[begin:end] = 0
        self.structure.n_tokens = end

    def ask_for_last(self) -> None:
        """Ask for output of the token that was added last."""
        self._has_output[self.num_tokens - 1] = 1

    def ask_for_all(self) -> None:
        """Ask for output of every token."""
        self._has_output[: self.num_tokens] = 1

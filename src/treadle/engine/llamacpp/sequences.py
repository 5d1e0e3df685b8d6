"""Which sequence of llama.cpp holds the tokens of which request, and what ended ones are still good for.

Leaves to others: computing tokens (``runner``) and what the scheduler counts as room (``BlockPool``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from treadle.engine.plan import Chunk
    from treadle.engine.request import Request

__all__ = ["Memory", "Sequences"]


class Memory(Protocol):
    """The keys and values of all sequences, each token of one in a cell that several sequences may share."""

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Let ``target`` begin with the first tokens of ``source``, without copying any number."""

    def remove(self, sequence: int) -> None:
        """Forget all tokens of a sequence."""


@dataclass(eq=False)
class _Held:
    """A sequence that holds the first ``num_tokens`` of these tokens, and ``num_placed`` when the step is computed."""

    sequence: int
    token_ids: list[int]
    num_tokens: int = 0
    num_placed: int = 0

    def held_ids(self) -> NDArray[np.int32]:
        return np.array(self.token_ids[: self.num_tokens], dtype=np.int32)


class Sequences:
    """The sequences of requests that hold KV blocks, and of some that ended, the one that ended last at the end.

    A request that begins like any of them takes over what is alike. Those that ended make way, the oldest first, when
    the requests need their number or their cells, so requests always get what the scheduler counts on.

    Args:
        memory: Where the tokens are.
        num_requests: Most requests that hold blocks at once.
        num_ended: Most sequences kept beyond them, 0 where a sequence can only be continued.
        num_cells: Tokens there is room for.
        num_alike: Fewer tokens alike are computed again: that takes no time, and llama.cpp rounds the rest of a prompt
            as it did when it read all of it.
    """

    def __init__(
        self, memory: Memory, *, num_requests: int, num_ended: int, num_cells: int, num_alike: int = 256
    ) -> None:
        self._memory = memory
        self._num_ended = num_ended
        self._num_cells = num_cells
        self._num_alike = num_alike
        self._free = list(range(num_requests + num_ended))
        self._running: dict[Request, _Held] = {}
        self._ended: list[_Held] = []

    def end_some(self) -> None:
        """Take the sequences of requests that gave their blocks up; to be called before each step."""
        for request in [request for request in self._running if not request.tables]:
            held = self._running.pop(request)
            if request.uses_cache:
                self._end(held)
            else:
                self._ended.append(held)
                self._drop(held)

    def place(self, chunk: Chunk) -> tuple[int, int]:
        """Return the sequence of a request, and the first position of the chunk that is not in it yet."""
        held = self._running.get(chunk.request) or self._begin(chunk.request)
        held.num_placed = max(held.num_tokens, chunk.start + chunk.num_tokens)
        return held.sequence, max(held.num_tokens, chunk.start)

    def make_room(self) -> None:
        """Drop what ended until all that was placed has its cells; to be called before it is computed."""
        num_running = sum(held.num_placed for held in self._running.values())
        while self._ended and num_running + sum(held.num_tokens for held in self._ended) > self._num_cells:
            self._drop(self._ended[0])

    def computed(self) -> None:
        """Take note that all that was placed has been computed."""
        for held in self._running.values():
            held.num_tokens = held.num_placed

    def clear(self) -> None:
        """Forget everything, as after a step that failed."""
        self._ended += self._running.values()
        self._running.clear()
        while self._ended:
            self._drop(self._ended[0])

    def _begin(self, request: Request) -> _Held:
        held = self._running[request] = _Held(self._free.pop(), request.token_ids)
        source, num_alike = self._most_alike(request) if self._num_ended and request.uses_cache else (None, 0)
        if source is not None:
            self._memory.copy(source.sequence, held.sequence, num_alike)
            held.num_tokens = held.num_placed = num_alike
            if source in self._ended:
                self._ended.remove(source)
                self._ended.append(source)
            if request.times.first_token is None:
                request.num_cached_tokens = min(num_alike, len(request.prompt_ids))
        return held

    def _most_alike(self, request: Request) -> tuple[_Held | None, int]:
        """Return the sequence that begins most like ``request``, and for how many tokens, short of the last one."""
        wanted = np.array(request.token_ids[:-1], dtype=np.int32)
        found: tuple[_Held | None, int] = None, self._num_alike - 1
        for held in (*self._running.values(), *self._ended):
            num_alike = _num_alike(wanted, held.held_ids())
            if num_alike > found[1]:
                found = held, num_alike
        return found

    def _end(self, held: _Held) -> None:
        """Keep a sequence, but not beside one that begins with all of it, nor one that it begins with."""
        held.token_ids, own = held.token_ids[: held.num_tokens], held.held_ids()
        for other in list(self._ended):
            num_alike = _num_alike(own, other.held_ids())
            if num_alike == held.num_tokens:
                self._ended.append(held)
                self._drop(held)
                return
            if num_alike == other.num_tokens:
                self._drop(other)
        self._ended.append(held)
        if len(self._ended) > self._num_ended:
            self._drop(self._ended[0])

    def _drop(self, held: _Held) -> None:
        self._ended.remove(held)
        self._memory.remove(held.sequence)
        self._free.append(held.sequence)


def _num_alike(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return how many leading tokens are the same."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length

"""Notices that a model goes round in circles: the same calls with the same results, in one order or another.

Leaves to others: what to do about it (the loop), and the form in which calls are the same (``arguments.canonical``).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

__all__ = ["LoopDetector", "Verdict"]

Verdict = Literal["fine", "warn", "stop"]

_WARN_AFTER = 1
_STOP_AFTER = 3


class LoopDetector:
    """Counts turns that brought nothing new.

    A turn brings nothing new if each of its calls was made before, with the same result. One such turn is a reason to
    warn, three in a row are one to stop: a call that is made again and again is warned of the second time and stopped
    the fourth. A cycle of several calls counts from its second round on. A call whose result changes is always new, and
    so is one that is repeated between new ones, such as the tests that a model runs after each of its changes.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._num_stale = 0

    def observe(self, turn: Iterable[tuple[str, str]]) -> Verdict:
        """Take in the calls of a turn, each with its result, and say whether to go on."""
        keys = {_digest(call, result) for call, result in turn}
        is_stale = bool(keys) and keys <= self._seen
        self._seen |= keys
        self._num_stale = self._num_stale + 1 if is_stale else 0
        if self._num_stale >= _STOP_AFTER:
            return "stop"
        return "warn" if self._num_stale == _WARN_AFTER else "fine"


def _digest(call: str, result: str) -> bytes:
    text = f"{len(call)} {call}{result}"
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()

"""Learns from measured steps what a step costs, and from that how many prompt tokens fit beside running answers.

Leaves to others: measuring and what to do with the room (the scheduler).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median_low

__all__ = ["StepCosts"]

# Of so many steps that are alike the shorter ones count: what interrupts a step only ever makes it longer.
_NUM_KEPT = 9
_NUM_COMPARED = 3
# While prompts are read in every step, one in so many goes without, to see what the answers cost by themselves now.
_STEPS_BETWEEN_PROBES = 64
# What a step of some number of answers took says little after so many others: contexts grow.
_STEPS_TO_FORGET = 256


class StepCosts:
    """Step times of this model on this machine, in seconds; nothing is assumed about either.

    A step reads all weights whatever it computes, so the first prompt tokens beside some answers are nearly free and
    the price of one more only rises, towards that in a step full of them. Going on from the last step at that price
    therefore comes close to the time allowed from below. Before any step was full of them, a token costs what it did
    in the fullest step of answers, which is too much, so that the number is small but safe.
    """

    def __init__(self) -> None:
        self._num_steps = 0
        self._last_probe = 0
        self._decode: dict[int, tuple[int, deque[float]]] = {}  # by number of answers: step last measured, seconds
        self._alone: deque[float] = deque(maxlen=_NUM_KEPT)  # per prompt token, of steps without answers
        # Of the last steps with answers: how many prompt tokens, and how much longer the step took for them.
        self._beside: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=_NUM_COMPARED)

    @property
    def prompt_seconds(self) -> float:
        """Return about how long a prompt token takes; 0 before anything was measured."""
        num_tokens, seconds = self._usual_step()
        prices = self._alone or [_usual(measured) / count for count, (_, measured) in self._decode.items()]
        return max(min(prices, default=0.0), seconds / num_tokens if num_tokens else 0.0)

    def record(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that computed one token for each of ``num_decodes`` answers, and of prompts so many."""
        self._num_steps += 1
        if not num_prompt_tokens:
            self._last_probe = self._num_steps
            _, measured = self._decode.get(num_decodes, (0, deque(maxlen=_NUM_KEPT)))
            measured.append(seconds)
            self._decode[num_decodes] = (self._num_steps, measured)
        elif not num_decodes:
            self._alone.append(seconds / num_prompt_tokens)
        elif (decode_seconds := self._decode_seconds(num_decodes)) is not None:
            self._beside.append((num_prompt_tokens, max(0.0, seconds - decode_seconds)))

    def prompt_tokens(self, num_decodes: int, slowdown: float) -> int | None:
        """Return how many prompt tokens make a step of ``num_decodes`` answers ``slowdown`` times as long.

        At least 1, but 0 when the step should go without any, to be measured; ``None`` when that costs no time at all.
        """
        decode_seconds = self._decode_seconds(num_decodes)
        if decode_seconds is None or self._num_steps - self._last_probe >= _STEPS_BETWEEN_PROBES:
            return 0
        token_seconds = self.prompt_seconds
        if token_seconds == 0:
            return None
        num_tokens, seconds = self._usual_step()
        room_seconds = (slowdown - 1) * decode_seconds - seconds
        return max(1, num_tokens // 2, num_tokens + int(room_seconds / token_seconds))

    def _usual_step(self) -> tuple[int, float]:
        counts, seconds = zip(*self._beside, strict=True)
        return median_low(counts), median_low(seconds)

    def _decode_seconds(self, num_decodes: int) -> float | None:
        step, measured = self._decode.get(num_decodes, (0, ()))
        return _usual(measured) if measured and self._num_steps - step < _STEPS_TO_FORGET else None


def _usual(seconds: Collection[float]) -> float:
    """Return the lower quartile."""
    return sorted(seconds)[len(seconds) // 4]

"""What engines have in common that are fed whole requests and then advance them all, step after step.

The adapters beside it say how a request is added and what a step gave.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPARE_STEPS = 64  # a request must not end while the steps are timed, even if it started before the others


class RequestEngine:
    """Prompts that were computed before are found in the engine's prefix cache, which must be on."""

    def add(self, prompt: list[int], num_tokens: int) -> Any:
        """Adds a request for exactly so many greedy tokens and returns its key."""
        raise NotImplementedError

    def step(self) -> dict[Any, int]:
        """Advances all requests and returns how many tokens each of them got."""
        raise NotImplementedError

    def is_busy(self) -> bool:
        """Whether any request has not ended."""
        raise NotImplementedError

    def drop(self, key: Any) -> None:
        """Ends a request early."""
        raise NotImplementedError

    def prompt(self, tokens: list[int]) -> float:
        start = time.perf_counter()
        self.add(tokens, 1)
        while self.is_busy():
            self.step()
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        for tokens in prompts:
            self.prompt(tokens)
        keys = [self.add(tokens, num_steps + SPARE_STEPS) for tokens in prompts]
        waiting = set(keys)
        while waiting:
            waiting -= {key for key, count in self.step().items() if count}
        num_tokens = 0
        start = time.perf_counter()
        for _ in range(num_steps):
            num_tokens += sum(self.step().values())
        seconds = time.perf_counter() - start
        for key in keys:
            self.drop(key)
        while self.is_busy():
            self.step()
        # An engine may give more or fewer than a token per step and stream.
        return seconds * num_steps * len(prompts) / num_tokens

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        raise NotImplementedError("it returns tokens only")

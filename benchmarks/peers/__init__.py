"""One module per engine under comparison, each with a class `Engine` of the shape below, which worker.py runs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Peer(Protocol):
    """What the benchmarks ask of an engine. Times are seconds inside the engine, without start-up and tokenising."""

    def __init__(self, path: str, threads: int, max_tokens: int, streams: int) -> None:
        """Load the model with room for so many tokens in each of so many streams."""

    def facts(self) -> dict[str, Any]:
        """Version and settings, for the report."""

    def prompt(self, tokens: list[int]) -> float:
        """Compute a prompt from an empty cache up to the logits of its last token."""

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        """Read the prompts, then time so many greedy steps that advance every one of them by a token."""

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """The logits of every position of one sequence."""

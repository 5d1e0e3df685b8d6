"""One module per engine under comparison, each with a class `Engine` of the shape below, which worker.py runs."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Peer(Protocol):
    """What the benchmarks ask of an engine. Times are seconds inside the engine, without start-up and tokenising."""

    def __init__(self, path: str, threads: int) -> None:
        """Load the model."""

    def facts(self) -> dict[str, Any]:
        """Version, build and settings, for the report."""

    def prompt(self, tokens: list[int]) -> float:
        """Compute a prompt that no call had before, up to the token that follows it."""

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        """With the prompts, all of one length, in the cache: time so many greedy steps that advance each by a token.

        The prompts of one shape are the same at every call and may stay in the cache in between.
        """

    def embed(self, texts: list[list[int]]) -> float:
        """Turn texts into vectors, with a model made for it; new ones at every call."""

    def vectors(self, texts: list[list[int]]) -> list[list[float]]:
        """The same, with the vectors themselves, of length 1."""

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """The logits of every position of one sequence."""

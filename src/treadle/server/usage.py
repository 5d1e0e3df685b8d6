"""Counts the tokens of a request as the OpenAI APIs report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.completion import Completion

__all__ = ["Usage"]


@dataclass
class Usage:
    """Tokens of the prompt, of it from the cache, and of all answers.

    Several answers to one prompt share it, so it counts once; several prompts add up.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, completion: Completion, *, is_first: bool) -> None:
        """Count a finished answer; ``is_first`` says that it is the first to its prompt."""
        if is_first:
            self.prompt_tokens += completion.prompt_tokens
            self.cached_tokens += completion.cached_tokens
        self.completion_tokens += len(completion.token_ids)

    def as_json(self) -> dict[str, Any]:
        """Return the ``usage`` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

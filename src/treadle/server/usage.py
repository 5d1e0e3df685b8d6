"""Counts the tokens of a request as the OpenAI APIs report them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.contract import AnswerStream

__all__ = ["Usage"]


@dataclass
class Usage:
    """Tokens of the prompt, of it from the cache, of all answers, and of them those that brought reasoning.

    Several answers to one prompt share it, so it counts once; several prompts add up.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def read_prompt(self, stream: AnswerStream) -> None:
        """Take over what the answers to the only prompt know of it."""
        self.prompt_tokens, self.cached_tokens = stream.prompt_tokens or 0, stream.cached_tokens

    def as_json(self) -> dict[str, Any]:
        """Return the ``usage`` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

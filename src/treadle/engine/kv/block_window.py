"""Says which blocks of a request are of use to layers that look back no further than a window.

Leaves to others: the blocks themselves (``BlockPool``) and who holds them (``RequestLine``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["BlockWindow"]


@dataclass(frozen=True)
class BlockWindow:
    """What a window of tokens means in blocks, numbered by their place in the text.

    Args:
        window: Tokens that one sees, itself included.
        block_tokens: Tokens of a block.
        step_tokens: Most tokens of one request in a step.
    """

    window: int
    block_tokens: int
    step_tokens: int

    @property
    def num_before(self) -> int:
        """Return how many blocks before the end of one must be there to go on from that end."""
        return -(-(self.window - 1) // self.block_tokens)

    @property
    def most_held(self) -> int:
        """Return how many blocks a request needs at once, from the first in sight to the last that a step writes."""
        num_tokens = self.window - 1 + self.block_tokens + self.step_tokens
        return (num_tokens - 2) // self.block_tokens + 2

    def first_held(self, num_computed: int) -> int:
        """Return the first block to keep for a request of which so many tokens are computed.

        It is one block more than the next token sees: the last token of a prompt is computed again when the prompt
        comes back, which then goes on from the end of the block before.
        """
        return max(0, num_computed - self.block_tokens - self.window + 1) // self.block_tokens

    def num_usable(self, num_blocks: int, is_there: Callable[[int], bool]) -> int:
        """Return after how many of the first ``num_blocks`` blocks a request can go on: all in sight must be there."""
        end = num_blocks
        for place in reversed(range(num_blocks)):
            if end - place > self.num_before:
                break
            if not is_there(place):
                end = place
        return end

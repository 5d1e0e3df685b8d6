"""Prints an answer while it comes.

Leaves to others: making it (``LLM``) and what happens after it (the commands).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.cli.console import console
from treadle.errors import InternalError

if TYPE_CHECKING:
    from treadle.engine.completion import Completion, CompletionChunk

__all__ = ["print_answer"]


def print_answer(stream: Iterable[CompletionChunk], said: list[str] | None = None) -> Completion:
    """Print every chunk on stdout at once, end the line, and return the whole answer.

    Each text is also appended to ``said``, which so has what was printed when Ctrl-C cuts the answer short.
    """
    said = [] if said is None else said
    for chunk in stream:
        if chunk.text:
            console.out(chunk.text, end="")
            said.append(chunk.text)
        if chunk.completion is not None:
            if not said or not said[-1].endswith("\n"):
                console.out("")
            return chunk.completion
    raise InternalError("an answer ended without saying so")

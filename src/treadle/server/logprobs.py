"""Log-probabilities as the chat and completions APIs report them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.completion import TokenLogprob

__all__ = ["LOWEST", "chat_logprobs", "completion_logprobs"]

# JSON has no minus infinity; OpenAI's own stand-in for a token that could not come.
LOWEST = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat choice."""
    content = [{**_token(entry), "top_logprobs": [_token(each) for each in entry.top]} for entry in entries]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Return the ``logprobs`` object of a completions choice; ``offset`` is where its text begins, in characters."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.text)
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [{each.text: _finite(each.logprob) for each in entry.top} for entry in entries],
        "text_offset": offsets,
    }


def _token(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.text, "logprob": _finite(entry.logprob), "bytes": list(entry.token_bytes)}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

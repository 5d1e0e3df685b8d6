"""Log-probabilities as the chat and completions APIs report them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.completion import TokenLogprob
    from treadle.models.tokenizer import Tokenizer

__all__ = ["LOWEST", "chat_logprobs", "completion_logprobs"]

# JSON has no minus infinity; OpenAI's own stand-in for a token that could not come.
LOWEST = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat choice."""
    content = [
        {
            **_token(entry.token_id, entry.logprob, tokenizer),
            "top_logprobs": [_token(token_id, logprob, tokenizer) for token_id, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """Return the ``logprobs`` object of a completions choice; ``offset`` is where its text begins, in characters."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(tokenizer.token_text(entry.token_id))
    return {
        "tokens": [tokenizer.token_text(entry.token_id) for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [
            {tokenizer.token_text(token_id): _finite(logprob) for token_id, logprob in entry.top} for entry in entries
        ],
        "text_offset": offsets,
    }


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

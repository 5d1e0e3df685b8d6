"""Log-probabilities as the APIs of OpenAI report them.

Tokens that are no whole characters are shown by the escapes of their bytes, never by characters that stand for them.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.completion import TokenLogprob

__all__ = ["LOWEST", "CompletionLogprobs", "chat_logprobs", "token_logprobs"]

# JSON has no minus infinity; OpenAI's own stand-in for a token that could not come.
LOWEST = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the ``logprobs`` object of a chat choice."""
    return {"content": token_logprobs(entries), "refusal": None}


def token_logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return an object for each token, with the likeliest at its place."""
    return [{**_token(entry), "top_logprobs": [_token(each) for each in entry.top]} for entry in entries]


class CompletionLogprobs:
    """Writes the ``logprobs`` objects of a completions choice, whose pieces may come before the text they belong to."""

    def __init__(self) -> None:
        self._offset = 0  # in the text of the choice, in characters
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def write(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the object for the tokens that come next. The token taken is always among the likeliest."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.token_bytes))
        return {
            "tokens": [_name(entry) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [{_name(each): _finite(each.logprob) for each in (*entry.top, entry)} for entry in entries],
            "text_offset": offsets,
        }


def _name(entry: TokenLogprob) -> str:
    escapes = _escapes(entry)
    return entry.text if escapes is None else f"bytes:{escapes}"


def _token(entry: TokenLogprob) -> dict[str, Any]:
    shown = _escapes(entry) or entry.text
    return {"token": shown, "logprob": _finite(entry.logprob), "bytes": list(entry.token_bytes)}


def _escapes(entry: TokenLogprob) -> str | None:
    """Return the bytes of a token that is no text by itself."""
    try:
        entry.token_bytes.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in entry.token_bytes)
    return None


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)

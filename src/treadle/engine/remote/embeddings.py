"""Asks an OpenAI-compatible server for embeddings and reads what it gives.

Leaves to others: connections (``remote.http``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.engine.completion import Timings
from treadle.engine.embedding import Embedding
from treadle.engine.remote.request import text_prompt
from treadle.engine.remote.retry import with_retries
from treadle.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from treadle.engine.embedding import EmbeddingOptions
    from treadle.engine.prompt import Prompt
    from treadle.engine.remote.http import RemoteHttp

__all__ = ["embed_inputs"]

_MAX_INPUTS = 256  # in one request; servers limit it, OpenAI at 2048


async def embed_inputs(
    http: RemoteHttp,
    url: str,
    body: dict[str, Any],
    inputs: Sequence[Prompt],
    options: EmbeddingOptions,
    *,
    max_retries: int,
    on_embedding: Callable[[Embedding], None] | None,
) -> list[Embedding]:
    """Return the vectors of the inputs, some hundred of them with each request.

    A server tells the tokens of all inputs of a request together; each embedding gets an even share of them.

    Raises:
        UsageError: The server cannot do what is asked.
        RemoteError: It failed, or gave what are no embeddings of that many inputs.
    """
    if options.pooling is not None or not options.normalize:
        raise UsageError("embeddings of an engine elsewhere are pooled by it and have the length 1")
    body = {**body, "encoding_format": "float"}
    if options.dimensions is not None:
        body["dimensions"] = options.dimensions
    texts = [text_prompt(each) for each in inputs]
    found: list[Embedding] = []
    for first in range(0, len(texts), _MAX_INPUTS):
        wanted = texts[first : first + _MAX_INPUTS]
        request = {**body, "input": wanted}
        began = time.perf_counter()
        answer = await with_retries(max_retries, lambda request=request: http.post(url, request))  # type: ignore[misc]
        try:
            read = _read(answer, len(wanted), time.perf_counter() - began)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RemoteError(f"{url}: expected {len(wanted)} embeddings, found {str(answer)[:80]} ({error})") from None
        for each in read:
            if on_embedding is not None:
                on_embedding(each)
        found += read
    return found


def _read(answer: Any, num_inputs: int, seconds: float) -> list[Embedding]:
    vectors = {each["index"]: np.array(each["embedding"], dtype=np.float32) for each in answer["data"]}
    if sorted(vectors) != list(range(num_inputs)):
        raise ValueError("the numbers of the inputs do not fit")
    if len({vector.shape for vector in vectors.values()}) > 1 or vectors[0].ndim != 1:
        raise ValueError("the vectors differ in length")
    share, rest = divmod(int((answer.get("usage") or {}).get("prompt_tokens") or 0), num_inputs)
    return [
        Embedding(_unit(vectors[index]), share + (index < rest), 0, Timings(0.0, seconds, 0.0))
        for index in range(num_inputs)
    ]


def _unit(vector: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    norm = float(np.linalg.norm(vector))
    if not np.isfinite(norm):
        raise ValueError("a vector has numbers that are none")
    return vector / np.float32(norm) if norm > 0 else vector

"""Asks a server with Jina's API for a ranking, which vLLM, llama.cpp and Treadle have, and reads what it gives.

Leaves to others: connections (``remote.http``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.engine.completion import Timings
from treadle.engine.embedding import Embedding
from treadle.engine.ranking import RankedDocument
from treadle.engine.remote.retry import with_retries
from treadle.errors import RemoteError, UsageError

if TYPE_CHECKING:
    from treadle.engine.ranking import RankingOptions
    from treadle.engine.remote.http import RemoteHttp

__all__ = ["rank_documents"]


async def rank_documents(
    http: RemoteHttp,
    url: str,
    body: dict[str, Any],
    documents: Sequence[str],
    options: RankingOptions,
    *,
    max_retries: int,
    on_embedding: Callable[[Embedding], None] | None,
) -> list[RankedDocument]:
    """Return the documents with the server's scores, the best first; ``body`` holds all but documents.

    A server tells the tokens of all documents together; each gets an even share of them.

    Raises:
        UsageError: The server cannot do what is asked.
        RemoteError: It failed, or gave what is no ranking of these documents.
    """
    if not options.normalize:
        raise UsageError("scores of an engine elsewhere are as it gives them", field="normalize")
    if not documents:
        return []
    began = time.perf_counter()
    request = {**body, "documents": list(documents)}
    answer = await with_retries(max_retries, lambda: http.post(url, request))
    try:
        ranked = _read(answer, len(documents), time.perf_counter() - began)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RemoteError(f"{url}: expected {len(documents)} scores, found {str(answer)[:80]} ({error})") from None
    for each in ranked:
        if on_embedding is not None:
            on_embedding(Embedding(np.array([each.score], np.float32), each.num_tokens, 0, each.timings))
    return ranked[: options.top_n]


def _read(answer: Any, num_documents: int, seconds: float) -> list[RankedDocument]:
    scores = {each["index"]: float(each["relevance_score"]) for each in answer["results"]}
    if sorted(scores) != list(range(num_documents)):
        raise ValueError("the numbers of the documents do not fit")
    if not all(map(math.isfinite, scores.values())):
        raise ValueError("a score is no number")
    usage = answer.get("usage") or {}
    share, rest = divmod(int(usage.get("total_tokens") or usage.get("prompt_tokens") or 0), num_documents)
    timings = Timings(0.0, seconds, 0.0)
    ranked = [RankedDocument(i, scores[i], share + (i < rest), 0, timings) for i in range(num_documents)]
    return sorted(ranked, key=lambda each: -each.score)

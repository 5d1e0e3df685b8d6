"""Ranking: which models do it, what is asked of them, and scores of documents.

Leaves to others: computing, which goes as for vectors (``embedding``), and how pairs are written (``pair_format``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.engine.completion import Timings
from treadle.engine.embedding import Embedding, EmbeddingOptions, Pooling, default_pooling
from treadle.errors import UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile

__all__ = ["SCORES", "RankedDocument", "RankingOptions", "check_scores", "pooling_of", "rank", "ranking_refused"]

SCORES = EmbeddingOptions(normalize=False, ranks=True)  # what is asked of the model for a ranking
_MEANS = frozenset({"modern-bert"})  # of encoders; the others look at the first token


@dataclass(frozen=True)
class RankedDocument:
    """One of the documents of a ranking: which, how well it answers the query, and what it took.

    ``num_tokens`` are those of the document and the query together, ``cached_tokens`` of them were known already.
    """

    index: int
    score: float
    num_tokens: int
    cached_tokens: int
    timings: Timings


@dataclass(frozen=True)
class RankingOptions:
    """What is wanted of a ranking; see ``LLM.rerank``.

    Raises:
        UsageError: A value is not one of those allowed.
    """

    top_n: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        is_count = isinstance(self.top_n, int) and not isinstance(self.top_n, bool) and self.top_n >= 1
        if self.top_n is not None and not is_count:
            raise UsageError(f"top_n: expected 1 or more, found {self.top_n!r:.80}", field="top_n")
        if not isinstance(self.normalize, bool):
            raise UsageError(f"normalize: expected True or False, found {self.normalize!r:.80}", field="normalize")


def check_scores(file: ModelFile) -> None:
    """Raise UnsupportedModelError for a model that tells more classes of texts apart than ranking has use for."""
    shape = next((tensor.shape for tensor in file.tensors if tensor.name == "cls.output.weight"), None)
    if shape is None:
        return
    expected, found = 1 if file.is_encoder else 2, shape[1] if len(shape) > 1 else 1
    if found != expected:
        raise UnsupportedModelError(
            f"{file.path}: tensor 'cls.output.weight' has {found} rows, expected {expected}: a model that tells "
            "classes of texts apart does not rank"
        )


def pooling_of(file: ModelFile) -> Pooling:
    """Return which states a vector of the model is made of, or the score of one that ranks."""
    if not file.ranks:
        return default_pooling(file.metadata, file.architecture, is_encoder=file.is_encoder)
    if not file.is_encoder:
        return "last"
    return "mean" if file.architecture in _MEANS else "cls"


def ranking_refused(name: str) -> UsageError:
    """Return what is said to those who want documents ranked by a model that does something else."""
    return UsageError(
        f"{name} does not rank documents: its file has no head that scores a text",
        hint="ranking needs a reranker, such as bge-reranker-v2-m3 or Qwen3-Reranker",
        field="model",
    )


def rank(found: Sequence[Embedding], options: RankingOptions) -> list[RankedDocument]:
    """Return the documents whose scores were found, in their order, the best first."""
    ranked = [
        RankedDocument(
            index=index,
            score=_score(each, options),
            num_tokens=each.num_tokens,
            cached_tokens=each.cached_tokens,
            timings=each.timings,
        )
        for index, each in enumerate(found)
    ]
    return sorted(ranked, key=lambda each: -each.score)[: options.top_n]


def _score(found: Embedding, options: RankingOptions) -> float:
    """Return one number for what the head gave: a logit, or those of "yes" and of "no"."""
    outputs = found.vector.tolist()
    logit: float = outputs[0] - outputs[1] if len(outputs) > 1 else outputs[0]
    if not options.normalize:
        return logit
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))

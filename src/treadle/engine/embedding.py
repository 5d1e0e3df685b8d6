"""Embeddings: what is asked, the request that reads an input for its vector, and the vector itself.

Leaves to others: computing states (the runner), and taking many inputs together (``EmbeddingBatch``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from treadle.engine.answer import timings_of
from treadle.engine.completion import Timings
from treadle.engine.plan import Chunk, Sample
from treadle.engine.request import Request, TokenEvent
from treadle.errors import ModelFileError, UsageError

if TYPE_CHECKING:
    from treadle.engine.load import LoadReport
    from treadle.models.gguf import ModelFile

__all__ = [
    "RANKING",
    "Embedding",
    "EmbeddingOptions",
    "EmbeddingRequest",
    "Pooling",
    "answers_refused",
    "check_answers",
    "default_pooling",
]

Pooling = Literal["mean", "cls", "last"]

# The key `<architecture>.pooling_type` of GGUF: 0 none, 1 mean, 2 the first token, 3 the last token, 4 a ranking head.
_GGUF_FIRST, _GGUF_LAST, RANKING = 2, 3, 4


def default_pooling(metadata: Mapping[str, Any], architecture: str, *, is_encoder: bool = False) -> Pooling:
    """Return how a model file wants its states pooled: "last" or, of an encoder, "cls" where it says so, else "mean".

    Files of models that were trained to embed say it. Of others the mean serves best: the last state of a model that
    only learnt to continue text is about the next token rather than about the text.
    """
    wanted = metadata.get(f"{architecture}.pooling_type")
    if is_encoder and wanted == _GGUF_FIRST:
        return "cls"
    return "last" if wanted == _GGUF_LAST else "mean"


def answers_refused(name: str, *, ranks: bool = False) -> UsageError:
    """Return what is said to those who want an answer of a model that can only embed, or only rank."""
    if ranks:
        return UsageError(
            f"{name} ranks documents and gives no answers",
            hint="use `LLM.rerank`, or `treadle serve` and its route /v1/rerank; answers need another model",
        )
    return UsageError(
        f"{name} turns texts into vectors and gives no answers",
        hint="use `LLM.embed`, or `treadle serve` and its route /v1/embeddings; answers need another model",
    )


def check_answers(file: ModelFile, purpose: str) -> None:
    """Raise UsageError for a model that only embeds or ranks, of which nothing is to be had for that purpose."""
    if file.ranks:
        raise UsageError(f"{file.name} ranks documents; {purpose} is for models that answer")
    if file.is_encoder:
        raise UsageError(
            f"{file.name} turns texts into vectors; {purpose} is for models that answer",
            hint="`treadle plan` predicts how fast it reads texts",
        )


@dataclass(frozen=True)
class EmbeddingOptions:
    """What vectors are wanted; see ``LLM.embed``.

    Raises:
        UsageError: A value is not one of those allowed.
    """

    pooling: Pooling | None = None
    normalize: bool = True
    dimensions: int | None = None
    ranks: bool = False
    """What comes out of the head of a model that ranks is wanted, in the stead of a vector."""

    def __post_init__(self) -> None:
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise UsageError(f"pooling: expected mean, cls or last, found {self.pooling!r:.80}", field="pooling")
        if not isinstance(self.normalize, bool):
            raise UsageError(f"normalize: expected True or False, found {self.normalize!r:.80}")

    def check(self, hidden_size: int, report: LoadReport) -> None:
        """Refuse what a model does not give: more dimensions than its states have, or a first state that saw nothing.

        Raises:
            UsageError: Something is refused.
        """
        if report.ranks and not self.ranks:
            raise UsageError(
                f"{report.name} ranks documents and gives no vectors",
                hint="use `LLM.rerank`, or the route /v1/rerank; vectors need another model",
                field="model",
            )
        if self.pooling == "cls" and not report.embeds_only:
            problem = "pooling: 'cls' is for models that read in both directions, and this one does not"
            raise UsageError(problem, field="pooling")
        found = self.dimensions
        if found is None:
            return
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= hidden_size:
            problem = f"dimensions: expected 1 to {hidden_size}, the size of this model, found {found!r:.80}"
            raise UsageError(problem, field="dimensions")


@dataclass(frozen=True)
class Embedding:
    """The vector of one input, float32 of [dimensions], and what it took.

    ``cached_tokens`` of its ``num_tokens`` were known from earlier prompts and not computed again.
    """

    vector: NDArray[np.float32]
    num_tokens: int
    cached_tokens: int
    timings: Timings


@dataclass(eq=False, slots=True, kw_only=True)
class EmbeddingRequest(Request):
    """An input whose states, or the last of them, are to be added to ``state_sum``, float64 of [state_size].

    A state is added once, in the order of the tokens, also if the request has to give its blocks back and computes its
    beginning again: those before position ``next_state`` are in the sum, or not wanted.
    """

    state_sum: NDArray[np.float64]
    pooling: Pooling
    has_head: bool = False
    """The model has pooled the states already, and what there is comes out of its head."""
    next_state: int = field(init=False)

    def __post_init__(self) -> None:
        Request.__post_init__(self)  # `super()` does not know classes with slots that dataclasses made
        self.next_state = len(self.token_ids) - 1 if self.pooling == "last" else 0
        # The mean needs every state, so every token has to be computed. Nor are its blocks kept: texts to embed seldom
        # begin alike, and thousands of them would push the prompts of answers out of the cache.
        self.uses_cache = self.pooling == "last"

    @property
    def is_decoding(self) -> bool:
        """Tell that nothing is to follow its tokens."""
        return False

    def chunk(self, num_tokens: int) -> Chunk:
        """Return the next tokens to compute."""
        end = self.num_computed + num_tokens
        num_states = max(0, end - max(self.next_state, self.num_computed))
        return Chunk(self, self.num_computed, num_tokens, False, 1 if self.pooling == "cls" else num_states)

    def accept(self, sample: Sample | None) -> TokenEvent | None:
        """Take note of the states that were added; the last one ends the request."""
        assert sample is None
        self.next_state = max(self.next_state, self.num_computed)
        if self.num_wanted:
            return None
        if not np.isfinite(self.state_sum).all():
            return self.fail(
                ModelFileError(
                    "the model gave NaN or infinite numbers for a text to embed",
                    hint="the file is probably damaged: remove it with `treadle rm` and pull it again",
                )
            )
        self.finish_reason = "stop"
        return self.end()

    def result(self, options: EmbeddingOptions) -> Embedding:
        """Return the vector once the request has ended well: pooled, then cut to its dimensions, then normalised."""
        num_states = len(self.token_ids) if self.pooling == "mean" and not self.has_head else 1
        vector = self.state_sum[: options.dimensions] / num_states
        if options.normalize:
            length = float(np.sqrt(np.sum(vector * vector)))
            vector /= length or 1.0
        return Embedding(
            vector=vector.astype(np.float32),
            num_tokens=len(self.token_ids),
            cached_tokens=self.num_cached_tokens,
            timings=timings_of(self),
        )

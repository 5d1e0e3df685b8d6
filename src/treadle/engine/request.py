"""One request: the tokens it wants computed, the blocks it holds, what it has said and how it ended.

Leaves to others: when it runs (the scheduler), what its tokens mean (the tokenizer behind ``TextOutput``) and requests
that want no answer (``engine.embedding``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from treadle.engine.plan import Chunk, Sample
from treadle.errors import ModelFileError, TreadleError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from treadle.engine.adapters import Adapter
    from treadle.engine.kv.block_table import BlockTable
    from treadle.engine.output import TextOutput
    from treadle.engine.structured.guide import Guide

__all__ = ["AnswerRequest", "FinishReason", "Priority", "Request", "Sampler", "Times", "TokenEvent"]

FinishReason = Literal["stop", "length", "error"]
Priority = Literal["interactive", "batch"]


class Sampler(Protocol):
    """The sampling state of one request; the native runtime draws from it."""

    def accept(self, token: int, /) -> None:
        """Count one token of the answer."""

    def set_mask(self, mask: NDArray[np.uint32] | None, /) -> None:
        """Draw only tokens whose bit is set, until the next call; None allows all."""


class TokenEvent(NamedTuple):
    """One step forward of a request; the last one has a ``finish_reason``.

    ``text`` may be empty while a character or a stop string is incomplete, and hold more than one token's text later.
    ``samples`` are the tokens that came, more than one where the guide left no choice.
    """

    request: Request
    text: str
    samples: Sequence[Sample] = ()
    finish_reason: FinishReason | None = None
    error: TreadleError | None = None

    @property
    def is_first(self) -> bool:
        """Tell whether the answer begins with this event; to be asked before the next one is there."""
        return len(self.request.token_ids) - len(self.request.prompt_ids) == len(self.samples)


@dataclass
class Times:
    """When a request reached each stage of its life, in seconds of one monotonic clock."""

    created: float = 0.0
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Request(ABC):
    """A prompt and what the scheduler has to know about it.

    The scheduler closes the gap between ``num_computed`` and ``len(token_ids)``; there is no other notion of a phase.
    ``deliver`` is called with every event, in the thread that steps the engine. ``deadline`` is in seconds of the
    scheduler's clock. Without ``uses_cache`` everything is computed, and nobody else finds it. The ``adapter`` that
    computes it beside the model is held until the request leaves the scheduler.

    Of the prompt, ``num_cached_tokens`` were found instead of computed. ``block_keys`` name the full blocks of all
    known tokens, ``num_sealed`` of which are in the prefix cache. A running request has one of ``tables`` for each pool
    of KV blocks, others have none. What was stored is not loaded again once that has failed: ``uses_store``.
    """

    request_id: int
    prompt_ids: Sequence[int]
    deliver: Callable[[TokenEvent], None]
    priority: Priority = "interactive"
    deadline: float | None = None
    uses_cache: bool = True
    adapter: Adapter | None = None
    times: Times = field(default_factory=Times)
    finish_reason: FinishReason | None = None

    token_ids: list[int] = field(init=False)
    num_computed: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)
    tables: list[BlockTable] = field(init=False, default_factory=list)
    block_keys: list[bytes] = field(init=False, default_factory=list)
    num_sealed: int = field(init=False, default=0)
    load: object = field(init=False, default=None)
    uses_store: bool = field(init=False, default=True)
    awaited_key: bytes | None = field(init=False, default=None)
    turn: tuple[float, int] = field(init=False, default=(0.0, 0))

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def num_wanted(self) -> int:
        """Return how many known tokens are not computed yet."""
        return len(self.token_ids) - self.num_computed

    @property
    def cache_identity(self) -> bytes:
        """Return what beside model and tokens decides what its KV blocks hold."""
        return b"" if self.adapter is None else self.adapter.identity

    @property
    @abstractmethod
    def is_decoding(self) -> bool:
        """Tell whether all it wants is the newest token of an answer, and one to follow."""

    @abstractmethod
    def chunk(self, num_tokens: int) -> Chunk:
        """Return the next tokens to compute."""

    @abstractmethod
    def accept(self, sample: Sample | None) -> TokenEvent | None:
        """Take what came of its chunk, a sample if that asked for one, and say what it changes, if anything."""

    def take_tables(self) -> list[BlockTable]:
        """Return all tables and leave the request without, as if it had never run."""
        tables, self.tables = self.tables, []
        self.num_computed = self.num_sealed = 0
        return tables

    def count_cached(self, num_tokens: int) -> int:
        """Take note of tokens that were found; return how many are the prompt's and not forced upon the answer."""
        num_tokens = min(num_tokens, len(self.prompt_ids) - self.num_cached_tokens)
        self.num_cached_tokens += num_tokens
        return num_tokens

    def fail(self, error: TreadleError) -> TokenEvent:
        """End the request with an error and say so."""
        self.finish_reason = "error"
        return self._event(error)

    def end(self) -> TokenEvent:
        """Say how the request has ended."""
        return self._event()

    def _event(self, error: TreadleError | None = None) -> TokenEvent:
        return TokenEvent(self, "", (), self.finish_reason, error)


@dataclass(eq=False, slots=True, kw_only=True)
class AnswerRequest(Request):
    """A prompt on its way to an answer.

    ``max_length`` bounds prompt and answer together; ``end_ids`` are the tokens that end an answer. ``news`` and their
    ``text`` wait for the next event.
    """

    max_length: int
    end_ids: frozenset[int]
    sampler: Sampler
    output: TextOutput
    guide: Guide | None = None
    text: str = field(init=False, default="")
    news: list[Sample] = field(init=False, default_factory=list)

    @property
    def answer_ids(self) -> list[int]:
        """Return the tokens sampled so far, one that ended the answer included."""
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def is_decoding(self) -> bool:
        """Tell whether all it wants is its newest token, and one to follow."""
        return len(self.token_ids) - self.num_computed == 1

    def chunk(self, num_tokens: int) -> Chunk:
        """Return the next tokens to compute; the last known one is to be followed by a new one."""
        return Chunk(self, self.num_computed, num_tokens, num_tokens == self.num_wanted)

    def begin(self) -> None:
        """Take the tokens that the guide forces before anything is sampled; to be called before the request runs.

        A stop text or an end token among them ends the answer, and nothing is left to run: see ``finish_reason``.

        Raises:
            TreadleError: The guide failed or allows nothing.
        """
        if self.guide is not None:
            self._take_forced(self.guide.advance([], self.max_length - len(self.token_ids) - 1))

    def accept(self, sample: Sample | None) -> TokenEvent | None:
        """Take a sampled token as the next one and say what it changes."""
        if sample is None:
            return None
        if sample.bad_logits:
            position = len(self.token_ids)
            return self.fail(
                ModelFileError(
                    f"the model gave NaN or infinite logits for the token at position {position}",
                    hint="the file is probably damaged: remove it with `treadle rm` and pull it again",
                )
            )
        self._take(sample)
        if self.guide is not None and self.finish_reason is None:
            try:
                forced = self.guide.advance([sample.token_id], self.max_length - len(self.token_ids))
            except TreadleError as error:
                return self.fail(error)
            self._take_forced(forced)
        return self._event()

    def _take_forced(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self.finish_reason is None:
                self._take(Sample(token_id))

    def _take(self, sample: Sample) -> None:
        self.token_ids.append(sample.token_id)
        self.sampler.accept(sample.token_id)
        self.news.append(sample)
        if sample.token_id in self.end_ids:
            self.finish_reason = "stop"
            return
        self.text += self.output.push(sample.token_id)
        if self.output.stop is not None:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_length:
            self.finish_reason = "length"

    def _event(self, error: TreadleError | None = None) -> TokenEvent:
        text, samples = self.text, self.news
        self.text, self.news = "", []
        if self.finish_reason is not None:
            text += self.output.finish()
        if self.output.stop is not None and error is None:
            self.finish_reason = "stop"
        return TokenEvent(self, text, samples, self.finish_reason, error)

"""Stand-ins for the native parts of the engine, so that its Python can be tested without a model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patience import PATIENCE_SECONDS
from treadle.engine.embedding import EmbeddingRequest, Pooling
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.output import TextOutput
from treadle.engine.plan import Sample, StepPlan, StepResult
from treadle.engine.request import AnswerRequest, Priority, Request, TokenEvent
from treadle.engine.sampling import SamplingParams

VOCAB_SIZE = 1000
END_ID = 999


class FakeStream:
    """Decodes token 7 as "<7>", so that every text shows its tokens."""

    def __init__(self, spell: Callable[[int], str] = lambda token_id: f"<{token_id}>", tail: str = "") -> None:
        self._spell = spell
        self._tail = tail

    def push(self, token_id: int) -> str:
        return self._spell(token_id)

    def finish(self) -> str:
        return self._tail


@dataclass
class FakeSampler:
    accepted: list[int] = field(default_factory=list)

    masks: list[list[int] | None] = field(default_factory=list)

    def accept(self, token: int, /) -> None:
        self.accepted.append(token)

    def set_mask(self, mask: NDArray[np.uint32] | None, /) -> None:
        bits = None if mask is None else np.unpackbits(mask.view(np.uint8), bitorder="little")
        self.masks.append(None if bits is None else np.flatnonzero(bits).tolist())


def next_token(token_ids: Sequence[int]) -> int:
    """A token that depends on every token before it, never the end token."""
    value = 17
    for token_id in token_ids:
        value = (value * 31 + token_id + 7) % 1_000_003
    return value % END_ID


def answer(prompt_ids: Sequence[int], length: int) -> list[int]:
    """The `length` tokens that a right engine gives after `prompt_ids`."""
    token_ids = list(prompt_ids)
    for _ in range(length):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt_ids) :]


def state(token_ids: Sequence[int]) -> NDArray[np.float64]:
    """The state of the last of these tokens: one number for it, one for all of them, one for their count."""
    return np.array([token_ids[-1], next_token(token_ids), len(token_ids)], dtype=np.float64)


def mean_state(token_ids: Sequence[int]) -> NDArray[np.float64]:
    """The mean of the states of all tokens."""
    return np.mean([state(token_ids[: end + 1]) for end in range(len(token_ids))], axis=0)


class FakeRunner:
    """Computes with "KV blocks" that hold token ids, and samples from what the blocks hold.

    States are made of what the blocks hold, too. A block given to two requests, lost, or read before it was written therefore changes the answer or trips an assert.
    Blocks of a pool with a window must hold what each token sees.
    """

    hidden_size = 3

    def __init__(self, *pools: BlockPool, sample: Callable[[Sequence[int]], int] = next_token) -> None:
        self._pools = pools
        self._block_tokens = pools[0].block_tokens
        self._slots: list[list[int | None]] = [[None] * (pool.num_blocks * pool.block_tokens) for pool in pools]
        self._sample = sample
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        samples = []
        for chunk in plan.chunks:
            end = chunk.start + chunk.num_tokens
            for index, slots in enumerate(self._slots):
                for position in range(chunk.start, end):
                    slots[self._slot(chunk.request, position, index)] = chunk.request.token_ids[position]
                window = self._pools[index].window
                if window is not None:
                    self._check_sight(chunk.request, max(0, chunk.start + 1 - window.window), end, index)
            if chunk.samples:
                samples.append(Sample(self._sample(self._seen(chunk.request, end))))
            for position in range(end - chunk.num_states, end):
                assert isinstance(chunk.request, EmbeddingRequest)
                chunk.request.state_sum += state(self._seen(chunk.request, position + 1))
        return StepResult(samples)

    def _seen(self, request: Request, end: int) -> list[int]:
        if self._pools[0].window is not None:
            return request.token_ids[:end]
        seen = [self._slots[0][self._slot(request, position)] for position in range(end)]
        assert None not in seen
        return [token_id for token_id in seen if token_id is not None]

    def _check_sight(self, request: Request, start: int, end: int, index: int) -> None:
        held = [self._slots[index][self._slot(request, position, index)] for position in range(start, end)]
        assert held == request.token_ids[start:end]

    def read(self, block_id: int, index: int = 0) -> list[int | None]:
        """What a block of a pool holds."""
        return self._slots[index][block_id * self._block_tokens : (block_id + 1) * self._block_tokens]

    def write(self, block_id: int, contents: list[int | None], index: int = 0) -> None:
        """Replace what a block of a pool holds."""
        self._slots[index][block_id * self._block_tokens : (block_id + 1) * self._block_tokens] = contents

    def _slot(self, request: Request, position: int, index: int = 0) -> int:
        block_id = request.tables[index].block_ids[position // self._block_tokens]
        assert block_id >= 0
        return block_id * self._block_tokens + position % self._block_tokens


class FakeStore:
    """Keeps what the blocks of a pool hold for good; a load ends when the test says how many came, or at once."""

    def __init__(self, *, ends_at_once: bool = True, pool_index: int = 0) -> None:
        self.pool_index = pool_index
        self.runner: FakeRunner | None = None
        self.held: dict[bytes, list[int | None]] = {}
        self.saves: list[list[int]] = []
        self.loads: list[tuple[Sequence[bytes], Sequence[int], Future[int]]] = []
        self._ends_at_once = ends_at_once

    def __contains__(self, key: bytes) -> bool:
        return key in self.held

    def save(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        assert self.runner is not None
        self.saves.append(list(block_ids))
        for key, block_id in zip(keys, block_ids, strict=True):
            self.held[key] = self.runner.read(block_id, self.pool_index)

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> Future[int]:
        future: Future[int] = Future()
        self.loads.append((keys, block_ids, future))
        if self._ends_at_once:
            self.end_load(len(keys))
        return future

    def end_load(self, num_blocks: int, index: int = -1) -> None:
        assert self.runner is not None
        keys, block_ids, future = self.loads[index]
        for key, block_id in list(zip(keys, block_ids, strict=True))[:num_blocks]:
            self.runner.write(block_id, self.held[key], self.pool_index)
        future.set_result(num_blocks)


def make_request(
    request_id: int,
    prompt_ids: Sequence[int],
    max_tokens: int,
    *,
    stop: Sequence[str] = (),
    events: list[TokenEvent] | None = None,
    priority: Priority = "interactive",
    deadline: float | None = None,
) -> AnswerRequest:
    return AnswerRequest(
        request_id=request_id,
        prompt_ids=list(prompt_ids),
        max_length=len(prompt_ids) + max_tokens,
        end_ids=frozenset({END_ID}),
        sampler=FakeSampler(),
        output=TextOutput(FakeStream(), stop),
        deliver=(events if events is not None else []).append,
        priority=priority,
        deadline=deadline,
    )


def make_embedding_request(
    request_id: int,
    prompt_ids: Sequence[int],
    pooling: Pooling = "mean",
    *,
    events: list[TokenEvent] | None = None,
    priority: Priority = "interactive",
    deadline: float | None = None,
) -> EmbeddingRequest:
    return EmbeddingRequest(
        request_id=request_id,
        prompt_ids=list(prompt_ids),
        deliver=(events if events is not None else []).append,
        priority=priority,
        deadline=deadline,
        state_sum=np.zeros(FakeRunner.hidden_size),
        pooling=pooling,
    )


class FakeTokenizer:
    """One token per character, whose id is its code point; decodes token 7 as "<7>"."""

    vocab_size = VOCAB_SIZE
    eog_ids = frozenset({END_ID})

    def encode(self, text: str, *, max_tokens: int | None = None) -> list[int]:  # noqa: ARG002
        return [ord(char) for char in text]

    def encode_prompt(self, rendered: str, *, max_tokens: int | None = None) -> list[int]:  # noqa: ARG002
        return self.encode(rendered)

    def stream(self, *, continuation: bool, shown_ids: Collection[int] = ()) -> FakeStream:  # noqa: ARG002
        return FakeStream()

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"<{token_id}>" for token_id in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return f"<{token_id}>".encode()


class FakeTemplate:
    """Renders a conversation as "role:content;" turns, and a variable `note` after them."""

    def render(self, messages: Sequence[dict[str, str]], *, tools: object = None, note: str = "") -> str:  # noqa: ARG002
        return "".join(f"{message['role']}:{message['content']};" for message in messages) + note


class FakeAdapter:
    """What a runner makes of a file: 100 bytes."""

    num_bytes = 100


class FakeModelRunner(FakeRunner):
    """A runner that also makes samplers, and can be held back between two steps."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool)
        self.may_step = threading.Semaphore(0)
        self.is_held = False
        self.samplers: list[tuple[SamplingParams, int]] = []
        self.adapters: weakref.WeakSet[FakeAdapter] = weakref.WeakSet()

    def load_adapter(self, path: Path, scale: float) -> FakeAdapter:
        assert path.is_file()
        assert scale == float(scale)
        adapter = FakeAdapter()
        self.adapters.add(adapter)
        return adapter

    def create_sampler(self, params: SamplingParams, seed: int, prompt_ids: Sequence[int]) -> FakeSampler:  # noqa: ARG002
        self.samplers.append((params, seed))
        return FakeSampler()

    def run(self, plan: StepPlan) -> StepResult:
        if self.is_held:
            assert self.may_step.acquire(timeout=PATIENCE_SECONDS)
        return super().run(plan)

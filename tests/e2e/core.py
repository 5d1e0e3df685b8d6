"""Drives the native core step by step, one or several sequences at a time, for the tests of this folder.

Scheduling is the engine's job; here a test says exactly which tokens go into which step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from treadle import _native

Logits = NDArray[np.float32]
States = NDArray[np.float64]


@dataclass
class Sequence:
    blocks: list[int]
    tokens: list[int] = field(default_factory=list)  # already in the KV cache
    adapter: _native.Adapter | None = None


class Core:
    """A loaded model with a runtime and a block pool that hands out block ids in any order a test asks for."""

    def __init__(
        self,
        path: Path,
        *,
        isa: str = "",
        threads: int = 1,
        num_blocks: int = 64,
        max_batch_tokens: int = 512,
        kv_type: str = "f16",
        context_length: int = 0,
    ) -> None:
        cpus = [-1] * threads
        self.model = _native.Model.load(
            _native.GgufFile.open(str(path)), isa=isa, cpus=cpus, context_length=context_length
        )
        self.runtime = _native.Runtime(
            self.model, cpus=cpus, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens, kv_type=kv_type
        )
        self._free = list(range(num_blocks))

    @property
    def blocks(self) -> _native.KvBlocks:
        """The KV blocks of a model without windows, or those of its layers without one."""
        return self.runtime.kv_blocks[0]

    def shuffle_blocks(self, seed: int) -> None:
        np.random.default_rng(seed).shuffle(self._free)

    def sequence(self, max_tokens: int, adapter: _native.Adapter | None = None) -> Sequence:
        """A new sequence with blocks for so many tokens."""
        count = -(-max_tokens // _native.KV_BLOCK_TOKENS)
        return Sequence([self._free.pop(0) for _ in range(count)], adapter=adapter)

    def load_adapter(self, path: Path, strength: float = 1.0) -> _native.Adapter:
        return _native.Adapter.load(_native.GgufFile.open(str(path)), self.model, cpus=[-1], strength=strength)

    def free(self, sequence: Sequence) -> None:
        self._free += sequence.blocks

    def step(self, work: list[tuple[Sequence, list[int]]]) -> list[Logits]:
        """Computes the given tokens of each sequence in one step; logits of every one of them."""
        return np.split(self._run(work).logits, np.cumsum([len(tokens) for _, tokens in work])[:-1])

    def samples(self, work: list[tuple[Sequence, list[int]]]) -> list[_native.SampleResult]:
        """As step, but what a greedy sampler makes of every row."""
        return self._run(work).samples

    def logits_of(self, work: list[tuple[Sequence, list[int]]], rows: NDArray[np.int32]) -> Logits:
        """As step, but logits of some rows alone."""
        return self._run(work, rows).logits

    def add_states(self, work: list[tuple[Sequence, list[int]]], sums: list[States]) -> None:
        """Computes the given tokens of each sequence in one step, without logits, and adds their states to its sum."""
        starts = np.cumsum([0, *(len(tokens) for _, tokens in work)]).tolist()
        rows = [(start, len(tokens), target) for start, (_, tokens), target in zip(starts, work, sums, strict=False)]
        self._run(work, np.empty(0, np.int32), rows)

    def _run(
        self,
        work: list[tuple[Sequence, list[int]]],
        logit_rows: NDArray[np.int32] | None = None,
        state_sums: list[tuple[int, int, States]] | None = None,
    ) -> _native.StepOutput:
        if logit_rows is None:
            logit_rows = np.arange(sum(len(tokens) for _, tokens in work), dtype=np.int32)
        tables = np.full((len(work), max(len(sequence.blocks) for sequence, _ in work)), -1, np.int32)
        for row, (sequence, _) in enumerate(work):
            tables[row, : len(sequence.blocks)] = sequence.blocks
        output = self.runtime.step(
            int32(token for _, tokens in work for token in tokens),
            int32(len(tokens) for _, tokens in work),
            int32(len(sequence.tokens) for sequence, _ in work),
            tables,
            logit_rows,
            [_native.Sampler(self.model.vocab_size, temperature=0.0)] * len(logit_rows),
            return_logits=True,
            state_sums=state_sums or [],
            adapters=[sequence.adapter for sequence, _ in work],
        )
        for sequence, tokens in work:
            sequence.tokens += tokens
        return output

    def read(self, sequence: Sequence, tokens: list[int], chunk: int) -> Logits:
        """All logits of a prompt computed `chunk` tokens at a time."""
        parts = [self.step([(sequence, tokens[at : at + chunk])])[0] for at in range(0, len(tokens), chunk)]
        return np.concatenate(parts)

    def continue_greedily(
        self, prompt: list[int], num_tokens: int, chunk: int = 512, adapter: _native.Adapter | None = None
    ) -> tuple[list[int], Logits]:
        """The greedy continuation, and the logits of every position: those of token i chose token i + 1."""
        sequence = self.sequence(len(prompt) + num_tokens, adapter)
        logits = [self.read(sequence, prompt, chunk)]
        output = [int(logits[0][-1].argmax())]
        while len(output) < num_tokens:
            logits += self.step([(sequence, output[-1:])])
            output.append(int(logits[-1][-1].argmax()))
        self.free(sequence)
        return output, np.concatenate(logits)


def int32(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)

"""Treadle's native core, called the way the engine calls it, without scheduler and tokenizer; texts go through both."""

from __future__ import annotations

import math
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle import LLM, _native
from treadle.config import Settings
from treadle.hardware.plan import plan_threads

BATCH_TOKENS = 512
CACHE_STEP = 256


class Engine:
    def __init__(self, path: str, threads: int | None, kv_type: str = "f16", cpus: list[int] | None = None) -> None:
        """Without a number of threads as many as planned; ``cpus`` places them, -1 for one that the system places."""
        self.kv_type = kv_type
        self.cpus = list(plan_threads(threads).cpus) if cpus is None else cpus
        file = _native.GgufFile.open(path)
        self.model = _native.Model.load(file, isa=Settings.from_environment().isa, cpus=self.cpus)
        shapes = {name: shape for name, _, shape, _ in file.tensors()}
        head = shapes.get("output.weight", shapes["token_embd.weight"])
        self.head_weights = math.prod(head)
        self.layer_weights = sum(
            math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name.startswith("blk.")
        )
        self.sampler = _native.Sampler(self.model.vocab_size, temperature=0.0)
        self.runtimes: dict[tuple[int, int], _native.Runtime] = {}
        self.path, self.threads = path, threads
        self.llm: LLM | None = None
        self.blocks_per_stream = 0
        self.runtime: Any = None
        self.filled: dict[tuple[int, int], int] = {}  # tokens of each stream that `_fill` gave a runtime of this shape
        self.saved: dict[
            int, list[list[NDArray[np.uint8]]]
        ] = {}  # of each group of layers a stream's blocks by length of the prompt

    def facts(self) -> dict[str, Any]:
        try:
            release = version("treadle")
        except PackageNotFoundError:
            release = "source tree"
        return {
            "version": f"treadle {release}",
            "build": self.model.isa,
            "kv_type": self.kv_type,
            "cpus": self.cpus,
            "decode_bytes": self.model.decode_bytes,
            "layer_weights": self.layer_weights,
            "head_weights": self.head_weights,
            "vocab_size": self.model.vocab_size,
        }

    def embed(self, texts: list[list[int]]) -> float:
        llm = self._llm()
        start = time.perf_counter()
        llm.embed(texts)
        return time.perf_counter() - start

    def vectors(self, texts: list[list[int]]) -> list[list[float]]:
        return [vector.tolist() for vector in self._llm().embed(texts)]

    def _llm(self) -> LLM:
        if self.llm is None:
            self.llm = LLM(self.path, threads=self.threads)
        return self.llm

    def prompt(self, tokens: list[int]) -> float:
        self.filled.pop(self._use_runtime(1, len(tokens)), None)
        start = time.perf_counter()
        self._read(0, tokens)
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], num_steps: int) -> float:
        shape = self._use_runtime(len(prompts), len(prompts[0]) + num_steps)
        if self.filled.get(shape) != len(prompts[0]):
            self._fill(prompts)
            self.filled[shape] = len(prompts[0])
        last = [tokens[-1] for tokens in prompts]
        start = time.perf_counter()
        for step in range(num_steps):
            work = [(stream, [token], len(prompts[stream]) + step) for stream, token in enumerate(last)]
            samples = self._step(work, np.arange(len(work), dtype=np.int32)).samples
            last = [sample.token for sample in samples]
        return time.perf_counter() - start

    def presence(self, prompts: list[list[int]], seconds: float) -> list[tuple[float, int]]:
        """Decodes for some time; of each step its end, by the monotonic clock, and how many threads had part."""
        steps = []
        end = time.monotonic() + seconds
        while not steps or steps[-1][0] < end:
            self.decode(prompts, 1)
            steps.append((time.monotonic(), self.runtime.num_present))
        return steps

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        self.filled.pop(self._use_runtime(1, len(tokens)), None)
        parts = []
        for at in range(0, len(tokens), BATCH_TOKENS):
            piece = tokens[at : at + BATCH_TOKENS]
            output = self._step([(0, piece, at)], np.arange(len(piece), dtype=np.int32), return_logits=True)
            assert output.logits is not None
            parts.append(output.logits)
        return np.concatenate(parts)

    def _use_runtime(self, streams: int, tokens: int) -> tuple[int, int]:
        """Makes the runtime with a cache of this shape the current one and returns the shape."""
        shape = (streams, -(-tokens // CACHE_STEP) * CACHE_STEP)
        self.blocks_per_stream = shape[1] // _native.KV_BLOCK_TOKENS
        if shape not in self.runtimes:
            self.runtimes[shape] = _native.Runtime(
                self.model,
                cpus=self.cpus,
                num_blocks=streams * self.blocks_per_stream,
                max_batch_tokens=BATCH_TOKENS,
                kv_type=self.kv_type,
            )
        self.runtime = self.runtimes[shape]
        return shape

    def _fill(self, prompts: list[list[int]]) -> None:
        """Gives each stream a prompt of this length: one, copied, for the values do not matter and reading is slow."""
        length = len(prompts[0])
        blocks = range(-(-length // _native.KV_BLOCK_TOKENS))
        if length not in self.saved:
            self._read(0, prompts[0])
            self.saved[length] = [
                [np.empty(group.kv_block_bytes, np.uint8) for _ in blocks] for group in self.runtime.kv_blocks
            ]
            for group, saved_blocks in zip(self.runtime.kv_blocks, self.saved[length], strict=True):
                for block, saved in zip(blocks, saved_blocks, strict=True):
                    group.read_kv_block(block, saved)
        for stream in range(len(prompts)):
            for group, saved_blocks in zip(self.runtime.kv_blocks, self.saved[length], strict=True):
                for block, saved in zip(blocks, saved_blocks, strict=True):
                    group.write_kv_block(stream * self.blocks_per_stream + block, saved)

    def _read(self, stream: int, tokens: list[int]) -> int:
        """Computes a prompt and returns the token that follows it."""
        for at in range(0, len(tokens), BATCH_TOKENS):
            piece = tokens[at : at + BATCH_TOKENS]
            is_last = at + len(piece) == len(tokens)
            rows = np.array([len(piece) - 1] if is_last else [], np.int32)
            output = self._step([(stream, piece, at)], rows)
        return output.samples[0].token

    def _step(
        self, work: list[tuple[int, list[int], int]], rows: NDArray[np.int32], *, return_logits: bool = False
    ) -> _native.StepOutput:
        tables = np.array([[stream] for stream, _, _ in work], np.int32) * self.blocks_per_stream
        return self.runtime.step(
            np.array([token for _, tokens, _ in work for token in tokens], np.int32),
            np.array([len(tokens) for _, tokens, _ in work], np.int32),
            np.array([start for _, _, start in work], np.int32),
            tables + np.arange(self.blocks_per_stream, dtype=np.int32),
            rows,
            [self.sampler] * len(rows),
            return_logits,
        )

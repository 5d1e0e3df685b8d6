"""The scheduler over the native runtime, without the engine's thread, for tests that say exactly what runs beside what."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from fakes import FakeStream
from treadle import _native
from treadle.engine.engine import Engine
from treadle.engine.kv.block_pool import BlockPool
from treadle.engine.kv.block_window import BlockWindow
from treadle.engine.kv.kv_type import KV_BLOCK_TOKENS
from treadle.engine.kv.prefix_cache import PrefixCache
from treadle.engine.output import TextOutput
from treadle.engine.request import AnswerRequest
from treadle.engine.runner import NativeRunner
from treadle.engine.sampling import SamplingParams
from treadle.engine.scheduler import Scheduler
from treadle.models.gguf import ModelFile

NUM_ANSWER_TOKENS = 40


class BytesStore:
    """Keeps the bytes of evicted blocks in memory and gives them back at once."""

    def __init__(self, blocks: _native.KvBlocks) -> None:
        self._blocks = blocks
        self._held: dict[bytes, NDArray[np.uint8]] = {}
        self.num_loaded = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def save(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        for key, block_id in zip(keys, block_ids, strict=True):
            if key not in self._held:
                self._held[key] = np.empty(self._blocks.kv_block_bytes, np.uint8)
                self._blocks.read_kv_block(block_id, self._held[key])

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> Future[int]:
        for key, block_id in zip(keys, block_ids, strict=True):
            self._blocks.write_kv_block(block_id, self._held[key])
        self.num_loaded += len(keys)
        future: Future[int] = Future()
        future.set_result(len(keys))
        return future


class Loop:
    """An engine over the native runtime."""

    def __init__(
        self,
        file: ModelFile,
        *,
        num_blocks: int | list[int] = 64,
        max_batch_tokens: int = 512,
        max_num_requests: int = 8,
        threads: int = 1,
        is_cached: bool = True,
        is_stored: bool = False,
        frees_windows: bool = True,
        context: int = 512,
    ) -> None:
        self.runner = NativeRunner.load(
            file, isa="", cpus=[-1] * threads, num_blocks=num_blocks, max_batch_tokens=max_batch_tokens
        )
        self.stores = [BytesStore(blocks) for blocks in self.runner.block_memories] if is_stored else []
        pools = []
        for blocks in self.runner.block_memories:
            window = BlockWindow(blocks.window, KV_BLOCK_TOKENS, max_batch_tokens)
            pools.append(
                BlockPool(
                    blocks.num_blocks, KV_BLOCK_TOKENS, window=window if blocks.window and frees_windows else None
                )
            )
        self.scheduler = Scheduler(
            pools,
            context=context,
            max_batch_tokens=max_batch_tokens,
            max_num_requests=max_num_requests,
            cache=PrefixCache(pools, stores=self.stores, is_enabled=is_cached),
        )
        self.engine = Engine(self.scheduler, self.runner)
        self.num_requests = 0

    def request(
        self, prompt: list[int], params: SamplingParams, num_tokens: int = NUM_ANSWER_TOKENS, seed: int | None = None
    ) -> AnswerRequest:
        self.num_requests += 1
        request = AnswerRequest(
            request_id=self.num_requests,
            prompt_ids=prompt,
            max_length=len(prompt) + num_tokens,
            end_ids=frozenset(),
            sampler=self.runner.create_sampler(params, len(prompt) if seed is None else seed, prompt),
            output=TextOutput(FakeStream()),
            deliver=lambda _: None,
        )
        self.engine.submit(request)
        return request

    def run(self) -> None:
        while self.engine.has_work:
            self.engine.step()
        assert all(pool.num_used == 0 for pool in self.scheduler.pools)

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> list[list[int]]:
        requests = [self.request(prompt, params) for prompt in prompts]
        self.run()
        return [request.answer_ids for request in requests]

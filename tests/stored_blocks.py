"""Stand-ins for tests of stored KV blocks: a pool made of an array, keys, a store in a temporary folder."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from treadle.engine.kv.block_file import CacheIdentity
from treadle.engine.kv.block_store import TieredStore
from treadle.engine.kv.cache_folder import CacheFolder, ModelFacts
from treadle.engine.kv.disk_tier import DiskTier
from treadle.engine.kv.ram_tier import RamTier

BLOCK_BYTES = 3000
IDENTITY = CacheIdentity(b"m" * 16, b"l" * 16, block_tokens=32, block_bytes=BLOCK_BYTES)
FACTS = ModelFacts("Tiny", "/models/tiny.gguf", "a test")
CHARGE = 64 << 10  # what a small file counts against the limit
GENEROUS = 1 << 30


class ArrayMemory:
    """KV blocks as rows of an array; block ``i`` is full of pseudo-random bytes that depend on ``i``."""

    def __init__(self, num_blocks: int = 64, block_bytes: int = BLOCK_BYTES) -> None:
        self.blocks = np.random.default_rng(5).integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)

    @property
    def kv_block_bytes(self) -> int:
        return self.blocks.shape[1]

    def read_kv_block(self, block_id: int, out: NDArray[np.uint8]) -> None:
        out[:] = self.blocks[block_id]

    def write_kv_block(self, block_id: int, data: NDArray[np.uint8] | memoryview) -> None:
        self.blocks[block_id] = np.frombuffer(data, np.uint8)


def keys(*numbers: int) -> list[bytes]:
    return [blake2b(str(number).encode(), digest_size=16).digest() for number in numbers]


def open_disk(
    home: Path,
    identity: CacheIdentity = IDENTITY,
    *,
    limit_bytes: int = GENEROUS,
    buffer_bytes: int = GENEROUS,
    facts: ModelFacts = FACTS,
) -> DiskTier:
    folder = CacheFolder(home)
    return DiskTier(folder, identity, facts, limit_bytes=limit_bytes, buffer_bytes=buffer_bytes, reserve_bytes=0)


def open_store(
    home: Path | None,
    memory: ArrayMemory,
    *,
    ram_blocks: int = 0,
    limit_bytes: int = GENEROUS,
    queue_blocks: int = 1000,
) -> TieredStore:
    disk = (
        None
        if home is None
        else open_disk(home, limit_bytes=limit_bytes, buffer_bytes=queue_blocks * memory.kv_block_bytes)
    )
    return TieredStore(memory, ram=RamTier(ram_blocks * memory.kv_block_bytes, memory.kv_block_bytes), disk=disk)


def block_files(home: Path) -> list[Path]:
    # Unlike a glob, a walk goes on when another thread removes a folder under it.
    found = (Path(folder, name) for folder, _, names in os.walk(home / "kv-cache") for name in names)
    return sorted(path for path in found if path.suffix == ".kv")

"""Opens the stores for the KV blocks of a model that was just loaded.

Leaves to others: how much memory and disk it may take (``memory_plan``, ``Settings``) and all that it does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from treadle.engine.file_digest import FileStamp, digest_files, stamp_files
from treadle.engine.kv.block_file import CacheIdentity
from treadle.engine.kv.block_store import BlockMemory, TieredStore
from treadle.engine.kv.cache_folder import CacheFolder, ModelFacts
from treadle.engine.kv.disk_tier import DiskTier
from treadle.engine.kv.ram_tier import RamTier

__all__ = ["KvRuntime", "open_block_stores"]


class KvRuntime(BlockMemory, Protocol):
    """The blocks of one pool, and what gives their bytes a meaning."""

    @property
    def num_blocks(self) -> int:
        """Return how many there are."""

    @property
    def kv_layout(self) -> str:
        """Describe the layout; blocks of one model and layout are interchangeable."""


def open_block_stores(
    memories: Sequence[KvRuntime],
    *,
    name: str,
    paths: Sequence[Path],
    stamp: FileStamp | None,
    core: Path,
    block_tokens: int,
    home: Path,
    ram_bytes: int,
    disk_bytes: int,
    buffer_bytes: int,
) -> list[TieredStore]:
    """Return a store for each pool, none if neither tier is wanted; warns and does without the disk if need be.

    Args:
        memories: The KV blocks of each pool.
        name: The model's, for people.
        paths: Its files.
        stamp: Of these files before the model was read from them, None if they could not be looked at.
        core: The file of the native core: another build may compute other bits.
        block_tokens: Tokens of a block.
        home: Treadle's folder.
        ram_bytes: Most memory for blocks beyond the pools, 0 for none.
        disk_bytes: Most disk for the blocks of all models, 0 for none.
        buffer_bytes: Most memory for blocks on their way to the disk.
    """
    if not ram_bytes and not disk_bytes:
        return []
    disks: list[DiskTier | None] = [None] * len(memories)
    if disk_bytes:
        folder = CacheFolder(home)
        try:
            folder.open()
            model = _model_digest(paths, stamp, folder.digests)
            core_digest = digest_files([core], folder.digests)
            for index, memory in enumerate(memories):
                layout = blake2b(memory.kv_layout.encode() + core_digest, digest_size=16).digest()
                disks[index] = DiskTier(
                    folder,
                    CacheIdentity(model, layout, block_tokens, memory.kv_block_bytes),
                    ModelFacts(name, str(paths[0]), memory.kv_layout),
                    limit_bytes=disk_bytes,
                    buffer_bytes=buffer_bytes // len(memories),
                    num_writers=len(memories),
                )
        except OSError as error:
            warnings.warn(f"prompts are not kept on disk: {error}", RuntimeWarning, stacklevel=4)
    pool_bytes = [memory.num_blocks * memory.kv_block_bytes for memory in memories]
    return [
        TieredStore(memory, ram=RamTier(ram_bytes * share // sum(pool_bytes), memory.kv_block_bytes), disk=disk)
        for memory, share, disk in zip(memories, pool_bytes, disks, strict=True)
    ]


def _model_digest(paths: Sequence[Path], stamp: FileStamp | None, notes: Path) -> bytes:
    digest = digest_files(paths, notes)
    if stamp_files(paths) != stamp:
        raise OSError(f"{paths[0]} has changed since the model was read from it")
    return digest

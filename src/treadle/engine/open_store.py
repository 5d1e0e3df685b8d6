"""Opens the store for the KV blocks of a model that was just loaded.

Leaves to others: how much memory and disk it may take (``memory_plan``, ``Settings``) and all that it does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from treadle.engine.block_file import CacheIdentity
from treadle.engine.block_store import BlockMemory, TieredStore
from treadle.engine.cache_folder import CacheFolder, ModelFacts
from treadle.engine.disk_tier import DiskTier
from treadle.engine.file_digest import FileStamp, digest_files, stamp_files
from treadle.engine.ram_tier import RamTier

__all__ = ["KvRuntime", "open_block_store"]


class KvRuntime(BlockMemory, Protocol):
    """The blocks of the pool, and what gives their bytes a meaning."""

    @property
    def kv_layout(self) -> str:
        """Describe the layout; blocks of one model and layout are interchangeable."""


def open_block_store(
    runtime: KvRuntime,
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
) -> TieredStore | None:
    """Return a store, or None if neither tier is wanted. Without a usable folder it warns and does without the disk.

    Args:
        runtime: The KV blocks.
        name: The model's, for people.
        paths: Its files.
        stamp: Of these files before the model was read from them, None if they could not be looked at.
        core: The file of the native core: another build may compute other bits.
        block_tokens: Tokens of a block.
        home: Treadle's folder.
        ram_bytes: Most memory for blocks beyond the pool, 0 for none.
        disk_bytes: Most disk for the blocks of all models, 0 for none.
        buffer_bytes: Most memory for blocks on their way to the disk.
    """
    if not ram_bytes and not disk_bytes:
        return None
    disk = None
    if disk_bytes:
        folder = CacheFolder(home)
        facts = ModelFacts(name, str(paths[0]), runtime.kv_layout)
        try:
            folder.open()
            model = _model_digest(paths, stamp, folder.digests)
            layout = blake2b(runtime.kv_layout.encode() + digest_files([core], folder.digests), digest_size=16).digest()
            identity = CacheIdentity(model, layout, block_tokens, runtime.kv_block_bytes)
            disk = DiskTier(folder, identity, facts, limit_bytes=disk_bytes, buffer_bytes=buffer_bytes)
        except OSError as error:
            warnings.warn(f"prompts are not kept on disk: {error}", RuntimeWarning, stacklevel=4)
    return TieredStore(runtime, ram=RamTier(ram_bytes, runtime.kv_block_bytes), disk=disk)


def _model_digest(paths: Sequence[Path], stamp: FileStamp | None, notes: Path) -> bytes:
    digest = digest_files(paths, notes)
    if stamp_files(paths) != stamp:
        raise OSError(f"{paths[0]} has changed since the model was read from it")
    return digest

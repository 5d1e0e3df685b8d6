"""KV blocks beyond the pool: in memory, on disk, or both, saved and loaded while steps go on.

Leaves to others: which blocks to save or load (the prefix cache), keeping them (``RamTier``, ``DiskTier``).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from treadle.engine.kv.disk_tier import DiskTier
from treadle.engine.kv.ram_tier import BlockBytes, RamTier

__all__ = ["BlockMemory", "StoreStats", "TieredStore", "stats_of"]

_log = logging.getLogger(__name__)

# Enough to keep a disk busy and two cores copying.
_NUM_READERS = 4
_CLOSE_SECONDS = 5.0
# Blocks of one call were used at one time; this much apart, the end of a text goes before its beginning.
_STEP_NS = 1000


class BlockMemory(Protocol):
    """The blocks of the pool as bytes, as the native runtime offers them; any thread may call."""

    @property
    def kv_block_bytes(self) -> int:
        """The bytes of a block."""

    def read_kv_block(self, block_id: int, out: BlockBytes) -> None:
        """Copy a block out."""

    def write_kv_block(self, block_id: int, data: BlockBytes | memoryview) -> None:
        """Replace the contents of a block."""


@dataclass(frozen=True)
class StoreStats:
    """What a store holds and has done since it was opened, in blocks.

    ``num_dropped`` were offered while the queue was full or the disk failed, ``num_failed`` could not be written,
    ``num_damaged`` were found to be not what was written.
    """

    num_in_ram: int
    num_on_disk: int
    num_saved: int
    num_dropped: int
    num_loaded_from_ram: int
    num_loaded_from_disk: int
    num_failed: int
    num_damaged: int


def stats_of(stores: Sequence[TieredStore]) -> StoreStats | None:
    """Return what the stores of one model hold and have done, None without any.

    What is held and loaded is told of the first one: the same tokens are in the others, too, as far as these are of
    use.
    """
    if not stores:
        return None
    first, *others = (store.stats() for store in stores)
    return replace(
        first,
        num_saved=first.num_saved + sum(other.num_saved for other in others),
        num_dropped=first.num_dropped + sum(other.num_dropped for other in others),
        num_failed=first.num_failed + sum(other.num_failed for other in others),
        num_damaged=first.num_damaged + sum(other.num_damaged for other in others),
    )


class _Item(NamedTuple):
    """One block to load, from ``source`` if that is in memory."""

    block_index: int
    key: bytes
    block_id: int
    source: BlockBytes | None
    used_ns: int


class _Load:
    """Blocks on their way into the pool; done when no thread touches any of them any more."""

    def __init__(self, num_blocks: int) -> None:
        self.future: Future[int] = Future()
        self.future.set_running_or_notify_cancel()
        self.num_valid = num_blocks  # leading ones that are valid or may still become so
        self._num_left = num_blocks
        self._lock = threading.Lock()
        if num_blocks == 0:
            self.future.set_result(0)

    def finish(self, index: int, *, is_valid: bool) -> None:
        with self._lock:
            if not is_valid:
                self.num_valid = min(self.num_valid, index)
            self._num_left -= 1
            is_done = self._num_left == 0
        if is_done:
            self.future.set_result(self.num_valid)


class TieredStore:
    """Keeps blocks by key in memory and on disk; implements the store that ``PrefixCache`` asks.

    What is saved goes into memory and, at once, into the queue of the disk, so that a process that is killed leaves
    nearly all of it behind. ``in`` and ``save`` are for one thread, the engine's.
    """

    def __init__(self, memory: BlockMemory, *, ram: RamTier | None = None, disk: DiskTier | None = None) -> None:
        self._memory = memory
        self._ram = RamTier(0, memory.kv_block_bytes) if ram is None else ram
        self._disk = disk
        self._lock = threading.Lock()  # guards what follows
        self._num_saved = self._num_dropped = 0
        self._num_loaded = {"ram": 0, "disk": 0}
        self._loads: set[Future[int]] = set()
        self._is_closed = False
        self._buffers = threading.local()
        if disk is not None:  # a store that is dropped without being closed must not leave a thread behind
            weakref.finalize(self, disk.close, _CLOSE_SECONDS)
        self._readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="treadle-kv-load")

    def __contains__(self, key: bytes) -> bool:
        """Tell whether a block is held; looks into memory only."""
        with self._lock:
            return key in self._ram or self._is_on_disk(key)

    def save(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copy blocks out and keep them, except those that are held already; what finds no place is dropped."""
        now = time.time_ns()
        fresh = []
        with self._lock:
            if self._is_closed:
                return
            for index, (key, block_id) in enumerate(zip(keys, block_ids, strict=True)):
                block = self._save_one(key, block_id, now - index * _STEP_NS)
                if block is not None:
                    fresh.append((key, block))
            for key, block in reversed(fresh):  # the beginning of a text is to be the last that goes
                self._keep_in_ram(key, block, now)

    def load(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> Future[int]:
        """Fill blocks in the background; the result is how many of the leading ones are valid then.

        Until there is a result every one of the blocks may be written to. It never is an error.
        """
        now = time.time_ns()
        with self._lock:
            load = _Load(0 if self._is_closed else len(keys))
            sources = [self._in_memory(key) for key in reversed(keys)][::-1]
            self._loads.add(load.future)
            if not self._is_closed:
                for index, (key, block_id, source) in enumerate(zip(keys, block_ids, sources, strict=True)):
                    item = _Item(index, key, block_id, source, now - index * _STEP_NS)
                    self._readers.submit(self._load_one, load, item)
        load.future.add_done_callback(self._forget_load)
        return load.future

    def stats(self) -> StoreStats:
        """Return what the store holds and has done."""
        with self._lock:
            return StoreStats(
                num_in_ram=len(self._ram),
                num_on_disk=0 if self._disk is None else len(self._disk),
                num_saved=self._num_saved,
                num_dropped=self._num_dropped,
                num_loaded_from_ram=self._num_loaded["ram"],
                num_loaded_from_disk=self._num_loaded["disk"],
                num_failed=0 if self._disk is None else self._disk.num_failed,
                num_damaged=0 if self._disk is None else self._disk.num_damaged,
            )

    def close(self) -> None:
        """End what loads, write what waits, both within seconds; may be called twice."""
        with self._lock:
            self._is_closed = True
            loads = set(self._loads)
        wait(loads, timeout=_CLOSE_SECONDS)
        self._readers.shutdown(wait=False)
        if self._disk is not None:
            self._disk.close(_CLOSE_SECONDS)

    def _is_on_disk(self, key: bytes) -> bool:
        return self._disk is not None and key in self._disk

    def _in_memory(self, key: bytes) -> BlockBytes | None:
        block = self._ram.get(key)
        return self._disk.waiting(key) if block is None and self._disk is not None else block

    def _save_one(self, key: bytes, block_id: int, used_ns: int) -> BlockBytes | None:
        """Hand a block to the disk; return it if memory should have it, too."""
        disk = self._disk
        is_on_disk = disk is not None and key in disk
        if disk is not None and is_on_disk:
            disk.touch(key, used_ns)
        if self._ram.get(key) is not None or (is_on_disk and not self._ram.capacity):
            return None
        if not self._ram.capacity and (disk is None or not disk.is_accepting):
            self._num_dropped += 1
            return None
        block = np.empty(self._memory.kv_block_bytes, np.uint8)
        self._memory.read_kv_block(block_id, block)
        if disk is not None and not is_on_disk:
            disk.put(key, block, used_ns)
        self._num_saved += 1
        return block if self._ram.capacity else None

    def _keep_in_ram(self, key: bytes, block: BlockBytes, used_ns: int) -> None:
        for old_key, old_block in self._ram.put(key, block):
            if self._disk is not None and old_key not in self._disk:  # the queue was full when it was saved
                self._disk.put(old_key, old_block, used_ns)

    def _load_one(self, load: _Load, item: _Item) -> None:
        is_valid = False
        try:
            if self._is_closed:
                pass
            elif item.block_index < load.num_valid:
                is_valid = self._try_fill(item)
            elif (
                self._disk is not None
            ):  # what follows a bad block may be bad, too; it will be computed and stored anew
                self._disk.forget(item.key)
        except Exception:
            _log.exception("a stored KV block could not be loaded; its tokens are computed again")
        finally:
            load.finish(item.block_index, is_valid=is_valid)

    def _try_fill(self, item: _Item) -> bool:
        contents: BlockBytes | memoryview | None = item.source
        if contents is None and self._disk is not None:
            buffer = self._buffer(self._disk.identity.file_bytes)
            contents = self._disk.read(item.key, buffer, item.used_ns)
        if contents is None:
            return False
        self._memory.write_kv_block(item.block_id, contents)
        with self._lock:
            self._num_loaded["disk" if item.source is None else "ram"] += 1
        return True

    def _buffer(self, num_bytes: int) -> bytearray:
        """Return this thread's buffer, made when it reads its first file."""
        buffer: bytearray | None = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = bytearray(num_bytes)
        return buffer

    def _forget_load(self, future: Future[int]) -> None:
        with self._lock:
            self._loads.discard(future)

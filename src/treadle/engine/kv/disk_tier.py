"""Stores the KV blocks of one model in files, from a bounded queue, and reads them back.

Leaves to others: what is in a file (``block_file``), the folder over all models and its limit (``cache_folder``), and
when to save or load (``TieredStore``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from treadle.engine.kv.block_file import (
    CacheIdentity,
    DamagedBlockError,
    ForeignBlockError,
    block_path,
    mark_used,
    read_block,
    write_block,
)
from treadle.engine.kv.cache_folder import CacheFolder, ModelFacts, StoredFile
from treadle.engine.kv.ram_tier import BlockBytes

__all__ = ["DiskTier"]

_log = logging.getLogger(__name__)

# A disk filled to the last byte takes other programs down with it.
RESERVE_BYTES = 1 << 30
# After a write that failed, blocks are not stored for this long: the next ones would fail, too, and cost as much.
PAUSE_SECONDS = 60.0
_MAX_TOUCHES = 4096


class _Job(NamedTuple):
    """A block to write, or without one a block that is there and was used."""

    block: BlockBytes | None
    used_ns: int


class DiskTier:
    """The blocks of one model on disk: an index in memory, one thread that writes, any thread may read.

    All models of the folder together take at most ``limit_bytes``; of what waits to be written at most
    ``buffer_bytes`` is held. ``num_writers`` tiers write into the folder from this process. Raises OSError if there can
    be no folder, or somebody else's is in its place.
    """

    def __init__(
        self,
        folder: CacheFolder,
        identity: CacheIdentity,
        facts: ModelFacts,
        *,
        limit_bytes: int,
        buffer_bytes: int,
        num_writers: int = 1,
        reserve_bytes: int = RESERVE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.num_damaged = 0
        self.num_failed = 0
        self._folder = folder
        self._facts = facts
        self._limit_bytes = limit_bytes
        self._num_writers = num_writers
        self._max_jobs = max(1, buffer_bytes // identity.block_bytes)
        self._reserve_bytes = reserve_bytes
        self._clock = clock
        self._model_folder = folder.open_model(identity, facts)
        self._charge = StoredFile(self._model_folder, identity.file_bytes, 0).charged_bytes
        self._used_bytes = limit_bytes  # unknown until the first look at the whole folder
        self._unseen_bytes = limit_bytes  # written since the last look
        self._resumes_at = float("-inf")
        self._warned: set[str] = set()
        self._changed = threading.Condition()  # guards what follows
        self._jobs: OrderedDict[bytes, _Job] = OrderedDict()
        self._num_blocks_queued = 0
        self._is_closing = False
        self._keys: set[bytes] = set()
        self._forgotten: set[bytes] = set()  # there may be files of these, but they are not to be read
        self._keys = self._index(self._own_files(folder.files()))
        self._writer = threading.Thread(target=self._write_all, name="treadle-disk-cache", daemon=True)
        self._writer.start()

    def __contains__(self, key: bytes) -> bool:
        with self._changed:
            return key in self._keys or key in self._jobs

    def __len__(self) -> int:
        with self._changed:
            return len(self._keys)

    @property
    def is_accepting(self) -> bool:
        """Tell whether a block would be queued: the queue has room, writing goes well, and the tier is open."""
        has_room = self._num_blocks_queued < self._max_jobs and self._charge <= self._limit_bytes
        return has_room and not self._is_closing and self._clock() >= self._resumes_at

    def put(self, key: bytes, block: BlockBytes, used_ns: int) -> bool:
        """Queue a block; false if none is accepted."""
        with self._changed:
            if not self.is_accepting:
                return False
            self._jobs[key] = _Job(block, used_ns)
            self._num_blocks_queued += 1
            self._changed.notify_all()
            return True

    def touch(self, key: bytes, used_ns: int) -> None:
        """Note, when there is time, that a block was used."""
        with self._changed:
            if key in self._keys and len(self._jobs) < _MAX_TOUCHES and not self._is_closing:
                self._jobs.setdefault(key, _Job(None, used_ns))
                self._changed.notify_all()

    def waiting(self, key: bytes) -> BlockBytes | None:
        """Return a block that is still to be written."""
        with self._changed:
            job = self._jobs.get(key)
            return None if job is None else job.block

    def read(self, key: bytes, buffer: bytearray, used_ns: int) -> memoryview | None:
        """Read a block into ``buffer`` and return its contents; None if the block is not to be had."""
        path = block_path(self._model_folder, key)
        with self._handled(path, key):
            contents = read_block(path, self.identity, key, buffer)
            mark_used(path, used_ns)
            return contents
        return None

    def forget(self, key: bytes) -> None:
        """Act as if there were no such block, so that it may be put anew."""
        with self._changed:
            self._keys.discard(key)
            self._forgotten.add(key)

    def close(self, timeout: float) -> None:
        """Write what waits, for at most ``timeout`` seconds, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._writer.join(timeout)
        with self._changed:
            self._jobs.clear()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_closing:
                    self._changed.wait()
                if not self._jobs:
                    return
                key, job = next(iter(self._jobs.items()))
            if job.block is None:
                mark_used(block_path(self._model_folder, key), job.used_ns)
            is_written = job.block is not None and self._try_write(key, job.block, job.used_ns)
            with self._changed:
                if is_written:
                    self._keys.add(key)
                    self._forgotten.discard(key)
                if self._jobs.get(key) is job:
                    del self._jobs[key]
                if job.block is not None:
                    self._num_blocks_queued -= 1
                self._changed.notify_all()

    def _try_write(self, key: bytes, block: BlockBytes, used_ns: int) -> bool:
        try:
            if self._clock() < self._resumes_at:
                return False
            self._make_room()
            self._write(key, block, used_ns)
        except Exception as error:  # whatever it is, answers do not depend on it
            self.num_failed += 1
            self._resumes_at = self._clock() + PAUSE_SECONDS
            self._warn_once("write", f"{self._folder.path}: {error}; KV blocks are not stored for now, answers go on")
            return False
        self._unseen_bytes += self._charge
        return True

    def _write(self, key: bytes, block: BlockBytes, used_ns: int) -> None:
        contents = block.data
        try:
            write_block(self._model_folder, self.identity, key, contents, used_ns=used_ns)
        except FileNotFoundError:  # the folder was cleared
            self._folder.open_model(self.identity, self._facts)
            write_block(self._model_folder, self.identity, key, contents, used_ns=used_ns)

    def _make_room(self) -> None:
        # Others write, too. Looking again after half of a margin keeps two processes within the limit together.
        margin_bytes = self._limit_bytes // 16
        is_known = self._unseen_bytes + self._charge <= margin_bytes // (2 * self._num_writers)
        if is_known and self._used_bytes + self._unseen_bytes + self._charge <= self._limit_bytes - margin_bytes:
            return
        files = self._folder.shrink(
            self._limit_bytes - min(margin_bytes, self._limit_bytes - self._charge),
            self._charge,
            reserve_bytes=self._reserve_bytes,
        )
        self._used_bytes = sum(file.charged_bytes for file in files)
        self._unseen_bytes = 0
        found = self._index(self._own_files(files))
        with self._changed:
            self._forgotten &= found
            self._keys = found - self._forgotten

    def _own_files(self, files: list[StoredFile]) -> list[StoredFile]:
        return [file for file in files if file.path.parent == self._model_folder]

    def _index(self, files: list[StoredFile]) -> set[bytes]:
        keys: set[bytes] = set()
        for file in files:
            if file.key is not None and file.num_bytes == self.identity.file_bytes:
                keys.add(file.key)
            elif file.key is not None:
                with self._handled(file.path, file.key):
                    self._folder.verify(file)
        return keys

    @contextmanager
    def _handled(self, path: Path, key: bytes) -> Iterator[None]:
        """Forget a block whose file turns out to be none, and delete the file if it is of no use to anyone."""
        try:
            yield
        except FileNotFoundError:  # made room for others, perhaps by another process
            self.forget(key)
        except DamagedBlockError as error:
            self.forget(key)
            with self._changed:
                self.num_damaged += 1
            with suppress(OSError):
                path.unlink(missing_ok=True)
            self._warn_once("damaged", f"{path} was damaged and is deleted: {error}")
        except (ForeignBlockError, OSError) as error:
            self.forget(key)
            self._warn_once("unreadable", f"{path} is left alone: {error}")

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("%s (said once)", text)

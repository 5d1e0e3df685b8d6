"""The folder of stored KV blocks, one folder a model inside it, shared by every process of this user.

Leaves to others: the format of a file (``block_file``), and which blocks to store (``disk_tier``).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.engine.kv.block_file import (
    HEADER_BYTES,
    CacheIdentity,
    DamagedBlockError,
    ForeignBlockError,
    key_of,
    read_block,
    read_header,
)
from treadle.engine.private_file import TEMPORARY_SUFFIX, write_private

__all__ = ["CacheFolder", "CachedModel", "ModelFacts", "StoredFile", "Verdict"]

# Small files count as this much, so that a limit in bytes also limits how many files there are.
MIN_CHARGE_BYTES = 64 << 10
_ABOUT = "about.json"
_LOCK_SECONDS = 10.0
# Longer than any write takes; a temporary file this old was left by a process that died.
_STALE_SECONDS = 3600.0
_KEPT_ON_EVICTION = 7 / 8


@dataclass(frozen=True)
class ModelFacts:
    """What is told of a model to somebody who looks at the folder."""

    name: str
    path: str
    layout: str


@dataclass(frozen=True)
class StoredFile:
    """One file of the cache: its size and when its block was last used, in nanoseconds of the wall clock."""

    path: Path
    num_bytes: int
    used_ns: int

    @property
    def key(self) -> bytes | None:
        """The key of the block in it, None for a file that is still being written."""
        return key_of(self.path.name)

    @property
    def charged_bytes(self) -> int:
        """What it counts against the limit."""
        return max(self.num_bytes, MIN_CHARGE_BYTES)


@dataclass(frozen=True)
class Verdict:
    """What was found to be wrong with a file, if anything, and whether it was deleted for it."""

    file: StoredFile
    problem: str
    is_deleted: bool


@dataclass(frozen=True)
class CachedModel:
    """The blocks of one model; ``facts`` is None and ``block_tokens`` 0 where the folder does not tell any more."""

    folder: Path
    facts: ModelFacts | None
    block_tokens: int
    files: tuple[StoredFile, ...]

    @property
    def id(self) -> str:
        """Short enough to type, long enough to tell models apart."""
        return self.folder.name[:8]

    @property
    def num_bytes(self) -> int:
        """The size of all its blocks."""
        return sum(file.num_bytes for file in self.files)

    @property
    def used_ns(self) -> int:
        """When any of its blocks was last used, 0 if it has none."""
        return max((file.used_ns for file in self.files), default=0)


class CacheFolder:
    """``kv-cache`` in Treadle's home: for its owner only, as prompts can be told from what is in it."""

    def __init__(self, home: Path) -> None:
        self.path = home / "kv-cache"
        self.digests = self.path / "digests.json"

    def open(self) -> None:
        """Make the folder if needed; raises OSError if that cannot be, or if it belongs to somebody else."""
        _open_private(self.path)

    def open_model(self, identity: CacheIdentity, facts: ModelFacts) -> Path:
        """Return the folder of a model, made if needed; raises as ``open`` does."""
        self.open()
        folder = self.path / identity.digest.hex()
        _open_private(folder)
        about = {"name": facts.name, "path": facts.path, "layout": facts.layout, "block_tokens": identity.block_tokens}
        if _read_about(folder) != about:
            with suppress(OSError):  # a folder on a read-only disk can still be read from
                write_private(folder / _ABOUT, json.dumps(about).encode())
        return folder

    def models(self) -> list[CachedModel]:
        """Return what is stored, by name of the model; raises OSError if the folder cannot be read."""
        models = []
        for folder in self._model_folders():
            files = tuple(file for file in _files(folder) if file.key is not None)
            about = _read_about(folder)
            try:
                facts = ModelFacts(str(about["name"]), str(about["path"]), str(about["layout"]))
                models.append(CachedModel(folder, facts, int(about["block_tokens"]), files))
            except (KeyError, TypeError, ValueError):
                models.append(CachedModel(folder, None, 0, files))
        return sorted(models, key=lambda model: (model.facts.name if model.facts else "", model.folder.name))

    def files(self) -> list[StoredFile]:
        """Return every file of every model, also those still being written."""
        return [file for folder in self._model_folders() for file in _files(folder)]

    def shrink(self, limit_bytes: int, needed_bytes: int, *, reserve_bytes: int) -> list[StoredFile]:
        """Make room for ``needed_bytes`` within ``limit_bytes`` of charged files; return the files that stay.

        Once the limit is reached an eighth of it is set free, least recently used first, so that this is rare. A disk
        with less than ``reserve_bytes`` free lowers the limit by what is missing. Raises OSError, also if that is more
        than the whole cache.
        """
        with self.lock():
            files = [file for file in self.files() if not _removed_as_stale(file)]
            total = sum(file.charged_bytes for file in files)
            missing = reserve_bytes + needed_bytes - shutil.disk_usage(self.path).free
            if missing > total:
                raise OSError(
                    errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: less than {reserve_bytes >> 20} MiB are free"
                )
            if missing > 0:
                limit_bytes = min(limit_bytes, total + needed_bytes - missing)
            if total + needed_bytes > limit_bytes:
                target = min(limit_bytes - needed_bytes, int(limit_bytes * _KEPT_ON_EVICTION))
                files.sort(key=lambda file: file.used_ns, reverse=True)
                while files and total > target:
                    oldest = files.pop()
                    total -= oldest.charged_bytes
                    oldest.path.unlink(missing_ok=True)
                self._remove_empty()
        return files

    def verify_all(self, files: Iterable[StoredFile]) -> Iterator[Verdict]:
        """Check files one by one and delete those that are damaged; those deleted meanwhile have no verdict."""
        for file in files:
            try:
                self.verify(file)
            except FileNotFoundError:
                continue
            except DamagedBlockError as error:
                file.path.unlink(missing_ok=True)
                yield Verdict(file, str(error), is_deleted=True)
            except (ForeignBlockError, OSError) as error:
                yield Verdict(file, str(error), is_deleted=False)
            else:
                yield Verdict(file, "", is_deleted=False)

    def verify(self, file: StoredFile) -> None:
        """Read a file as a whole and check it, whatever model it is of; raises as ``read_block`` does."""
        with file.path.open("rb") as stream:
            header = read_header(stream.read(HEADER_BYTES))
        if header.key != file.key or header.identity.digest.hex() != file.path.parent.name:
            raise ForeignBlockError("a block of another model, layout or text")
        if file.num_bytes != header.identity.file_bytes:
            raise DamagedBlockError(f"has {file.num_bytes} bytes, expected {header.identity.file_bytes}")
        read_block(file.path, header.identity, header.key, bytearray(file.num_bytes))

    def clear(self, model: CachedModel) -> None:
        """Delete the blocks of a model; a process that uses them goes on without. Raises OSError."""
        with self.lock():
            for file in _files(model.folder):
                file.path.unlink(missing_ok=True)
            self._remove_empty()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the folder against every process; raises OSError if it stays taken or cannot be made."""
        from filelock import FileLock, Timeout  # noqa: PLC0415  only needed by whoever writes

        lock = FileLock(self.path / "lock", mode=0o600)
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout:
            raise TimeoutError(f"{self.path}: another process holds the lock for too long") from None
        try:
            yield
        finally:
            lock.release()

    def _model_folders(self) -> list[Path]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(Path(entry.path) for entry in entries if _is_model_folder(entry))
        except FileNotFoundError:
            return []

    def _remove_empty(self) -> None:
        for folder in self._model_folders():
            if not _files(folder):
                with suppress(OSError):  # somebody may be about to write into it
                    (folder / _ABOUT).unlink(missing_ok=True)
                    folder.rmdir()


def _is_model_folder(entry: os.DirEntry[str]) -> bool:
    return len(entry.name) == 32 and entry.is_dir(follow_symlinks=False)


def _files(folder: Path) -> list[StoredFile]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if key_of(entry.name) is None and not entry.name.endswith(TEMPORARY_SUFFIX):
                    continue
                with suppress(FileNotFoundError):  # deleted since by another process
                    status = entry.stat(follow_symlinks=False)
                    found.append(StoredFile(Path(entry.path), status.st_size, status.st_mtime_ns))
    except FileNotFoundError:
        return []
    return found


def _removed_as_stale(file: StoredFile) -> bool:
    if file.key is not None or file.used_ns > time.time_ns() - int(_STALE_SECONDS * 1e9):
        return False
    file.path.unlink(missing_ok=True)
    return True


def _open_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name != "posix":
        return
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

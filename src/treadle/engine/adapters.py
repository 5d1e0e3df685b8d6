"""The adapters (LoRA) of a loaded model: which there are by name, and the memory they take together.

Leaves to others: reading and computing them (the runner) and which request wants which (``ModelHost``).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from struct import pack
from typing import Any, Protocol

from treadle.engine.file_digest import digest_files, stamp_files
from treadle.errors import CapacityError, UsageError

__all__ = ["MAX_NUM_ADAPTERS", "Adapter", "AdapterInfo", "AdapterWeights", "Adapters", "base_model_hint"]

MAX_NUM_ADAPTERS = 16


class AdapterWeights(Protocol):
    """What a runner made of an adapter file."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes it takes in memory."""


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that requests may name; ``scale`` multiplies the one its file gives, ``num_bytes`` are in memory."""

    name: str
    path: Path
    scale: float
    num_bytes: int


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter as requests hold it; its memory is freed with the last of them once it was unloaded.

    ``identity``, 16 bytes, depends on every byte of its file and on the scale, and on nothing else: KV blocks of
    adapters with the same identity are interchangeable.
    """

    info: AdapterInfo
    identity: bytes
    weights: AdapterWeights = field(repr=False)


class Adapters:
    """Adapters by name; any thread may load, unload and find them.

    Args:
        read: Reads a file with a scale; raises TreadleError where it cannot.
        max_num: How many may be in memory at once, those that were unloaded and are still in use among them.
        max_bytes: How much memory they may take together.
    """

    def __init__(self, read: Callable[[Path, float], AdapterWeights], *, max_num: int, max_bytes: int) -> None:
        self._read: Callable[[Path, float], AdapterWeights] | None = read
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._by_name: dict[str, Adapter] = {}
        self._coming: set[str] = set()
        self._num = 0  # in memory or coming
        self._num_bytes = 0
        # Filled when an adapter goes, which may be in any thread and while the lock is held.
        self._gone: deque[int] = deque()

    @property
    def infos(self) -> list[AdapterInfo]:
        """Return the adapters that requests may name, the oldest first."""
        with self._lock:
            return [adapter.info for adapter in self._by_name.values()]

    def load(self, name: str, path: str | Path, scale: float = 1.0) -> AdapterInfo:
        """Read an adapter file, after which requests may name it.

        Raises:
            UsageError: The name is taken or empty, there is no such file, the scale is no number, the engine takes no
                adapters, or the model was closed.
            ModelFileError: The file is broken, or no adapter of this model.
            CapacityError: There are too many adapters, or not enough memory for one more.
        """
        path = Path(path)
        read, file_bytes = self._admit(name, path, scale)
        kept_bytes = 0
        try:
            adapter = _read(read, name, path, float(scale))
            with self._lock:
                self._check_room(adapter.info.num_bytes - file_bytes, path)
                if self._read is None:
                    raise _closed()
                self._by_name[name] = adapter
                kept_bytes = adapter.info.num_bytes
                weakref.finalize(adapter, self._gone.append, kept_bytes)
        finally:
            with self._lock:
                self._coming.discard(name)
                self._num_bytes += kept_bytes - file_bytes
                self._num -= not kept_bytes
        return adapter.info

    def unload(self, name: str) -> None:
        """Refuse new requests for an adapter from now on; raises UsageError if there is none of that name."""
        with self._lock:
            if name not in self._by_name:
                raise self._unknown(name)
            del self._by_name[name]

    def find(self, name: str) -> Adapter:
        """Return an adapter to hold for as long as a request runs; raises UsageError if there is none of that name."""
        with self._lock:
            if name not in self._by_name:
                raise self._unknown(name)
            return self._by_name[name]

    def close(self) -> None:
        """Let go of all adapters, and of the model behind them; may be called twice."""
        with self._lock:
            self._by_name.clear()
            self._read = None

    def _admit(self, name: str, path: Path, scale: float) -> tuple[Callable[[Path, float], AdapterWeights], int]:
        """Check what can be checked before the file is read, and keep room for it."""
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"adapter: expected a name, found {name!r:.80}")
        is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
        if not is_number or not abs(scale) <= sys.float_info.max:  # an integer may be beyond what a float holds
            raise UsageError(f"adapter {name}: expected a scale, found {scale!r:.80}")
        try:
            file_bytes = path.stat().st_size
        except OSError as error:
            raise _unreadable(path, error) from None
        with self._lock:
            if self._read is None:
                raise _closed()
            if name in self._by_name or name in self._coming:
                raise UsageError(f"an adapter {name} is loaded already", hint="unload it first, or choose another name")
            self._check_room(file_bytes, path)
            if self._num >= self._max_num:
                raise CapacityError(
                    f"adapter {name}: {self._num} adapters are in memory, the limit here",
                    hint="unload one, or raise max_adapters",
                )
            self._coming.add(name)
            self._num += 1
            self._num_bytes += file_bytes
            return self._read, file_bytes

    def _check_room(self, num_bytes: int, path: Path) -> None:
        while self._gone:
            self._num -= 1
            self._num_bytes -= self._gone.popleft()
        if self._num_bytes + num_bytes > self._max_bytes:
            raise CapacityError(
                f"{path} needs {num_bytes / 1e6:,.0f} MB, and adapters may take {self._max_bytes / 1e6:,.0f} MB "
                f"together, of which {self._num_bytes / 1e6:,.0f} MB are taken",
                hint="unload one, or set aside more when the model is loaded: adapter_memory",
            )

    def _unknown(self, name: object) -> UsageError:
        known = ", ".join(self._by_name) or "none"
        return UsageError(f"there is no adapter {name!r:.80}; loaded: {known}")


def _read(read: Callable[[Path, float], AdapterWeights], name: str, path: Path, scale: float) -> Adapter:
    try:
        stamp = stamp_files([path])
        weights = read(path, scale)
        digest = digest_files([path])
        if stamp_files([path]) != stamp:
            raise UsageError(f"adapter {name}: {path} changes while it is read")
    except OSError as error:
        raise _unreadable(path, error) from None
    identity = blake2b(digest + pack("<f", scale), digest_size=16).digest()
    return Adapter(AdapterInfo(name, path, scale, weights.num_bytes), identity, weights)


def _closed() -> UsageError:
    return UsageError("the model was closed", hint="load it again to go on")


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"adapter file {path}: {error.strerror or error}", hint="give the path of a GGUF file that holds a LoRA adapter"
    )


def base_model_hint(metadata: Mapping[str, Any]) -> str:
    """Return which model an adapter says that it is for."""
    told = [metadata.get(key) for key in ("general.base_model.0.organization", "general.base_model.0.name")]
    base = " ".join(each for each in told if isinstance(each, str))
    of = f", {base!r:.120}, the adapter says" if base else ""
    return f"an adapter fits only the model that it was trained on{of}"

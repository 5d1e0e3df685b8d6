"""Counts events of threads through perf_event_open(2).

Leaves to others: the reasons for what is refused (``counters_reasons``), and other ways to count.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from treadle.hardware.counters_events import EVENTS, HARDWARE_EVENTS, SOFTWARE_EVENTS, Event, Reading
from treadle.hardware.kernel_files import read_integer

__all__ = ["Kernel", "KernelCounters", "PerfEvents", "processor_units"]

_SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241}
_CLOSE_ON_EXEC = 8
# type, size, config, sample period, sample type, read format, flags, and what counting does not use: the first
# version of perf_event_attr, which every kernel takes.
_ATTRIBUTES = struct.Struct("=IIQQQQQ16x")
_READ_FORMAT = 1 | 2  # the time enabled and the time running follow the value
_READING = struct.Struct("=QQQ")
_INHERIT, _EXCLUDE_KERNEL, _INHERIT_THREADS_ONLY = 1 << 1, 1 << 5, 1 << 35
_UNIT_SHIFT, _ANY_UNIT = 32, 0  # events may name their kind of core, in processors with several kinds


class Kernel(Protocol):
    """The three calls of the system; each raises OSError."""

    def open(self, attributes: bytes, thread_id: int, group: int) -> int:
        """Return the descriptor of a new counter of this thread, 0 for the calling one; group -1 is its own."""

    def read(self, descriptor: int) -> bytes:
        """Return value, time enabled and time running as three 64-bit numbers."""

    def close(self, descriptor: int) -> None:
        """Give the counter back."""


class PerfEvents:
    """The kernel this process runs on."""

    def __init__(self) -> None:
        number = _SYSTEM_CALLS.get(platform.machine()) if sys.maxsize > 2**32 else None
        self._number = number if sys.platform.startswith("linux") else None
        if self._number is not None:
            self._syscall = ctypes.CDLL(None, use_errno=True).syscall
            self._syscall.restype = ctypes.c_long

    def open(self, attributes: bytes, thread_id: int, group: int) -> int:
        """Call perf_event_open; ENOSYS where its number is not known."""
        if self._number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        descriptor = self._syscall(
            ctypes.c_long(self._number),
            ctypes.c_char_p(attributes),
            ctypes.c_int(thread_id),
            ctypes.c_int(-1),  # on whichever CPU the thread runs
            ctypes.c_int(group),
            ctypes.c_ulong(_CLOSE_ON_EXEC),
        )
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(descriptor)

    def read(self, descriptor: int) -> bytes:
        """Read a counter."""
        return os.read(descriptor, _READING.size)

    def close(self, descriptor: int) -> None:
        """Close a counter."""
        os.close(descriptor)


@dataclass(frozen=True)
class _Settings:
    """What all counters of one opening share."""

    is_user_only: bool
    inherits: int  # the flags
    units: Sequence[int]


class KernelCounters:
    """Open counters of some threads."""

    def __init__(self, kernel: Kernel, thread_ids: Sequence[int], *, inherits: bool, units: Sequence[int]) -> None:
        """Open every event the kernel grants.

        Args:
            kernel: Opens, reads and closes.
            thread_ids: The threads; those that have ended meanwhile are left out.
            inherits: Whether threads count that these start later.
            units: The kinds of cores in a processor with several, from ``processor_units``.

        Raises:
            OSError: Nothing may be counted at all.
        """
        self._kernel = kernel
        self._descriptors: dict[Event, dict[int, list[int]]] = {}
        self.errors: dict[Event, int] = {}  # the error number of each event that was refused
        self._settings = self._probe(inherits, units)
        try:
            for thread_id in thread_ids:
                self._open_thread(thread_id)
        except BaseException:
            self.close()
            raise

    @property
    def is_user_only(self) -> bool:
        """Tell whether the time in the kernel is left out."""
        return self._settings.is_user_only

    def read(self) -> dict[Event, dict[int, Reading]]:
        """Return the readings by event and thread."""
        return {
            event: {thread_id: self._read(descriptors) for thread_id, descriptors in threads.items()}
            for event, threads in self._descriptors.items()
        }

    def close(self) -> None:
        """Give all counters back; may be called again."""
        for event in list(self._descriptors):
            self._drop(event)

    def _probe(self, inherits: bool, units: Sequence[int]) -> _Settings:
        """Find out what the kernel lets this process count, with an event that every machine has."""
        kinds = [_INHERIT | _INHERIT_THREADS_ONLY, _INHERIT] if inherits else [0]
        refused: OSError | None = None
        for is_user_only in (False, True):
            for flags in kinds:  # kernels before 5.13 do not know the first one
                settings = _Settings(is_user_only, flags, units)
                try:
                    self._kernel.close(self._kernel.open(_attributes("task_clock_ns", settings), 0, -1))
                except OSError as error:
                    refused = refused or error
                    continue
                return settings
        assert refused is not None
        raise refused

    def _open_thread(self, thread_id: int) -> None:
        for event, known in EVENTS.items():
            if event in self.errors or (self.is_user_only and event in SOFTWARE_EVENTS):
                continue  # what happens in the kernel, such as a switch, would not be counted
            leaders = self._descriptors.get(known.partner, {}).get(thread_id, []) if known.partner else []
            try:
                opened = self._open_event(event, thread_id, leaders)
            except ProcessLookupError:
                return
            except OSError as error:
                self.errors[event] = error.errno or errno.EIO
                self._drop(event)  # a count of some threads only would mislead
            else:
                self._descriptors.setdefault(event, {})[thread_id] = opened

    def _open_event(self, event: Event, thread_id: int, leaders: Sequence[int]) -> list[int]:
        """Open an event on every kind of core; it counts in the moments in which its leader does, if it has one."""
        has_kinds = event in HARDWARE_EVENTS and len(self._settings.units) > 1
        units = self._settings.units if has_kinds else [_ANY_UNIT]
        opened: list[int] = []
        try:
            for index, unit in enumerate(units):
                attributes = _attributes(event, self._settings, unit)
                opened.append(self._open_in_group(attributes, thread_id, leaders[index] if leaders else -1))
        except BaseException:
            self._close_all(opened)
            raise
        return opened

    def _open_in_group(self, attributes: bytes, thread_id: int, group: int) -> int:
        if group != -1:
            # A processor may have too few counters for both at once.
            with suppress(OSError):
                return self._kernel.open(attributes, thread_id, group)
        return self._kernel.open(attributes, thread_id, -1)

    def _read(self, descriptors: Sequence[int]) -> Reading:
        """Add up the kinds of cores: a thread is on one of them at a time."""
        parts = [_READING.unpack(self._kernel.read(descriptor)) for descriptor in descriptors]
        return Reading(sum(part[0] for part in parts), max(part[1] for part in parts), sum(part[2] for part in parts))

    def _drop(self, event: Event) -> None:
        for descriptors in self._descriptors.pop(event, {}).values():
            self._close_all(descriptors)

    def _close_all(self, descriptors: Collection[int]) -> None:
        for descriptor in descriptors:
            with suppress(OSError):
                self._kernel.close(descriptor)


def processor_units(root: Path) -> Mapping[str, int]:
    """Return the counting units of the processor, one for each kind of core, with the number the kernel gave each.

    Empty where there is none, as in most virtual machines.
    """
    found: dict[str, int] = {}
    for folder in sorted((root / "sys/bus/event_source/devices").glob("*")):
        # The unit of a processor with several kinds of cores lists its CPUs; others than processors have a cpumask.
        if folder.name == "cpu" or (folder / "cpus").exists():
            number = read_integer(folder / "type")
            if number is not None:
                found[folder.name] = number
    return found


def _attributes(event: Event, settings: _Settings, unit: int = _ANY_UNIT) -> bytes:
    flags = settings.inherits | (_EXCLUDE_KERNEL if settings.is_user_only else 0)
    known = EVENTS[event]
    config = known.config | unit << _UNIT_SHIFT
    return _ATTRIBUTES.pack(known.type, _ATTRIBUTES.size, config, 0, 0, _READ_FORMAT, flags)

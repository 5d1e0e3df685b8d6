"""Counts what the processor and the kernel did for the threads of this process, in the best way that is allowed here.

Leaves to others: what the counts mean for a model (``engine``'s profiler).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from treadle.errors import UsageError
from treadle.hardware.counters_events import EVENTS, HARDWARE_EVENTS, Count, Counts, Event, Reading
from treadle.hardware.counters_files import process_readings, thread_readings
from treadle.hardware.counters_kernel import Kernel, KernelCounters, PerfEvents, processor_units
from treadle.hardware.counters_program import PerfProgram, PerfProgramError
from treadle.hardware.counters_reasons import not_counted, refusal, user_space_note
from treadle.hardware.kernel_files import parse_integer

__all__ = ["EVENTS", "Count", "CounterSet", "Counts", "Event", "open_counters"]

_WHOLE_PROCESS = 0  # in place of a thread


class CounterSet:
    """Counters of some threads of this process, which count from the moment they were opened until they are closed."""

    def __init__(self, thread_ids: Sequence[int] | None, kernel: Kernel, root: Path) -> None:
        """Open what can be opened; see ``open_counters``."""
        self._thread_ids = thread_ids
        self._root = root
        self._kernel: KernelCounters | None = None
        self._program: PerfProgram | None = None
        self._hardware_reason = ""
        try:
            self._kernel = KernelCounters(
                kernel,
                _all_threads(root) if thread_ids is None else thread_ids,
                inherits=thread_ids is None,
                units=list(processor_units(root).values()),
            )
        except OSError as error:
            self._hardware_reason = refusal(error.errno or 0, root)
            self._start_program()

    def read(self) -> Counts:
        """Return the counts as they stand; subtract an earlier reading with ``Counts.minus``."""
        readings = self._file_readings()
        if self._kernel is not None:
            readings |= self._kernel.read()
        if self._program is not None:
            readings |= self._program_readings(self._program)
        return Counts(readings, {event: self._why_not(event) for event in EVENTS if event not in readings})

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what holds for all counts."""
        if self._kernel is not None:
            return (user_space_note(self._root),) if self._kernel.is_user_only else ()
        if self._program is not None and self._program.is_user_only:
            return ("counted by `perf`, without the time in the kernel",)
        return ("counted by `perf`",) if self._program is not None else ()

    def close(self) -> None:
        """Give all counters back; may be called again."""
        if self._kernel is not None:
            self._kernel.close()
        if self._program is not None:
            self._program.close()

    def __enter__(self) -> CounterSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_program(self) -> None:
        try:
            self._program = PerfProgram(HARDWARE_EVENTS, self._thread_ids)
        except PerfProgramError as error:
            self._hardware_reason = f"{self._hardware_reason}; and {error}"

    def _program_readings(self, program: PerfProgram) -> dict[Event, dict[int, Reading]]:
        try:
            return {event: {_WHOLE_PROCESS: reading} for event, reading in program.read().items()}
        except PerfProgramError as error:
            program.close()
            self._program, self._hardware_reason = None, f"{self._hardware_reason}; and {error}"
            return {}

    def _file_readings(self) -> dict[Event, dict[int, Reading]]:
        if self._thread_ids is not None:
            return thread_readings(self._thread_ids, self._root)
        whole = {event: {_WHOLE_PROCESS: Reading(value)} for event, value in process_readings().items()}
        moves = thread_readings(_all_threads(self._root), self._root).get("cpu_migrations")
        return whole if moves is None else {**whole, "cpu_migrations": moves}

    def _why_not(self, event: Event) -> str:
        if event not in HARDWARE_EVENTS:
            return "not available, because this system does not tell it"
        if self._kernel is not None:
            return not_counted(self._kernel.errors.get(event, errno.ESRCH), self._root)
        if self._program is not None:
            return "not available, because `perf` could not count it"
        return self._hardware_reason


def open_counters(
    thread_ids: Sequence[int] | None = None, *, kernel: Kernel | None = None, root: Path = Path("/")
) -> CounterSet:
    """Start counting every event that may be counted here; use it in a ``with`` statement.

    The processor's counters come from perf_event_open(2), or from the program ``perf`` where that is refused; the
    others from perf_event_open or procfs. What is not counted says why in its count. A processor with fewer counters
    than events takes turns, and says so.

    Args:
        thread_ids: Threads of this process, as ``threading.get_native_id`` names them. None counts all that there are,
            and those that they start meanwhile.
        kernel: Stands for the calls of the system.
        root: The folder that holds ``proc`` and ``sys``.

    Raises:
        UsageError: None of these threads is one of this process.
    """
    alive = _all_threads(root)
    if thread_ids is not None and not set(thread_ids) & set(alive):
        raise UsageError(f"thread_ids: expected threads of this process ({len(alive)} run), found {list(thread_ids)}")
    return CounterSet(thread_ids, kernel or PerfEvents(), root)


def _all_threads(root: Path) -> list[int]:
    try:
        found = [parse_integer(folder.name) for folder in (root / "proc/self/task").iterdir()]
    except OSError:
        return [threading.get_native_id()]
    return sorted(number for number in found if number is not None)

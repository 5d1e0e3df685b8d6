"""Counts events through the program ``perf``, which may be allowed to where this process is not.

Leaves to others: counting without it (``counters_kernel``), and when to turn to it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from treadle.hardware.counters_events import EVENTS, Event, Reading

__all__ = ["PerfProgram", "PerfProgramError", "parse_report"]

_SEPARATOR = ";"  # what perf's manual advises, as it quotes nothing
# An event may come with the unit that counted it and with what it left out: cpu_core/cycles/, cycles:u.
_EVENT_NAME = re.compile(r"(?:[\w.-]+/)?(?P<name>[\w-]+)/?(?P<modifier>:?[ukhGHpP]+)?")
_SECONDS = 10.0  # to start, to answer and to end; far more than it takes


class PerfProgramError(Exception):
    """``perf`` is missing or does not count; the text is part of a sentence."""


@dataclass
class Report:
    """What one run of ``perf`` counted; the events that it could not count are absent."""

    readings: dict[Event, Reading] = field(default_factory=dict)
    is_user_only: bool = False


class PerfProgram:
    """Runs ``perf`` beside this process until it is closed.

    What it counted it tells when it ends, so each reading ends it and starts it anew; what the threads do in these few
    hundredths of a second is not counted.
    """

    def __init__(self, events: Sequence[Event], thread_ids: Sequence[int] | None) -> None:
        """Start counting, in all threads of this process if none are given.

        Raises:
            PerfProgramError: It is not installed, too old, or may not count.
        """
        path = shutil.which("perf") if sys.platform.startswith("linux") else None
        if path is None:
            raise PerfProgramError("no `perf` is installed")
        threads = None if thread_ids is None else ",".join(map(str, thread_ids))
        self._names: dict[str, Event] = {EVENTS[event].perf_name: event for event in events}
        target = ["-p", str(os.getpid())] if threads is None else ["-t", threads]
        self._command = [path, "stat", "-x", _SEPARATOR, "--no-scale", "-e", ",".join(self._names), *target]
        self._total = Report()
        self._run: _Run | None = _Run(self._command)

    @property
    def is_user_only(self) -> bool:
        """Tell whether the time in the kernel is left out, as far as the readings until now say."""
        return self._total.is_user_only

    def read(self) -> dict[Event, Reading]:
        """Return what was counted since the start.

        Raises:
            PerfProgramError: It broke off.
        """
        if self._run is None:
            raise PerfProgramError("`perf` has ended")
        run, self._run = self._run, None
        self._add(parse_report(run.finish(), self._names))
        self._run = _Run(self._command)
        return dict(self._total.readings)

    def close(self) -> None:
        """End the program; may be called again."""
        run, self._run = self._run, None
        if run is not None:
            run.kill()

    def _add(self, report: Report) -> None:
        self._total.is_user_only |= report.is_user_only
        for event, reading in report.readings.items():
            before = self._total.readings.get(event, Reading(0))
            self._total.readings[event] = _sum(before, reading)


class _Run:
    """One run of ``perf`` that counts from the end of the constructor to ``finish``."""

    def __init__(self, command: Sequence[str]) -> None:
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        try:
            # Silent until told to count, so that nobody has to guess when it has attached itself.
            control = ["-D", "-1", "--control", f"fd:{orders_out},{answers_in}"]
            self._process = subprocess.Popen(
                [*command[:2], *control, *command[2:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(orders_out, answers_in),
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self._close_pipes()
            raise PerfProgramError(f"`perf` does not start: {error.strerror}") from error
        finally:
            os.close(orders_out)
            os.close(answers_in)
        self._order(b"enable\n")

    def finish(self) -> str:
        """Stop counting and return the report."""
        self._order(b"disable\n")
        self._process.send_signal(signal.SIGINT)
        return self._output()

    def kill(self) -> None:
        """End it without a report."""
        self._process.kill()
        self._process.communicate()
        self._close_pipes()

    def _order(self, order: bytes) -> None:
        """Give an order and wait until it is carried out."""
        with suppress(BrokenPipeError):
            os.write(self._orders, order)
        ready, _, _ = select.select([self._answers], [], [], _SECONDS)
        if ready and os.read(self._answers, 64).startswith(b"ack"):
            return
        if not ready:
            self.kill()
            raise PerfProgramError(f"`perf` did not answer in {_SECONDS:.0f} s")
        raise PerfProgramError(f"`perf` failed: {_first_line(self._output())}")

    def _output(self) -> str:
        try:
            _, text = self._process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise PerfProgramError(f"`perf` did not end in {_SECONDS:.0f} s") from error
        self._close_pipes()
        return text.decode(errors="replace")

    def _close_pipes(self) -> None:
        os.close(self._orders)
        os.close(self._answers)


def parse_report(text: str, names: Mapping[str, Event]) -> Report:
    """Read what ``perf stat -x ';' --no-scale`` wrote.

    A line is value, unit, event, time in which the counter ran in nanoseconds, and its share of the time in percent;
    fields may stand before and after. Lines of other kinds are passed over.

    Args:
        text: Its standard error output.
        names: The events that were asked for, by perf's name.
    """
    report = Report()
    for line in text.splitlines():
        fields = [word.strip() for word in line.split(_SEPARATOR)]
        for index in range(2, len(fields) - 2):
            match = _EVENT_NAME.fullmatch(fields[index])
            event = names.get(match["name"]) if match else None
            if match is None or event is None:
                continue
            report.is_user_only |= match["modifier"] is not None
            reading = _reading(fields[index - 2], fields[index - 1], fields[index + 1], fields[index + 2])
            if reading is not None:
                # A processor with several kinds of cores has a line for each.
                report.readings[event] = _sum(report.readings.get(event, Reading(0)), reading)
            break
    return report


def _reading(value: str, unit: str, running: str, percent: str) -> Reading | None:
    try:
        number, running_ns, share = float(value), int(running), float(percent) / 100
    except ValueError:  # <not supported>, <not counted>
        return None
    factor = 1e6 if unit == "msec" else 1
    enabled_ns = round(running_ns / share) if 0 < share < 1 else running_ns
    return Reading(round(number * factor), enabled_ns, running_ns)


def _sum(one: Reading, other: Reading) -> Reading:
    return Reading(one.value + other.value, one.enabled_ns + other.enabled_ns, one.running_ns + other.running_ns)


def _first_line(text: str) -> str:
    """Return the first line that says something."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and line not in ("Error:", "Events disabled")), "it said nothing")

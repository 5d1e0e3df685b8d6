"""Counting through the program `perf`: a fake one on PATH, the real one where it is installed, and what it prints."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
import threading
from pathlib import Path
from typing import Protocol

import pytest
from machines import FakeRoot, open_descriptors

from patience import PATIENCE_SECONDS
from treadle.hardware import counters_program
from treadle.hardware.counters import EVENTS, Count, open_counters
from treadle.hardware.counters_events import HARDWARE_EVENTS, SOFTWARE_EVENTS, Event, Reading
from treadle.hardware.counters_program import PerfProgram, PerfProgramError, parse_report

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="perf is a program of Linux")


class Install(Protocol):
    def __call__(self, report: str = ..., before: str = ...) -> Path: ...


NAMES: dict[str, Event] = {known.perf_name: event for event, known in EVENTS.items()}

# Obeys orders as perf does, and ends with the report in the variable REPORT.
FAKE = """\
    #!{python}
    import os, re, signal, sys
    with open({log!r}, "a") as log:
        print(*sys.argv[1:], file=log)
    {before}
    orders, answers = map(int, re.fullmatch(r"fd:(\\d+),(\\d+)", sys.argv[sys.argv.index("--control") + 1]).groups())
    def end(*_):
        sys.stderr.write("Events disabled\\nEvents enabled\\n" + {report!r})
        sys.stderr.flush()
        os._exit(130)
    signal.signal(signal.SIGINT, end)
    while order := os.read(orders, 100):
        assert order in (b"enable\\n", b"disable\\n"), order
        os.write(answers, b"ack\\n\\0")
    """

REPORT = """\
# started on Mon Nov 30 12:00:00 2026

3000;;cycles:u;1000;50.00;2.5;GHz
1500;;instructions:u;2000;100.00;0.5;insn per cycle
;;;;;0.1;stalled cycles per insn
<not supported>;;LLC-load-misses;0;100.00;;
<not counted>;;dTLB-load-misses:u;0;100.00;;
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that puts a fake `perf` on PATH and returns the file that it writes its arguments to."""

    def write(report: str = REPORT, before: str = "") -> Path:
        monkeypatch.setattr(counters_program, "_SECONDS", PATIENCE_SECONDS)
        log = tmp_path / "arguments"
        script = textwrap.dedent(FAKE).format(python=sys.executable, log=str(log), report=report, before=before)
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "perf").write_text(script)
        (folder / "perf").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return log

    return write


def forbidden(root: FakeRoot) -> Path:
    return root({"proc/sys/kernel/perf_event_paranoid": "3\n", "proc/self/task/7/status": "Name:\tx\n"})


class Forbids:
    def open(self, attributes: bytes, thread_id: int, group: int) -> int:
        raise PermissionError(errno.EACCES, f"refused: {len(attributes)} bytes, {thread_id}, {group}")

    def read(self, descriptor: int) -> bytes:
        raise AssertionError(descriptor)

    def close(self, descriptor: int) -> None:
        raise AssertionError(descriptor)


def test_perf_counts_what_the_kernel_refuses(install: Install, fake_root: FakeRoot) -> None:
    log = install()
    open_files = open_descriptors()
    with open_counters([7], kernel=Forbids(), root=forbidden(fake_root)) as counters:
        first = counters.read()
        assert first["cycles"] == Count(6000, None, is_scaled=True)
        assert first["instructions"] == Count(1500)
        assert first["llc_load_misses"] == Count(None, "not available, because `perf` could not count it")
        second = counters.read().minus(first)
        assert second["cycles"] == Count(6000, None, is_scaled=True)
        assert second["instructions"] == Count(1500)
        assert counters.notes == ("counted by `perf`, without the time in the kernel",)
    assert open_descriptors() <= open_files
    events = ",".join(EVENTS[event].perf_name for event in HARDWARE_EVENTS)
    lines = log.read_text().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("stat -D -1 --control fd:") for line in lines)
    assert all(line.endswith(f" -x ; --no-scale -e {events} -t 7") for line in lines)


def test_perf_counts_the_whole_process(install: Install) -> None:
    log = install()
    program = PerfProgram(["cycles"], None)
    program.close()
    program.close()
    assert log.read_text().endswith(f"-e cycles -p {os.getpid()}\n")
    with pytest.raises(PerfProgramError, match="has ended"):
        program.read()


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            "sys.exit('Error:\\nAccess to performance monitoring and observability operations is limited.\\nMore.')",
            "`perf` failed: Access to performance monitoring and observability operations is limited.",
        ),
        ("sys.exit('  Error: unknown option `control\\'\\n Usage:')", "`perf` failed: Error: unknown option `control'"),
        ("sys.exit(2)", "`perf` failed: it said nothing"),
    ],
)
def test_a_perf_that_fails_is_quoted(install: Install, fake_root: FakeRoot, before: str, expected: str) -> None:
    install(before=before)
    open_files = open_descriptors()
    with open_counters([7], kernel=Forbids(), root=forbidden(fake_root)) as counters:
        why_not = counters.read()["cycles"].why_not or ""
    assert why_not.startswith("not available, because kernel.perf_event_paranoid is 3: `sudo sysctl")
    assert why_not.endswith(f"; and {expected}")
    assert open_descriptors() <= open_files


def test_a_perf_that_cannot_be_run_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "perf").write_text("#!/nonexistent\n")
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    open_files = open_descriptors()
    with pytest.raises(PerfProgramError, match="does not start: No such file"):
        PerfProgram(["cycles"], None)
    assert open_descriptors() <= open_files


def test_a_perf_that_breaks_off_is_told_once_and_not_asked_again(install: Install, fake_root: FakeRoot) -> None:
    install()
    with open_counters([7], kernel=Forbids(), root=forbidden(fake_root)) as counters:
        assert counters.read()["instructions"].value == 1500
        (Path(os.environ["PATH"]) / "perf").write_text(f"#!{sys.executable}\nraise SystemExit('it is gone')\n")
        for _ in range(2):
            assert (counters.read()["instructions"].why_not or "").endswith("; and `perf` failed: it is gone")
        assert counters.notes == ()


@pytest.mark.skipif(shutil.which("perf") is None, reason="the program perf is not installed")
def test_the_real_perf_counts_this_thread() -> None:
    try:
        program = PerfProgram(SOFTWARE_EVENTS, [threading.get_native_id()])
    except PerfProgramError as error:
        pytest.skip(f"perf may not count here: {error}")
    try:
        assert sum(range(100_000)) > 0
        first = program.read()
        assert sum(range(100_000)) > 0
        second = program.read()
    finally:
        program.close()
    assert 0 < first["task_clock_ns"].value < second["task_clock_ns"].value


@pytest.mark.parametrize(
    ("text", "event", "expected"),
    [
        ("705211;;cycles;705211;100.00;;", "cycles", Reading(705211, 705211, 705211)),
        ("0.71;msec;task-clock;705211;100.00;0.003;CPUs utilized", "task_clock_ns", Reading(710000, 705211, 705211)),
        ("12;;cache-misses:u;500;25.00;;", "cache_misses", Reading(12, 2000, 500)),
        # With a time stamp, a CPU and the number of CPUs before it, a variance after it.
        ("1.000;S0;2;9;;cache-references;7;100.00;0.2%;;", "cache_references", Reading(9, 7, 7)),
        # Old versions end after the share.
        ("9;;dTLB-load-misses;7;100.00", "dtlb_load_misses", Reading(9, 7, 7)),
        ("9;;armv8_pmuv3/instructions/u;7;100.00;;", "instructions", Reading(9, 7, 7)),
        ("5;;cpu_core/cycles/;4;40.00;;\n6;;cpu_atom/cycles/;6;60.00;;", "cycles", Reading(11, 20, 10)),
    ],
)
def test_a_line_of_the_report_is_read(text: str, event: Event, expected: Reading) -> None:
    assert parse_report(text, NAMES).readings == {event: expected}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<not supported>;;cycles;0;100.00;;",
        "<not counted>;;cycles:u;0;100.00;;",
        "1;;branches;5;100.00;;",
        ";;;;;12;insn per cycle",
        "cycles;cycles",
        "1;;cycles",
        "nine;;cycles;5;100.00",
        "Events enabled\n# started on Mon",
    ],
)
def test_what_is_no_count_is_passed_over(text: str) -> None:
    assert parse_report(text, NAMES).readings == {}


def test_the_report_tells_whether_the_kernel_is_left_out() -> None:
    assert not parse_report("1;;cycles;5;100.00;;", NAMES).is_user_only
    assert parse_report("1;;cycles:u;5;100.00;;", NAMES).is_user_only
    assert parse_report("<not supported>;;cpu_core/cycles/u;0;100.00;;", NAMES).is_user_only

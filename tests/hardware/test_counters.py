"""Hardware counters: what this kernel counts, what a processor with counters would, and the reason where none counts."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from machines import FakeRoot, open_descriptors

from treadle.errors import UsageError
from treadle.hardware.counters import EVENTS, Count, Event, open_counters
from treadle.hardware.counters_events import HARDWARE_EVENTS, SOFTWARE_EVENTS, Counts, Reading

ATTRIBUTES = struct.Struct("=IIQQQQQ16x")
INHERIT, EXCLUDE_KERNEL, THREADS_ONLY = 1 << 1, 1 << 5, 1 << 35
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts through Linux's interfaces")


@dataclass
class Opened:
    type: int
    config: int
    flags: int
    thread_id: int
    group: int


def no_refusal(opened: Opened) -> int:
    return 0


@dataclass
class FakeKernel:
    """Grants what ``refuses`` gives no error number for; each reading goes up by ``step``."""

    refuses: Callable[[Opened], int] = no_refusal
    step: tuple[int, int, int] = (100, 10, 10)
    opened: dict[int, Opened] = field(default_factory=dict)
    num_opened: int = 0
    num_reads: dict[int, int] = field(default_factory=dict)

    def open(self, attributes: bytes, thread_id: int, group: int) -> int:
        kind, num_bytes, config, period, sample, read_format, flags = ATTRIBUTES.unpack(attributes)
        assert (num_bytes, period, sample, read_format) == (64, 0, 0, 3)
        assert group == -1 or group in self.opened
        counter = Opened(kind, config, flags, thread_id, group)
        error = self.refuses(counter)
        if error:
            raise OSError(error, os.strerror(error))
        self.num_opened += 1
        self.opened[100 + self.num_opened] = counter
        return 100 + self.num_opened

    def read(self, descriptor: int) -> bytes:
        assert descriptor in self.opened
        number = self.num_reads[descriptor] = self.num_reads.get(descriptor, 0) + 1
        return struct.pack("=QQQ", *(number * part for part in self.step))

    def close(self, descriptor: int) -> None:
        del self.opened[descriptor]


@pytest.fixture(autouse=True)
def _no_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def machine(
    *threads: int, paranoid: int = 1, seccomp: int = 0, unit: bool = True, virtual: bool = False
) -> dict[str, str]:
    files = {
        "proc/sys/kernel/perf_event_paranoid": f"{paranoid}\n",
        "proc/self/status": f"Name:\tpython\nSeccomp:\t{seccomp}\n",
        "proc/cpuinfo": f"processor\t: 0\nflags\t\t: fpu{' hypervisor' if virtual else ''}\n",
    }
    if unit:
        files["sys/bus/event_source/devices/cpu/type"] = "4\n"
    for thread in threads:
        task = f"proc/self/task/{thread}"
        files[f"{task}/stat"] = f"{thread} (a) b) R 1 1 1 0 -1 4194304 {thread} 0 3 0 9 9 0 0 20 0 1 0\n"
        files[f"{task}/status"] = "voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t5\n"
        files[f"{task}/sched"] = "python (7, #threads: 1)\nse.nr_migrations       :           6\n"
        files[f"{task}/schedstat"] = "70000 2696002 2\n"
    return files


def refuse(error: int, *events: Event) -> Callable[[Opened], int]:
    codes = {(EVENTS[event].type, EVENTS[event].config) for event in events}
    return lambda opened: error if not events or (opened.type, opened.config) in codes else 0


@LINUX
def test_this_kernel_counts_the_faults_and_the_time_of_real_threads() -> None:
    with open_counters() as counters:
        before = counters.read()
        written = b"x" * (8 << 20)
        worker = threading.Thread(target=lambda: sum(range(100_000)))
        worker.start()
        worker.join()
        found = counters.read().minus(before)
    assert written
    assert (found["task_clock_ns"].value or 0) > 0
    assert (found["minor_faults"].value or 0) >= 1
    for event, count in found.items():
        assert (count.value is None) == (count.why_not is not None), event


@LINUX
def test_real_counters_leave_no_descriptor_open() -> None:
    before = open_descriptors()
    with open_counters([threading.get_native_id()]) as counters:
        assert counters.read()["task_clock_ns"].value is not None
    counters.close()
    assert open_descriptors() <= before


def test_every_event_is_the_sum_over_the_threads(fake_root: FakeRoot) -> None:
    kernel = FakeKernel()
    with open_counters([7, 8], kernel=kernel, root=fake_root(machine(7, 8, 9))) as counters:
        assert {opened.thread_id for opened in kernel.opened.values()} == {7, 8}
        assert {opened.flags for opened in kernel.opened.values()} == {0}
        first = counters.read()
        assert dict(first.items()) == dict.fromkeys(EVENTS, Count(200))
        assert dict(counters.read().minus(first).items()) == dict.fromkeys(EVENTS, Count(200))
        assert counters.notes == ()
    assert kernel.opened == {}


def test_all_threads_and_those_to_come_are_counted(fake_root: FakeRoot) -> None:
    kernel = FakeKernel()
    with open_counters(kernel=kernel, root=fake_root(machine(7, 8))):
        assert {opened.thread_id for opened in kernel.opened.values()} == {7, 8}
        assert {opened.flags for opened in kernel.opened.values()} == {INHERIT | THREADS_ONLY}
    old = FakeKernel(lambda opened: errno.EINVAL if opened.flags & THREADS_ONLY else 0)
    with open_counters(kernel=old, root=fake_root(machine(7))):
        assert {opened.flags for opened in old.opened.values()} == {INHERIT}


def test_ratios_come_from_counts_of_the_same_moments(fake_root: FakeRoot) -> None:
    kernel = FakeKernel()
    with open_counters([7], kernel=kernel, root=fake_root(machine(7))) as counters:
        leaders = [opened.group for opened in kernel.opened.values() if opened.group != -1]
        assert [kernel.opened[leader].config for leader in leaders] == [0, 2]  # cycles, cache references
        assert counters.read().ratio("instructions", "cycles") == 1.0
    # One that has too few counters for both takes turns.
    kernel = FakeKernel(lambda opened: errno.EINVAL if opened.group != -1 else 0)
    with open_counters([7], kernel=kernel, root=fake_root(machine(7))) as counters:
        assert counters.read()["instructions"] == Count(100)


def test_a_counter_that_took_turns_is_scaled_and_says_so(fake_root: FakeRoot) -> None:
    kernel = FakeKernel(step=(100, 30, 10))
    with open_counters([7], kernel=kernel, root=fake_root(machine(7))) as counters:
        assert counters.read()["cycles"] == Count(300, None, is_scaled=True)
    kernel = FakeKernel(step=(0, 30, 0))
    with open_counters([7], kernel=kernel, root=fake_root(machine(7))) as counters:
        assert counters.read()["cycles"] == Count(
            None, "not available, because other programs hold the processor's counters"
        )


def test_differences_are_scaled_by_the_time_between_the_readings() -> None:
    def counts(**threads: Reading) -> Counts:
        return Counts({"cycles": {ord(key): value for key, value in threads.items()}}, dict.fromkeys(EVENTS, "no"))

    before = counts(a=Reading(1000, 100, 10), b=Reading(7, 1, 1))
    after = counts(a=Reading(1600, 140, 30), c=Reading(5, 3, 3))
    assert after.minus(before)["cycles"] == Count(600 * 40 // 20 + 5, None, is_scaled=True)
    assert after["instructions"] == Count(None, "no")
    assert after.ratio("instructions", "cycles") is None
    rates = Counts(
        {"instructions": {0: Reading(2000)}, "cycles": {0: Reading(0)}, "cache_misses": {0: Reading(3)}},
        dict.fromkeys(EVENTS, "no"),
    )
    assert rates.ratio("cache_misses", "instructions") == 0.0015
    assert rates.ratio("instructions", "cycles") is None


def test_each_kind_of_core_has_a_counter_of_its_own(fake_root: FakeRoot) -> None:
    units = {
        "sys/bus/event_source/devices/cpu_core/type": "4\n",
        "sys/bus/event_source/devices/cpu_core/cpus": "0-7\n",
        "sys/bus/event_source/devices/cpu_atom/type": "10\n",
        "sys/bus/event_source/devices/cpu_atom/cpus": "8-15\n",
        "sys/bus/event_source/devices/uncore_imc/type": "20\n",
        "sys/bus/event_source/devices/uncore_imc/cpumask": "0\n",
    }
    kernel = FakeKernel(step=(100, 20, 10))
    with open_counters([7], kernel=kernel, root=fake_root(machine(7, unit=False) | units)) as counters:
        cycles = {opened.config for opened in kernel.opened.values() if opened.type == 0 and opened.config & 0xFF == 0}
        assert cycles == {4 << 32, 10 << 32}
        # Half the time on each: nothing is missing.
        assert counters.read()["cycles"] == Count(200)
        assert counters.read()["context_switches"] == Count(400, None, is_scaled=True)


def test_what_the_kernel_hides_of_itself_is_left_out_and_its_own_events_come_from_procfs(fake_root: FakeRoot) -> None:
    kernel = FakeKernel(lambda opened: 0 if opened.flags & EXCLUDE_KERNEL else errno.EACCES)
    with open_counters([7], kernel=kernel, root=fake_root(machine(7, paranoid=2))) as counters:
        assert all(opened.type != 1 for opened in kernel.opened.values())
        found = counters.read()
        (note,) = counters.notes
    assert found["cycles"] == Count(100)
    expected = {
        "minor_faults": 7,
        "major_faults": 3,
        "context_switches": 9,
        "cpu_migrations": 6,
        "task_clock_ns": 70000,
    }
    assert {event: found[event].value for event in SOFTWARE_EVENTS} == expected
    assert note == (
        "without the time in the kernel, since kernel.perf_event_paranoid is 2: "
        "`sudo sysctl kernel.perf_event_paranoid=1`"
    )


@pytest.mark.parametrize(
    ("error", "files", "expected"),
    [
        (
            errno.EACCES,
            machine(7, paranoid=3),
            "kernel.perf_event_paranoid is 3: `sudo sysctl kernel.perf_event_paranoid=1`",
        ),
        (
            errno.EACCES,
            machine(7, paranoid=4) | {".dockerenv": ""},
            "kernel.perf_event_paranoid is 4: `sudo sysctl kernel.perf_event_paranoid=1` on the host",
        ),
        (
            errno.EPERM,
            machine(7, paranoid=2, seccomp=2) | {".dockerenv": ""},
            "the seccomp filter of Docker forbids perf_event_open: start it with a profile that allows it",
        ),
        (
            errno.EPERM,
            machine(7, paranoid=2),
            "a security module of the kernel forbids perf_event_open: see `sudo dmesg`",
        ),
        (errno.ENOSYS, machine(7), "Treadle does not know the number of perf_event_open on this architecture"),
        (errno.EMFILE, machine(7), "this process may open no more files: `ulimit -n 4096`"),
        (errno.EIO, machine(7), f"perf_event_open failed: {os.strerror(errno.EIO)}"),
    ],
)
def test_a_kernel_that_grants_nothing_is_explained(
    fake_root: FakeRoot, error: int, files: dict[str, str], expected: str
) -> None:
    with open_counters([7], kernel=FakeKernel(refuse(error)), root=fake_root(files)) as counters:
        found = counters.read()
    for event in HARDWARE_EVENTS:
        assert found[event] == Count(None, f"not available, because {expected}; and no `perf` is installed")
    assert found["context_switches"] == Count(9)


def test_a_kernel_without_the_call_is_explained(fake_root: FakeRoot) -> None:
    files = machine(7)
    del files["proc/sys/kernel/perf_event_paranoid"]
    with open_counters([7], kernel=FakeKernel(refuse(errno.ENOSYS)), root=fake_root(files)) as counters:
        assert (counters.read()["cycles"].why_not or "").startswith(
            "not available, because this kernel has no perf_event_open"
        )


@pytest.mark.parametrize(
    ("error", "files", "expected"),
    [
        (errno.ENOENT, machine(7, unit=False, virtual=True), "the hypervisor offers no performance counters"),
        (errno.ENOENT, machine(7, unit=False), "the kernel knows no performance counters of this processor"),
        (errno.ENOENT, machine(7, virtual=True), "this processor does not count it"),
        (errno.EINVAL, machine(7), "this processor does not count it"),
        (errno.EACCES, machine(7), "the kernel does not let this process count it"),
        (errno.EMFILE, machine(7), "this process may open no more files: `ulimit -n 4096`"),
        (errno.EIO, machine(7), f"perf_event_open failed: {os.strerror(errno.EIO)}"),
    ],
)
def test_an_event_that_is_refused_is_explained(
    fake_root: FakeRoot, error: int, files: dict[str, str], expected: str
) -> None:
    kernel = FakeKernel(refuse(error, "llc_load_misses"))
    with open_counters([7], kernel=kernel, root=fake_root(files)) as counters:
        found = counters.read()
    assert found["llc_load_misses"] == Count(None, f"not available, because {expected}")
    assert found["cycles"] == Count(100)


def test_an_event_that_only_some_threads_get_is_not_counted_at_all(fake_root: FakeRoot) -> None:
    full = FakeKernel(lambda opened: errno.EMFILE if opened.thread_id == 8 and opened.config == 7 else 0)
    with open_counters([7, 8], kernel=full, root=fake_root(machine(7, 8))) as counters:
        found = counters.read()
        assert found["stalled_cycles_frontend"].value is None
        assert found["stalled_cycles_backend"] == Count(200)
    assert full.opened == {}


def test_threads_that_end_meanwhile_are_left_out(fake_root: FakeRoot) -> None:
    kernel = FakeKernel(lambda opened: errno.ESRCH if opened.thread_id == 8 else 0)
    with open_counters([7, 8], kernel=kernel, root=fake_root(machine(7, 8))) as counters:
        assert counters.read()["cycles"] == Count(100)


def test_counters_are_given_back_when_opening_is_interrupted(fake_root: FakeRoot) -> None:
    def interrupt(opened: Opened) -> int:
        if opened.thread_id == 8 and opened.config == 3:
            raise KeyboardInterrupt
        return 0

    kernel = FakeKernel(interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_counters([7, 8], kernel=kernel, root=fake_root(machine(7, 8)))
    assert kernel.opened == {}


def test_threads_of_other_processes_are_refused(fake_root: FakeRoot) -> None:
    with pytest.raises(UsageError, match=r"expected threads of this process \(2 run\), found \[9\]"):
        open_counters([9], kernel=FakeKernel(), root=fake_root(machine(7, 8)))


def test_without_procfs_the_process_is_still_counted(tmp_path: Path) -> None:
    with open_counters(kernel=FakeKernel(refuse(errno.ENOSYS)), root=tmp_path) as counters:
        found = counters.read()
    assert (found["task_clock_ns"].value or 0) > 0
    assert found["cpu_migrations"] == Count(None, "not available, because this system does not tell it")

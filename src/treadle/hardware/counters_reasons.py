"""Says in a sentence why an event is not counted, or not all of it, and what to type where that helps.

Leaves to others: trying to count.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from treadle.hardware.counters_kernel import processor_units
from treadle.hardware.kernel_files import read_fields, read_integer
from treadle.hardware.surroundings import find_container, find_hypervisor

__all__ = ["not_counted", "refusal", "user_space_note"]

_PARANOID_FILE = "proc/sys/kernel/perf_event_paranoid"
_LEAST_PARANOID_OF_ALL = 3  # Debian's and Ubuntu's kernels know it, and Android's: nobody may count but root
_LEAST_PARANOID_OF_KERNEL = 2
_ALLOW = "`sudo sysctl kernel.perf_event_paranoid=1`"
_TOO_MANY_FILES, _FORBIDDEN = (errno.EMFILE, errno.ENFILE), (errno.EACCES, errno.EPERM)
_UNKNOWN_EVENT = (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV)
_OPEN_FILES = "not available, because this process may open no more files: `ulimit -n 4096`"


def refusal(error_number: int, root: Path) -> str:
    """Say why the kernel lets this process count nothing at all."""
    if not sys.platform.startswith("linux"):
        return "not available, because only Linux lets programs count"
    if error_number in _TOO_MANY_FILES:
        return _OPEN_FILES
    if error_number in _FORBIDDEN:
        return f"not available, because {_who_forbids(root)}"
    if error_number == errno.ENOSYS and (root / _PARANOID_FILE).exists():
        return "not available, because Treadle does not know the number of perf_event_open on this architecture"
    if error_number == errno.ENOSYS:
        return "not available, because this kernel has no perf_event_open"
    return f"not available, because perf_event_open failed: {os.strerror(error_number)}"


def not_counted(error_number: int, root: Path) -> str:
    """Say why one event is not counted although the kernel counts others."""
    if error_number in _TOO_MANY_FILES:
        return _OPEN_FILES
    if error_number in _FORBIDDEN:
        return "not available, because the kernel does not let this process count it"
    if error_number not in _UNKNOWN_EVENT:
        return f"not available, because perf_event_open failed: {os.strerror(error_number)}"
    if processor_units(root):
        return "not available, because this processor does not count it"
    if find_hypervisor(root) is not None:
        return "not available, because the hypervisor offers no performance counters"
    return "not available, because the kernel knows no performance counters of this processor"


def user_space_note(root: Path) -> str:
    """Say why the time in the kernel is left out."""
    level = read_integer(root / _PARANOID_FILE)
    if level is not None and level >= _LEAST_PARANOID_OF_KERNEL:
        return f"without the time in the kernel, since kernel.perf_event_paranoid is {level}: {_sysctl(root)}"
    return "without the time in the kernel, which this process may not count"


def _who_forbids(root: Path) -> str:
    level = read_integer(root / _PARANOID_FILE)
    if level is not None and level >= _LEAST_PARANOID_OF_ALL:
        return f"kernel.perf_event_paranoid is {level}: {_sysctl(root)}"
    if read_fields(root / "proc/self/status").get("Seccomp") == "2":
        place = find_container(root) or "this process"
        return f"the seccomp filter of {place} forbids perf_event_open: start it with a profile that allows it"
    return "a security module of the kernel forbids perf_event_open: see `sudo dmesg`"


def _sysctl(root: Path) -> str:
    return f"{_ALLOW} on the host" if find_container(root) else _ALLOW

"""Takes files, TCP ports and other processes out of a process's own reach, by Landlock (Linux 5.13 and later).

It knows the standard library alone, so that a child can load it before it runs what is to be held. What Landlock does
not see (stat, chmod, sockets other than TCP) is for ``seccomp``, amounts are for ``rlimits`` and ``cgroups``.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HOLDS_SIGNALS", "abi", "restrict"]

# The version from which on a process without a namespace of its own reaches no other one.
HOLDS_SIGNALS = 6

# The same numbers on every machine.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
WANT_VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38

# linux/landlock.h; the number behind a right is the ABI that brought it.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
FILES_1 = (1 << 13) - 1
REFER_2, TRUNCATE_3, IOCTL_DEV_5 = (1 << bit for bit in range(13, 16))
TCP_4 = 0b11  # bind, connect
SCOPES_6 = 0b11  # abstract sockets, signals

TO_READ = EXECUTE | READ_FILE | READ_DIR
TO_WRITE = (FILES_1 | REFER_2 | TRUNCATE_3 | IOCTL_DEV_5) & ~(MAKE_CHAR | MAKE_BLOCK)
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE_3 | IOCTL_DEV_5


def abi() -> int:
    """The version of Landlock that this kernel speaks, 0 if it has none or has it switched off."""
    if sys.platform != "linux":
        return 0
    try:
        return _syscall(CREATE_RULESET, None, 0, WANT_VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[Path], writable: Sequence[Path], *, allow_tcp: bool) -> None:
    """Leave this thread and what it starts only these files and folders, for good.

    ``readable`` may be read and run, ``writable`` may be changed as well, and devices there be used, but none made;
    both go for all that is beneath. As far as the kernel's version goes, TCP (4), controls of other devices (5), and
    signals and abstract sockets to anyone outside (6) are refused too. Descriptors that are open stay what they are.
    To be called in a fresh child, before it has threads. Raises OSError with the step that failed; then nothing is
    restricted.
    """
    version = abi()
    if version == 0:
        raise OSError("this kernel has no Landlock; it comes with Linux 5.13, if `lsm=` of the kernel names it")
    files = _files_handled(version)
    ruleset = _create_ruleset(version, files, 0 if allow_tcp else TCP_4)
    try:
        for path, rights in [*((path, TO_READ) for path in readable), *((path, TO_WRITE) for path in writable)]:
            _allow(ruleset, path, rights & files)
        _no_new_privileges()
        _syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _files_handled(version: int) -> int:
    rights = FILES_1
    for since, right in ((2, REFER_2), (3, TRUNCATE_3), (5, IOCTL_DEV_5)):
        rights |= right if version >= since else 0
    return rights


def _create_ruleset(version: int, files: int, tcp: int) -> int:
    """What is handled here and not allowed by a rule is refused; older kernels want the structure shorter."""
    attributes = struct.pack("=QQQ", files, tcp, SCOPES_6)
    size = 8 if version < 4 else 16 if version < 6 else 24
    return _syscall(CREATE_RULESET, ctypes.create_string_buffer(attributes[:size], size), size, 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= OF_A_FILE
        rule = struct.pack("=Qi", rights, descriptor)
        _syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
    finally:
        os.close(descriptor)


def _no_new_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*map(ctypes.c_ulong, (NO_NEW_PRIVILEGES, 1, 0, 0, 0))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"new privileges could not be forgone: {os.strerror(number)}")


def _syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """What the kernel answers. Raises OSError with the name of the call."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    answer = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given))
    if answer < 0:
        error = ctypes.get_errno()
        name = {CREATE_RULESET: "create_ruleset", ADD_RULE: "add_rule", RESTRICT_SELF: "restrict_self"}[number]
        raise OSError(error, f"landlock_{name} failed: {os.strerror(error)}")
    return answer

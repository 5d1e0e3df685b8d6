"""Assembles the filter that keeps system calls with a history of holes from a sandboxed program.

A deny-list, not an allow-list: the programs are anybody's compilers and interpreters, whose calls change with every
libc, and what holds them is the namespaces and the missing capabilities; the filter only takes the kernel's rarely
trodden paths out of reach. Calls younger than this list do not exist for the program, so a new kernel adds no hole.
Loading the filter is for the modules beside this one.
"""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterable
from errno import EACCES, EAFNOSUPPORT, ENOSYS, EPERM, EPROTONOSUPPORT

from treadle.agents.sandbox.syscalls import MACHINES, OUTWARD, SYSCALLS
from treadle.errors import UsageError

__all__ = ["program"]


# Their structures lie in memory, where a filter cannot look (clone3: namespaces; openat2: set-user-ID files) or which
# holds calls of its own (io_uring). ENOSYS is what programs expect of older kernels, and they fall back.
MISSING = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
NEWEST = 469  # file_setattr; the numbers are the same on both machines since 424

NAMESPACE_FLAGS = 0x7E02_0000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
NEW_TIME = 0x80  # CLONE_NEWTIME; to clone itself these bits are a signal number
O_CREAT, O_TMPFILE_BIT = 0o100, 0o20_000_000
SET_ID_BITS = 0o6000
FILE_TYPE, CHARACTER_DEVICE, BLOCK_DEVICE = 0o170_000, 0o020_000, 0o060_000
# Typing into the caller's terminal (TIOCSTI, and TIOCLINUX through a selection), and loading a line discipline.
TERMINAL_REQUESTS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423}
PLAIN_PERSONALITIES = (0, 0xFFFF_FFFF)  # Linux, and the question which one it is
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
# IP, ICMP, TCP, UDP, ICMPv6 and multipath TCP, which Go tries first; not SCTP, DCCP, L2TP, SMC and the like.
INTERNET_PROTOCOLS = (0, 1, 6, 17, 58, 262)
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
NETLINK_ROUTE = 0  # asked by getaddrinfo and getifaddrs; the other families are how firewalls and audit are set

# Opcodes of classic BPF, and what a filter may answer (linux/bpf_common.h, linux/seccomp.h).
LOAD, AND, RETURN = 0x20, 0x54, 0x06
IF_EQUAL, IF_ABOVE, IF_ANY_BIT = 0x15, 0x25, 0x45
KILL_PROCESS, ERRNO, ALLOWED = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
# Offsets in struct seccomp_data; of the 64-bit arguments the kernel reads the low half here, so the filter does too.
NUMBER, ARCH, ARGUMENTS = 0, 4, 16

Code = list[tuple[int, int, int, int]]  # opcode, instructions to skip if true, if false, operand


def program(machine: str | None = None, *, has_shared_memory: bool = True, has_namespaces: bool = True) -> bytes:
    """The filter as an array of ``struct sock_filter``, for ``machine`` (this one by default).

    Without ``has_shared_memory`` memory that outlives the processes' own (memfd, System V) is refused too: nothing
    but a control group counts it. Without ``has_namespaces`` what reaches the machine's other processes, its IPC and
    its network is refused, and what changes files by name past Landlock: modes, owners, times, attributes. Raises
    UsageError for a machine without a table.
    """
    name = machine or platform.machine()
    known = MACHINES.get(name)
    if known is None:
        raise UsageError(f"there is no system call filter for {name!r}; there is for {' and '.join(MACHINES)}")
    code = [
        _load(ARCH),
        *_unless(known.audit_arch, [(RETURN, 0, 0, KILL_PROCESS)]),  # the 32-bit entry has other numbers
        _load(NUMBER),
        *_when(IF_ABOVE, NEWEST, [_fail(ENOSYS)]),  # also every call of the x32 ABI, which starts at 1 << 30
    ]
    bodies = _judged() | {call: [_fail(ENOSYS)] for call in MISSING}
    if not has_namespaces:
        bodies |= _kept_to_itself()
    # A segment of System V stays until its namespace ends, memfd until the process does.
    memory = ("memfd_create", *(["shmget"] if has_namespaces else [])) if has_shared_memory else ()
    left_alone = {*memory, *(OUTWARD if has_namespaces else ())}
    bodies |= {call: [_fail(EPERM)] for call in SYSCALLS if call not in bodies and call not in left_alone}
    for call, body in bodies.items():
        number = SYSCALLS[call][known.column]
        code += [] if number is None else _when(IF_EQUAL, number, body)
    code.append(_allow())
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _judged() -> dict[str, Code]:
    """What decides about a call by its arguments; those that programs make often come first."""
    return {
        "openat": _opening(flags=2, mode=3),
        "open": _opening(flags=1, mode=2),
        "ioctl": [_load(_argument(1)), *_refuse_equal(TERMINAL_REQUESTS.values()), _allow()],
        "clone": _refuse_bits(0, NAMESPACE_FLAGS),
        "socket": _socket(),
        "socketpair": _socket(),
        "creat": _refuse_bits(1, SET_ID_BITS),
        "chmod": _refuse_bits(1, SET_ID_BITS),
        "fchmod": _refuse_bits(1, SET_ID_BITS),
        "fchmodat": _refuse_bits(2, SET_ID_BITS),
        "fchmodat2": _refuse_bits(2, SET_ID_BITS),
        "mknod": _node(mode=1),
        "mknodat": _node(mode=2),
        "unshare": _refuse_bits(0, NAMESPACE_FLAGS | NEW_TIME),
        "personality": [
            _load(_argument(0)),
            *(instruction for known in PLAIN_PERSONALITIES for instruction in _when(IF_EQUAL, known, [_allow()])),
            _fail(EPERM),
        ],
    }


def _opening(*, flags: int, mode: int) -> Code:
    """Refuses to create set-user-ID files: in a workspace they would be the owner's on the host, too."""
    return [
        _load(_argument(flags)),
        *_when(IF_ANY_BIT, O_CREAT | O_TMPFILE_BIT, _refuse_bits(mode, SET_ID_BITS)),
        _allow(),
    ]


def _node(*, mode: int) -> Code:
    devices = _refuse_equal((CHARACTER_DEVICE, BLOCK_DEVICE))
    set_ids = _when(IF_ANY_BIT, SET_ID_BITS, [_fail(EPERM)])
    return [_load(_argument(mode)), *set_ids, (AND, 0, 0, FILE_TYPE), *devices, _allow()]


def _socket() -> Code:
    """Local and internet sockets, and the one netlink family that libc asks for the routes."""
    protocol = _load(_argument(2))
    internet = [
        protocol,
        *(instruction for known in INTERNET_PROTOCOLS for instruction in _when(IF_EQUAL, known, [_allow()])),
        _fail(EPROTONOSUPPORT),
    ]
    netlink = [protocol, *_when(IF_EQUAL, NETLINK_ROUTE, [_allow()]), _fail(EPROTONOSUPPORT)]
    return [
        _load(_argument(0)),
        *_when(IF_EQUAL, AF_UNIX, [_allow()]),
        *_when(IF_EQUAL, AF_INET, internet),
        *_when(IF_EQUAL, AF_INET6, internet),
        *_when(IF_EQUAL, AF_NETLINK, netlink),
        _fail(EAFNOSUPPORT),
    ]


def _kept_to_itself() -> dict[str, Code]:
    """What decides where the machine's own processes and sockets are in reach."""
    local_pair = [_load(_argument(0)), *_when(IF_EQUAL, AF_UNIX, [_allow()]), _fail(EAFNOSUPPORT)]
    modes: dict[str, Code] = {call: [_fail(EPERM)] for call in ("chmod", "fchmod", "fchmodat", "fchmodat2")}
    return {
        **modes,
        "socket": [_fail(EACCES)],
        "socketpair": local_pair,
        # Of their own only, which is 0; so a program that names its own number is refused, too.
        "prlimit64": _only(0, 0),
        "sched_setaffinity": _only(0, 0),
        "sched_setattr": _only(0, 0),
        "sched_setparam": _only(0, 0),
        "sched_setscheduler": _only(0, 0),
        "setpriority": [*_unless_argument(0, PRIO_PROCESS), *_only(1, 0)],
        "ioprio_set": [*_unless_argument(0, IOPRIO_WHO_PROCESS), *_only(1, 0)],
    }


def _only(argument: int, value: int) -> Code:
    return [*_unless_argument(argument, value), _allow()]


def _unless_argument(argument: int, value: int) -> Code:
    return [_load(_argument(argument)), *_unless(value, [_fail(EPERM)])]


def _refuse_bits(argument: int, bits: int) -> Code:
    return [_load(_argument(argument)), *_when(IF_ANY_BIT, bits, [_fail(EPERM)]), _allow()]


def _refuse_equal(values: Iterable[int]) -> Code:
    return [instruction for value in values for instruction in _when(IF_EQUAL, value, [_fail(EPERM)])]


def _when(test: int, operand: int, body: Code) -> Code:
    """``body`` if the test holds for what was loaded last; it must end in an answer on every path."""
    return [(test, 0, len(body), operand), *body]


def _unless(operand: int, body: Code) -> Code:
    return [(IF_EQUAL, len(body), 0, operand), *body]


def _load(offset: int) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, offset)


def _argument(index: int) -> int:
    return ARGUMENTS + 8 * index + (0 if sys.byteorder == "little" else 4)


def _fail(errno: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, ERRNO | errno)


def _allow() -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, ALLOWED)

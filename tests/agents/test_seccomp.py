"""The system call filter: what it answers, by a BPF interpreter written here and by the kernel in a child."""

from __future__ import annotations

import errno
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import seccomp
from treadle.agents.sandbox.syscalls import MACHINES, OUTWARD, SYSCALLS
from treadle.errors import UsageError

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = """
ptrace process_vm_writev mount umount2 move_mount fsopen open_tree pivot_root setns chroot bpf perf_event_open userfaultfd
keyctl add_key request_key init_module kexec_load iopl ioperm swapon reboot syslog acct quotactl open_by_handle_at vhangup
clock_settime
"""
I386, ARM = 0x40000003, 0x40000028


def answer(machine: str, number: int, *arguments: int, arch: int | None = None, **options: bool) -> int:
    """What the filter says to a call, as the kernel's interpreter would."""
    given = [value & (1 << 64) - 1 for value in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    seen = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, ARCH[machine] if arch is None else arch, 0, *given)
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine, **options)))
    accumulator, position = 0, 0
    while True:
        opcode, if_true, if_false, operand = code[position]
        position += 1
        if opcode == 0x20:
            accumulator = struct.unpack_from("=I", seen, operand)[0]
        elif opcode == 0x54:
            accumulator &= operand
        elif opcode == 0x06:
            return operand
        else:
            test = {0x15: accumulator == operand, 0x25: accumulator > operand, 0x45: bool(accumulator & operand)}
            position += if_true if test[opcode] else if_false


def refusal(machine: str, call: str, *arguments: int, **options: bool) -> int | None:
    """The errno a call gets, None if it is allowed."""
    number = SYSCALLS[call][MACHINES[machine].column]
    if number is None:
        pytest.skip(f"{machine} has no {call}")
    said = answer(machine, number, *arguments, **options)
    assert said == ALLOW or said & 0xFFFF0000 == 0x00050000
    return None if said == ALLOW else said & 0xFFFF


@pytest.fixture(params=sorted(ARCH))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_program_is_one_the_kernel_accepts_in_size_and_form(machine: str) -> None:
    code = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    assert len(code) < 4096
    assert all(at + 1 + max(skips) < len(code) for at, (opcode, *skips, _) in enumerate(code) if opcode & 7 == 5)
    assert code[-1][0] == 0x06


def test_another_instruction_set_is_killed_and_so_has_no_calls_at_all(machine: str) -> None:
    for arch in (I386, ARM, *(other for name, other in ARCH.items() if name != machine)):
        assert answer(machine, 0, arch=arch) == KILL


def test_calls_of_the_x32_abi_and_of_coming_kernels_do_not_exist(machine: str) -> None:
    for number in (470, 512, 547, 0x40000000, 0x40000000 | 59, 0xFFFFFFFF):
        assert answer(machine, number) == 0x00050000 | errno.ENOSYS


def test_what_programs_live_on_is_allowed(machine: str) -> None:
    names = {
        "x86_64": {
            "read": 0,
            "mmap": 9,
            "execve": 59,
            "kill": 62,
            "futex": 202,
            "statx": 332,
            "landlock_restrict_self": 446,
        },
        "aarch64": {
            "read": 63,
            "mmap": 222,
            "execve": 221,
            "kill": 129,
            "futex": 98,
            "statx": 291,
            "landlock_restrict_self": 446,
        },
    }
    assert {name: answer(machine, number) for name, number in names[machine].items()} == dict.fromkeys(
        names[machine], ALLOW
    )


@pytest.mark.parametrize("call", REFUSED.split())
def test_what_no_tool_needs_is_refused_whatever_the_arguments(machine: str, call: str) -> None:
    assert refusal(machine, call) == refusal(machine, call, *[(1 << 64) - 1] * 6) == errno.EPERM


@pytest.mark.parametrize("call", ["clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register"])
def test_what_the_filter_cannot_judge_looks_like_an_older_kernel(machine: str, call: str) -> None:
    assert refusal(machine, call) == errno.ENOSYS


def test_threads_and_forks_pass_and_namespaces_do_not(machine: str) -> None:
    thread, fork, vfork = 0x3D0F00, 0x1200011, 0x4111
    assert [refusal(machine, "clone", flags) for flags in (thread, fork, vfork)] == [None] * 3
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert refusal(machine, "clone", namespace | 17) == errno.EPERM
        assert refusal(machine, "unshare", namespace) == errno.EPERM
    assert refusal(machine, "unshare", 0x80) == errno.EPERM
    assert refusal(machine, "unshare", 0x400) is None


@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_only_local_and_internet_sockets_and_the_route_table(machine: str, call: str) -> None:
    unix, inet, inet6, netlink, stream = 1, 2, 10, 16, 0x80001
    allowed = [
        (unix, stream, 0),
        (inet, stream, 6),
        (inet, stream, 0),
        (inet6, 2, 17),
        (inet, stream, 262),
        (netlink, 3, 0),
    ]
    assert [refusal(machine, call, *arguments) for arguments in allowed] == [None] * len(allowed)
    for family in (
        0,
        3,
        4,
        5,
        9,
        17,
        21,
        29,
        30,
        31,
        38,
        40,
        44,
        45,
    ):  # packets, RDS, CAN, TIPC, AF_ALG, vsock, XDP ...
        assert refusal(machine, call, family, stream, 0) == errno.EAFNOSUPPORT
    for family, protocol in (
        (inet, 132),
        (inet, 33),
        (inet6, 115),
        (inet, 256),
        (netlink, 12),
        (netlink, 9),
        (netlink, 16),
    ):
        assert refusal(machine, call, family, stream, protocol) == errno.EPROTONOSUPPORT


def test_terminal_tricks_are_refused_also_behind_high_bits_that_the_kernel_ignores(machine: str) -> None:
    for request in (0x5412, 0x541C, 0x5423):
        assert refusal(machine, "ioctl", 0, request) == refusal(machine, "ioctl", 0, request | 1 << 32) == errno.EPERM
    assert [refusal(machine, "ioctl", 0, request) for request in (0x5401, 0x5413, 0x541B)] == [None] * 3


@pytest.mark.parametrize(
    ("call", "mode_at"), [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)]
)
def test_files_get_no_set_id_bits(machine: str, call: str, mode_at: int) -> None:
    before = [0o7777777] * mode_at
    assert [refusal(machine, call, *before, mode) for mode in (0o4755, 0o2755)] == [errno.EPERM] * 2
    assert refusal(machine, call, *before, 0o1777) is None


@pytest.mark.parametrize(("call", "flags_at"), [("open", 1), ("openat", 2)])
def test_a_mode_counts_only_where_a_file_is_made(machine: str, call: str, flags_at: int) -> None:
    before = [0] * flags_at
    assert (
        refusal(machine, call, *before, 0o101, 0o4755)
        == refusal(machine, call, *before, 0o20200000, 0o4755)
        == errno.EPERM
    )
    assert refusal(machine, call, *before, 0o101, 0o644) is refusal(machine, call, *before, 0o2, 0o4755) is None


@pytest.mark.parametrize(("call", "mode_at"), [("mknod", 1), ("mknodat", 2)])
def test_nodes_are_pipes_sockets_and_files_but_no_devices(machine: str, call: str, mode_at: int) -> None:
    before = [0] * mode_at
    assert [refusal(machine, call, *before, kind | 0o666) for kind in (0o020000, 0o060000)] == [errno.EPERM] * 2
    assert [refusal(machine, call, *before, kind | 0o666) for kind in (0o010000, 0o140000, 0o100000)] == [None] * 3
    assert refusal(machine, call, *before, 0o104755) == errno.EPERM


def test_the_personality_stays_plain(machine: str) -> None:
    assert [refusal(machine, "personality", kind) for kind in (0, 0xFFFFFFFF)] == [None] * 2
    assert [refusal(machine, "personality", kind) for kind in (8, 0x0040000, 0x0100000)] == [errno.EPERM] * 3


def test_memory_that_no_process_owns_can_be_refused_too(machine: str) -> None:
    column = MACHINES[machine].column
    for call in ("memfd_create", "shmget"):
        number = SYSCALLS[call][column]
        assert number is not None
        assert answer(machine, number) == ALLOW
        assert answer(machine, number, has_shared_memory=False) == 0x00050000 | errno.EPERM


def test_without_namespaces_nothing_outside_is_reached(machine: str) -> None:
    calls = [call for call in OUTWARD if SYSCALLS[call][MACHINES[machine].column] is not None]
    elsewhere = (7, 7)
    assert {call: refusal(machine, call, *elsewhere, has_namespaces=False) for call in calls} == dict.fromkeys(
        calls, errno.EPERM
    )
    assert {call: refusal(machine, call, *elsewhere) for call in calls} == dict.fromkeys(calls)
    assert refusal(machine, "fchmodat", 0, 0, 0o644, has_namespaces=False) == errno.EPERM
    unix = 1
    assert refusal(machine, "socket", unix, 1, 0, has_namespaces=False) == errno.EACCES
    assert refusal(machine, "socketpair", unix, 1, 0, has_namespaces=False) is None


def test_without_namespaces_a_process_may_still_set_itself(machine: str) -> None:
    own = {"prlimit64": (0,), "sched_setaffinity": (0,), "setpriority": (0, 0), "ioprio_set": (1, 0)}
    assert [refusal(machine, call, *arguments, has_namespaces=False) for call, arguments in own.items()] == [None] * 4
    assert refusal(machine, "setpriority", 2, 0, has_namespaces=False) == errno.EPERM  # all of the user's


def test_without_namespaces_no_memory_outlives_the_processes(machine: str) -> None:
    assert refusal(machine, "shmget", has_namespaces=False) == errno.EPERM
    assert refusal(machine, "memfd_create", has_namespaces=False) is None


def test_a_machine_without_a_table_is_named() -> None:
    with pytest.raises(UsageError, match=r"'riscv64'.*x86_64 and aarch64"):
        seccomp.program("riscv64")


PROBES = r"""
import ctypes, errno, os, signal, socket, subprocess, sys, threading
from treadle.agents.sandbox import seccomp
from treadle.agents.sandbox.syscalls import MACHINES, SYSCALLS
from treadle.agents.sandbox.inside.nursery import drop_rights, install_filter
drop_rights()
install_filter(seccomp.program())
libc = ctypes.CDLL(None, use_errno=True)

def raises(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "allowed"

def number(name, *arguments):
    ctypes.set_errno(0)
    column = MACHINES[os.uname().machine].column
    libc.syscall(SYSCALLS[name][column], *map(ctypes.c_long, arguments))
    return errno.errorcode[ctypes.get_errno()]

thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout.strip())
print(number("ptrace", 0, 0, 0, 0), number("unshare", 0x10000000), number("clone3", 0, 0), number("keyctl", 0, 0, 0))
print(raises(socket.socket, socket.AF_ALG), raises(socket.socket, socket.AF_INET))
open("own", "w").close()
print(raises(os.chmod, "own", 0o4755), raises(os.chmod, "own", 0o755), raises(os.mknod, "device", 0o020666, 0x103))
"""


def in_child(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if platform.system() != "Linux" or platform.machine() not in ARCH:
        pytest.skip(f"no system call filter on {platform.system()} {platform.machine()}")
    environment = {"PYTHONPATH": str(Path(treadle.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_the_kernel_answers_as_the_interpreter_does(tmp_path: Path) -> None:
    done = in_child(PROBES, tmp_path)
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        ["thread", "child", "EPERM EPERM ENOSYS EPERM", "EAFNOSUPPORT allowed", "EPERM allowed EPERM"],
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit entry is one of x86-64")
def test_the_32_bit_entry_kills(tmp_path: Path) -> None:
    source = """
import ctypes, mmap
from treadle.agents.sandbox import seccomp
from treadle.agents.sandbox.inside.nursery import drop_rights, install_filter
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000" "cd80" "c3"))  # mov eax, getpid; int 0x80; ret
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
drop_rights()
install_filter(seccomp.program())
function()
print("survived")
"""
    done = in_child(source, tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "")

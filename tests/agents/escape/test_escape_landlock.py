"""Attempts to get past Landlock and the filter of system calls alone, as they stand where there is no bubblewrap.

The machine's processes, files and sockets are all there to be tried.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
from collections.abc import Iterator

import pytest
from host import Host, sleeping
from prison import Prison, amply

from treadle.agents.sandbox import bubblewrap, landlock
from treadle.errors import SandboxUnavailableError

# Other runs of these tests on this machine sleep for other times.
SECONDS = 2_000_000 + os.getpid()


@pytest.fixture
def walled(prison: Prison, monkeypatch: pytest.MonkeyPatch) -> Prison:
    if landlock.abi() < landlock.HOLDS_SIGNALS:
        pytest.skip(f"Landlock of this kernel is at version {landlock.abi()}, {landlock.HOLDS_SIGNALS} holds signals")

    def missing() -> str:
        raise SandboxUnavailableError("there is no bubblewrap")

    monkeypatch.setattr(bubblewrap, "program", missing)
    return prison


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user that is none of the sandbox's business."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def tried(walled: Prison, *calls: str, setup: str = "") -> dict[str, str]:
    """What became of each call: the name of its error, or its value."""
    code = f"""
import ctypes, errno, os, resource, signal, socket
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    value = getattr(libc, name)(*arguments)
    if value == -1:
        raise OSError(ctypes.get_errno(), name)
    return value
{setup}
for tried in {calls!r}:
    try:
        print(tried, "->", repr(eval(tried)))
    except OSError as error:
        print(tried, "->", errno.errorcode.get(error.errno, type(error).__name__))
"""
    outcome = walled.python(code)
    assert (outcome.status, outcome.stderr.text) == ("exited", "")
    return dict(line.split(" -> ", 1) for line in outcome.stdout.text.splitlines())


def test_what_a_program_is_for_works(walled: Prison) -> None:
    outcome = walled.shell(
        "echo text > file; mkdir folder; mv file folder/moved; cat folder/moved; date >/dev/null; python3 -c 'print(6 * 7)'"
    )
    assert (outcome.stdout.text, outcome.stderr.text) == ("text\n42\n", "")
    assert (walled.workspace / "folder/moved").read_text() == "text\n"


def test_files_of_the_machine_are_not_read(walled: Prison, host: Host) -> None:
    (walled.workspace / "link").symlink_to(host.secret)
    paths = [
        str(host.secret),
        "link",
        "/etc/shadow",
        "/proc/1/environ",
        "/proc/self/environ",
        f"/proc/{os.getpid()}/mem",
    ]
    answers = tried(walled, *(f"open({path!r}).read()" for path in paths), "os.listdir('/root')", "os.listdir('/proc')")
    assert set(answers.values()) == {"EACCES"}


def test_files_of_the_machine_are_not_changed(walled: Prison, host: Host) -> None:
    """Modes, owners, times and attributes are past Landlock, so here it is the filter that says no."""
    path = repr(str(host.secret))
    before = host.secret.stat()
    answers = tried(
        walled,
        f"open({path}, 'w')",
        f"os.truncate({path}, 0)",
        f"os.unlink({path})",
        f"os.rename({path}, 'stolen')",
        f"os.link({path}, 'hard')",
        f"os.chmod({path}, 0o666)",
        f"os.chown({path}, {os.getuid()}, {os.getgid()})",
        f"os.utime({path})",
        f"os.setxattr({path}, 'user.mark', b'x')",
        f"open({str(host.secret.parent / 'new')!r}, 'w')",
        "os.mknod('disk', 0o060666, os.makedev(254, 0))",
        "open('/dev/kmsg', 'w')",
    )
    assert set(answers.values()) <= {"EACCES", "EPERM", "EXDEV"}
    after = host.secret.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_processes_of_the_machine_are_not_touched(walled: Prison, victim: subprocess.Popen[bytes]) -> None:
    pid = victim.pid
    before = resource.prlimit(pid, resource.RLIMIT_CPU), os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid)
    answers = tried(
        walled,
        f"os.kill({pid}, signal.SIGKILL)",
        f"os.kill({os.getpid()}, 0)",
        f"signal.pidfd_send_signal(os.pidfd_open({pid}), signal.SIGKILL)",
        f"call('ptrace', 16, {pid}, 0, 0)",
        f"resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))",
        f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        f"os.sched_setaffinity({pid}, os.sched_getaffinity(0))",
    )
    assert set(answers.values()) <= {"EPERM", "EACCES"}
    assert victim.poll() is None
    assert before == (
        resource.prlimit(pid, resource.RLIMIT_CPU),
        os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getaffinity(pid),
    )


def test_no_socket_is_reached(walled: Prison) -> None:
    path = walled.workspace / "socket"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        named.bind(str(path))
        named.listen()
        abstract.bind(f"\0treadle-walls-{os.getpid()}")
        abstract.listen()
        answers = tried(
            walled,
            f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}))",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX).connect('socket')",
            f"socket.socket(socket.AF_UNIX).connect('\\0treadle-walls-{os.getpid()}')",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        )
        assert set(answers.values()) == {"EACCES"}
        assert tried(walled, "len(socket.socketpair())").popitem()[1] == "2"


def test_memory_that_processes_share_by_number_is_not_shared(walled: Prison) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o1666)
    assert segment >= 0
    try:
        answers = tried(
            walled,
            f"call('shmat', {segment}, None, 0)",
            "call('shmget', 0, 4096, 0o1666)",
            f"call('shmctl', {segment}, 0, None)",
        )
        assert set(answers.values()) == {"EPERM"}
    finally:
        libc.shmctl(segment, 0, None)


def test_rights_are_gone_and_limits_stay(walled: Prison) -> None:
    """Also for root, who is root here: no namespace makes somebody else of it."""
    answers = tried(
        walled,
        "effective()",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100_000, 100_000))",
        "resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "call('sethostname', b'x', 1)",
        "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "os.chroot('.')",
        "os.setuid(os.getuid() + 1)",
        setup="""
import struct, subprocess, sys
def effective():
    # From a new program, which is when root has its rights given back.
    source = "import ctypes; d = ctypes.create_string_buffer(24); h = (ctypes.c_uint32 * 2)(0x20080522, 0); ctypes.CDLL(None).capget(h, d); print(d.raw.hex())"
    return int(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout, 16)
_setrlimit = resource.setrlimit
def setrlimit(*arguments):
    try:
        _setrlimit(*arguments)
    except ValueError:
        raise PermissionError(1, "not allowed") from None
resource.setrlimit = setrlimit
""",
    )
    assert answers.pop("effective()") == "0"
    assert set(answers.values()) <= {"EPERM"}


@pytest.mark.parametrize(
    "script",
    [
        f"setsid sleep {SECONDS} & echo hi",
        f"(setsid sh -c 'sleep {SECONDS} & exit' & exit); echo hi",
        f"setsid nohup env -i sleep {SECONDS} >/dev/null 2>&1 & echo hi",
    ],
)
def test_what_stays_in_the_background_ends_with_the_program(walled: Prison, script: str) -> None:
    outcome = walled.shell(script)
    assert (outcome.status, outcome.stdout.text) == ("exited", "hi\n")
    assert not sleeping(SECONDS)


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"],
)
def test_what_never_ends_is_ended(walled: Prison, code: str) -> None:
    outcome = walled.python(code, amply(wall_seconds=0.3, num_processes=30))
    assert outcome.status in ("timeout", "processes", "cpu")


def test_what_waits_for_the_program_is_not_its_to_kill(walled: Prison) -> None:
    assert tried(walled, "os.kill(os.getppid(), signal.SIGKILL)").popitem()[1] == "EPERM"

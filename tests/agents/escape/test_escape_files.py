"""Attempts to read or change what belongs to the machine: files, devices, kernel settings, the processes' secrets."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from host import Host
from prison import Prison

from treadle.agents.sandbox import landlock
from treadle.agents.sandbox.outcome import Outcome

Attempt = Callable[..., Outcome]


def printed(outcome: Outcome) -> list[str]:
    assert (outcome.status, outcome.stderr.text) == ("exited", "")
    return outcome.stdout.text.splitlines()


def tried(attempt: Attempt, *calls: str, setup: str = "") -> dict[str, str]:
    """What became of each call: the name of its error, or its value."""
    code = f"""
import ctypes, errno, os, signal, socket, sys, time
from pathlib import Path
{setup}
for tried in {calls!r}:
    try:
        print(tried, "->", repr(eval(tried)))
    except OSError as error:
        print(tried, "->", errno.errorcode.get(error.errno, type(error).__name__))
"""
    lines = printed(attempt(code))
    return dict(line.split(" -> ", 1) for line in lines)


REFUSED = {
    "EPERM",
    "EACCES",
    "ENOENT",
    "EROFS",
    "ENOTDIR",
    "ENOSYS",
    "EXDEV",
    "EINVAL",
    "ENXIO",
    "EIO",
    "ENODEV",
    "ETXTBSY",
}


def test_homes_and_secrets_of_the_machine_are_not_there(attempt: Attempt, host: Host) -> None:
    paths = ["/etc/shadow", "/etc/sudoers", "/root/.bashrc", "/root/.ssh", "/home", "/var", "/opt", "/srv", "/boot"]
    paths += ["/mnt", "/media", "/run/docker.sock", "/var/run/docker.sock", "/run/systemd", str(host.secret)]
    answers = tried(attempt, *(f"os.stat({path!r})" for path in paths))
    assert set(answers.values()) == {"ENOENT"}


def test_links_out_of_the_workspace_lead_nowhere(attempt: Attempt, prison: Prison, host: Host) -> None:
    (prison.workspace / "by-host").symlink_to(host.secret)
    (prison.workspace / "up").symlink_to("../..")
    answers = tried(
        attempt,
        "os.symlink('/etc/shadow', 'shadow')",
        f"os.symlink({str(host.secret)!r}, 'by-guest')",
        "open('shadow').read()",
        "open('by-guest').read()",
        "open('by-host').read()",
        "open('by-host', 'w')",
        f"open('up' + {str(host.secret)!r}).read()",
        f"open('../../..' + {str(host.secret)!r}).read()",
        f"os.link({str(host.secret)!r}, 'hard')",
        "open('/proc/1/root' + " + repr(str(host.secret)) + ").read()",
        "open('/proc/self/root' + " + repr(str(host.secret)) + ").read()",
        "open('/proc/1/cwd/../' + " + repr(str(host.secret)) + ").read()",
    )
    assert list(answers.values())[:2] == ["None", "None"]
    assert set(list(answers.values())[2:]) <= REFUSED


def test_the_system_cannot_be_changed(attempt: Attempt) -> None:
    paths = ["/usr/bin/env", "/etc/passwd", "/bin/sh", os.__file__, os.path.realpath(sys.executable)]
    calls = [f"open({path!r}, 'a')" for path in paths]
    calls += ["[open(path, 'a') for path in Path('/run').rglob('*') if path.is_file()]"]
    calls += [
        "open('/usr/new', 'w')",
        "os.unlink('/usr/bin/env')",
        "os.rename('/usr', '/usr2')",
        "os.chmod('/usr', 0o777)",
    ]
    calls += ["os.utime('/usr/bin/env')", "os.setxattr('/usr/bin/env', 'user.x', b'x')", "os.mkdir('/new')"]
    assert set(tried(attempt, *calls).values()) <= REFUSED


def test_a_workspace_to_read_cannot_be_changed(prison: Prison) -> None:
    (prison.workspace / "file").write_text("kept")
    code = """
import os
for call, arguments in ((open, ("file", "w")), (open, ("new", "w")), (os.unlink, ("file",)), (os.chmod, ("file", 0)), (os.mkdir, ("d",))):
    try:
        call(*arguments)
        print("done")
    except OSError as error:
        print(error.strerror)
print(open("file").read())
"""
    outcome = prison.within(lambda sandbox: sandbox.run_python(code), is_writable=False)
    assert printed(outcome) == ["Read-only file system"] * 5 + ["kept"]


def test_other_processes_are_not_seen(attempt: Attempt) -> None:
    """Those of the sandbox are what there is: bubblewrap, what waits for the program's end, and the program."""
    code = """
import os
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print(pids == list(range(1, len(pids) + 1)), len(pids) <= 4)
for pid in pids:
    try:
        print("of-the-" + "host" in open(f"/proc/{pid}/environ").read())
    except PermissionError:
        print(False)
"""
    assert printed(attempt(code))[0] == "True True"
    assert "True" not in printed(attempt(code))[1:]


def test_what_waits_for_the_program_is_not_its_to_rewrite(attempt: Attempt) -> None:
    """It would tell how the program ended."""
    if landlock.abi() < 2:
        pytest.skip("Landlock holds this, and the kernel has none")
    calls = ["open(f'/proc/{os.getppid()}/mem', 'rb')", "open('/proc/1/mem', 'rb')", "os.readlink('/proc/1/fd/3')"]
    assert set(tried(attempt, *calls).values()) == {"EACCES"}


def test_the_environment_holds_no_secret(attempt: Attempt, prison: Prison) -> None:
    assert printed(attempt("import os; print('TREADLE_TEST_SECRET' in os.environ)")) == ["False"]
    assert "secret-of-the-host" not in prison.shell("env; cat /proc/*/environ | tr '\\0' '\\n'; set").stdout.text


def test_no_descriptor_is_inherited(attempt: Attempt) -> None:
    code = """
import os
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(name, os.readlink(f"/proc/self/fd/{name}").split(":")[0])
    except FileNotFoundError:
        pass
"""
    assert [line.split()[1] for line in printed(attempt(code))[:3]] == ["pipe"] * 3
    others = [line.split(maxsplit=1)[1] for line in printed(attempt(code))[3:]]
    assert [name for name in others if name not in ("pipe",)] == []


KERNEL_FILES = """
/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/1/oom_score_adj
/proc/1/mem /proc/kcore /proc/kmem /dev/mem /dev/kmsg /dev/sda /dev/vda /sys/kernel/uevent_helper /sys/power/state
/sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/cgroup.procs
"""


def test_the_kernel_takes_no_writes(attempt: Attempt) -> None:
    """Opening is enough: nothing is written, should it succeed."""
    calls = [f"os.close(os.open({path!r}, os.O_WRONLY))" for path in KERNEL_FILES.split()]
    assert set(tried(attempt, *calls).values()) <= REFUSED


def test_devices_are_the_harmless_ones_and_belong_to_the_machine(attempt: Attempt) -> None:
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    devices = ["os.listdir('/dev')", "[name for name in os.listdir('/dev') if Path('/dev', name).is_block_device()]"]
    listed, blocks = tried(attempt, *devices).values()
    assert set(eval(listed)) - {"pts", "shm", "fd", "core", "stdin", "stdout", "stderr", "mqueue"} <= allowed
    assert blocks == "[]"
    # Where the user is root outside, the nodes are its own: modes and times of the machine's nodes would change.
    before = {name: Path("/dev", name).stat() for name in ("null", "zero", "full", "random", "urandom", "tty")}
    calls = [f"os.chmod('/dev/{name}', {stat.S_IMODE(before[name].st_mode)})" for name in before]
    calls += [f"os.utime('/dev/{name}')" for name in before] + ["open('/dev/new', 'w')"]
    assert set(tried(attempt, *calls).values()) <= REFUSED
    assert {name: Path("/dev", name).stat().st_ctime_ns for name in before} == {
        name: value.st_ctime_ns for name, value in before.items()
    }


def test_device_nodes_cannot_be_made(attempt: Attempt, prison: Prison) -> None:
    calls = ["os.mknod('disk', 0o060666, os.makedev(254, 0))", "os.mknod('/tmp/memory', 0o020666, os.makedev(1, 1))"]
    assert set(tried(attempt, *calls).values()) <= REFUSED
    assert list(prison.workspace.iterdir()) == []


def test_nobody_gains_privileges(attempt: Attempt, prison: Prison) -> None:
    """Set-user-ID programs do not count inside, and none can be made that would count outside."""
    status = "[line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp:'))]"
    no_capabilities = "['" + "', '".join(["0" * 16] * 4 + ["1", "2"]) + "']"
    calls = [
        "os.chmod('tool', 0o4755)",
        "os.chmod('tool', 0o2755)",
        "os.open('made', os.O_CREAT | os.O_WRONLY, 0o4755)",
    ]
    calls += ["os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.chown('tool', 0, 0)"]
    answers = tried(attempt, status, *calls, setup="import shutil; shutil.copy('/usr/bin/env', 'tool')")
    assert answers.pop(status) == no_capabilities
    assert set(answers.values()) <= REFUSED
    assert [path.name for path in prison.workspace.iterdir() if path.stat().st_mode & 0o6000] == []


def test_set_user_id_programs_of_the_system_give_nothing(prison: Prison) -> None:
    found = prison.shell("find /usr -xdev -perm -4000 -type f 2>/dev/null; su -c id; mount -t tmpfs x /tmp; id -u")
    assert found.stdout.text.splitlines()[-1] == "1000"
    assert "uid=0" not in found.stdout.text


CALLS = """
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    value = getattr(libc, name)(*arguments)
    if value == -1:
        raise OSError(ctypes.get_errno(), name)
    return value
def number(value, *arguments):
    ctypes.set_errno(0)
    value = libc.syscall(ctypes.c_long(value), *map(ctypes.c_long, arguments))
    if value == -1:
        raise OSError(ctypes.get_errno(), "syscall")
    return value
"""


def test_namespaces_and_mounts_are_the_machine_s(attempt: Attempt, prison: Prison) -> None:
    flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "all": 0x7E020000}
    answers = tried(
        attempt,
        *(f"call('unshare', {flag})" for flag in flags.values()),
        "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "call('mount', b'/', b'/tmp', None, 4096, None)",
        "call('mount', None, b'/', None, 32 | 4096, None)",
        "call('umount2', b'/proc', 2)",
        "call('umount2', b'/workspace', 2)",
        "call('pivot_root', b'/tmp', b'/tmp')",
        "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
        "os.chroot('/tmp')",
        "number(430, 0, 0)",  # fsopen
        "number(428, -100, 0, 0)",  # open_tree
        "number(435, 0, 0)",  # clone3
        setup=CALLS,
    )
    assert set(answers.values()) <= REFUSED
    outcome = prison.shell("unshare -Ur id || unshare -m id || unshare -p id || echo none")
    assert outcome.stdout.text == "none\n"


def test_what_the_kernel_keeps_for_itself_is_out_of_reach(attempt: Attempt) -> None:
    answers = tried(
        attempt,
        "call('ptrace', 16, os.getppid(), 0, 0)",
        "call('ptrace', 16, 1, 0, 0)",
        "call('process_vm_readv', 1, None, 0, None, 0, 0)",
        "call('personality', 0x0040000)",
        "call('sethostname', b'x', 1)",
        "call('swapon', b'/dev/zero', 0)",
        "call('reboot', 0)",
        "call('klogctl', 3, None, 0)",
        "call('acct', None)",
        "number({'x86_64': 321, 'aarch64': 280}[os.uname().machine], 0, 0, 0)",  # bpf
        "number({'x86_64': 298, 'aarch64': 241}[os.uname().machine], 0, 0, -1, -1, 0)",  # perf_event_open
        "number({'x86_64': 323, 'aarch64': 282}[os.uname().machine], 1)",  # userfaultfd
        "number({'x86_64': 250, 'aarch64': 219}[os.uname().machine], 0, -3, 1)",  # keyctl
        "number(425, 1, 0)",  # io_uring_setup
        "time.clock_settime(time.CLOCK_REALTIME, time.time())",
        "call('adjtimex', b'\\0' * 256)",
        setup=CALLS,
    )
    assert set(answers.values()) <= REFUSED


def test_nothing_is_typed_into_the_caller_s_terminal(attempt: Attempt) -> None:
    answers = tried(
        attempt,
        "open('/dev/tty', 'w')",
        "fcntl.ioctl(0, 0x5412, b'x')",
        "fcntl.ioctl(os.openpty()[1], 0x5412, b'x')",
        "os.getsid(0) == os.getpid() or os.getpid()",
        setup="import fcntl",
    )
    values = list(answers.values())
    assert values[0] in ("ENXIO", "ENOENT", "EPERM")
    assert values[1] in ("ENOTTY", "EPERM")
    assert values[2] == "EPERM"


def test_the_workspace_keeps_what_was_made_in_it(attempt: Attempt, prison: Prison) -> None:
    assert printed(attempt("open('made', 'w').write('x'); print(sorted(__import__('os').listdir('/workspace')))")) == [
        "['made']"
    ]
    assert (prison.workspace / "made").read_text() == "x"
    assert (prison.workspace / "made").stat().st_uid == os.getuid()

"""Builds the command line of bubblewrap: what a sandboxed program sees of the machine, and what it may not do.

Leaves to others: starting it (``worker``), the filter of system calls (``seccomp``), limits (``rlimits``, ``cgroups``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from treadle.agents.sandbox.launch import INSIDE, Launch, interpreter, interpreter_folder, passed_file
from treadle.errors import SandboxUnavailableError

__all__ = ["WORKSPACE", "Bubblewrap", "program"]

WORKSPACE = "/workspace"
USER_ID = "1000"
INSIDE_PATH = "/run/inside.py"
HINT = "apt install bubblewrap, or dnf install bubblewrap"

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs and libraries look up; nothing that names users, machines or keys of this one.
SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
NETWORK_SETTINGS = ("/etc/gai.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/services")
MADE_SETTINGS = {
    "/etc/passwd": b"user:x:1000:1000:user:/tmp:/bin/sh\n",
    "/etc/group": b"user:x:1000:\n",
}
OWN_HOSTS = {"/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n"}


@cache
def program() -> str:
    """Return the path of bubblewrap. Raises SandboxUnavailableError if it is not installed."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailableError("code cannot be isolated: bubblewrap (bwrap) is not installed", hint=HINT)
    return found


@cache
def _options(path: str) -> frozenset[str]:
    """What this version of bubblewrap understands."""
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return frozenset(word for word in (done.stdout + done.stderr).split() if word.startswith("--"))


class Bubblewrap:
    """Programs in namespaces of their own: users, processes, network, IPC, names, control groups, files."""

    def __init__(
        self,
        workspace: Path,
        *,
        is_writable: bool,
        has_network: bool,
        environment: Mapping[str, str],
        filter_program: bytes | None,
        packages: Sequence[Path] = (),
    ) -> None:
        self._path = program()
        self._options = _options(self._path)
        self._workspace = workspace
        self._is_writable = is_writable
        self._has_network = has_network
        self._environment = _default_environment() | dict(environment)
        self._filter = filter_program
        self._packages = packages

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, and what is missing and why, in words."""
        return ["bubblewrap: namespaces of its own for users, processes, network, IPC and files; a read-only system"]

    def prepare(self, control: int, tmp_bytes: int) -> Launch:
        """Return what to start: the script ``INSIDE`` with ``control`` as its socket."""
        files = {path: passed_file(content) for path, content in self._made_settings().items()}
        report_end, report = os.pipe()
        owned = [*files.values(), report]
        words = [self._path, *self._isolation(), *self._system(), *self._own_files(files), *self._private(tmp_bytes)]
        words += ["--info-fd", str(report)]
        if self._filter is not None:
            owned.append(passed_file(self._filter))
            words += ["--seccomp", str(owned[-1])]
        words += [
            "--chdir",
            WORKSPACE,
            "--",
            str(interpreter()),
            "-I",
            "-S",
            "-B",
            "-X",
            "utf8",
            INSIDE_PATH,
            str(control),
        ]
        return Launch(words, self._environment, Path("/"), [control, *owned], owned, report_end)

    def _isolation(self) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if not self._has_network:
            yield "--unshare-net"
        if "--disable-userns" in self._options:
            yield "--disable-userns"
        yield from ("--uid", USER_ID, "--gid", USER_ID, "--hostname", "sandbox", "--cap-drop", "ALL")
        yield from ("--die-with-parent", "--new-session")

    def _system(self) -> Iterator[str]:
        yield from ("--ro-bind", "/usr", "/usr")
        for folder in map(Path, SYSTEM_FOLDERS):
            if folder.is_symlink():
                yield from ("--symlink", str(folder.readlink()), str(folder))
            elif folder.is_dir():
                yield from ("--ro-bind", str(folder), str(folder))
        for path in (*SETTINGS, *(NETWORK_SETTINGS if self._has_network else ())):
            yield from ("--ro-bind-try", os.path.realpath(path), path)

    def _made_settings(self) -> dict[str, bytes]:
        return MADE_SETTINGS if self._has_network else MADE_SETTINGS | OWN_HOSTS

    def _own_files(self, files: Mapping[str, int]) -> Iterator[str]:
        home = interpreter_folder()
        if not home.is_relative_to("/usr"):
            yield from ("--ro-bind", str(home), str(home))
        yield from ("--ro-bind", str(INSIDE), INSIDE_PATH)
        for path, descriptor in files.items():
            yield from ("--ro-bind-data", str(descriptor), path)

    def _private(self, tmp_bytes: int) -> Iterator[str]:
        size = ("--size", str(tmp_bytes)) if "--size" in self._options else ()
        mode = ("--perms", "1777") if "--perms" in self._options else ()
        yield from ("--proc", "/proc", "--dev", "/dev")
        yield from (*size, *mode, "--tmpfs", "/dev/shm", *size, *mode, "--tmpfs", "/tmp")
        yield from ("--bind" if self._is_writable else "--ro-bind", str(self._workspace), WORKSPACE)
        # What bubblewrap made for its own mounts is memory without a bound, and /proc holds settings of the kernel
        # that belong to the user who is root outside.
        for path in ("/proc", "/dev", "/"):
            yield from ("--remount-ro", path)


def _default_environment() -> dict[str, str]:
    folders = [f"{interpreter_folder()}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PATH": ":".join(dict.fromkeys(folders)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": "/tmp",
    }

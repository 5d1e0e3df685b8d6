"""Builds the command line of bubblewrap: what a sandboxed program sees of the machine, and what it may not do.

Leaves to others: starting it (``worker``), the filter of system calls (``seccomp``), limits (``rlimits``, ``cgroups``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from treadle.agents.sandbox import landlock
from treadle.agents.sandbox.launch import INSIDE, Launch, interpreter_folder, passed_file, python_command
from treadle.errors import SandboxUnavailableError

__all__ = ["WORKSPACE", "Bubblewrap", "program"]

WORKSPACE = "/workspace"
USER_ID = "1000"
INSIDE_FOLDER = Path("/run/treadle")
PACKAGES = "/packages"
NURSERY_TMP_BYTES = 1 << 20  # nobody writes there
# Making namespaces and mounting in them, and bringing the loopback interface up.
NURSERY_RIGHTS = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
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
        raise SandboxUnavailableError("bubblewrap (bwrap) is not installed", hint=HINT)
    return found


@cache
def _options(path: str) -> frozenset[str]:
    """What this version of bubblewrap understands."""
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return frozenset(word for word in (done.stdout + done.stderr).split() if word.startswith("--"))


class Bubblewrap:
    """Programs in namespaces of their own: users, processes, network, IPC, names, control groups, files."""

    has_namespace = True
    loose_folders = ("/tmp", "/dev/shm")

    def __init__(
        self,
        workspace: Path,
        *,
        is_writable: bool,
        has_network: bool,
        environment: Mapping[str, str],
        filter_program: bytes | None,
        packages: Sequence[Path] = (),
        has_proc: bool = True,
    ) -> None:
        home = interpreter_folder()
        if home in (Path("/"), *Path.home().parents, Path.home()):
            raise SandboxUnavailableError(f"the folder of the interpreter, {home}, holds what programs shall not see")
        self._path = program()
        self._options = _options(self._path)
        self._workspace = workspace
        self._is_writable = is_writable
        self._has_network = has_network
        self._environment = _default_environment() | dict(environment)
        self._filter = filter_program
        self._packages = packages
        self._has_proc = has_proc

    @property
    def layers(self) -> Sequence[str]:
        """Return what protects, and what is missing and why, in words."""
        return [
            "bubblewrap: namespaces of its own for users, processes, network, IPC and files; a read-only system",
            *(
                ["Landlock: the same files once more, and no way to what waits for the program"]
                if _has_landlock()
                else []
            ),
        ]

    def prepare(self, control: int, tmp_bytes: int) -> Launch:
        """Return how to start a process that waits for a request on ``control``."""
        # The remount: it holds settings of the kernel that belong to the user who is root outside.
        proc = ["--proc", "/proc", "--remount-ro", "/proc"] if self._has_proc else []
        descriptors, words = self._files_and_folders(proc, tmp_bytes)
        words += ["--cap-drop", "ALL"]
        if self._filter is not None:
            descriptors.append(passed_file(self._filter))
            words += ["--seccomp", str(descriptors[-1])]
        settings = json.dumps({"packages": self._package_paths(), "walls": self._walls()})
        words += ["--", *python_command(INSIDE_FOLDER, "single", control, settings)]
        return Launch(words, self._environment, Path("/"), descriptors)

    def prepare_nursery(self, control: int) -> Launch:
        """Return how to start a process that makes processes which wait for a request.

        It has the rights that this takes, within the namespaces that bubblewrap makes; they give them up.
        """
        # The kernel lets those mount a /proc who see all of one. The machine's own is seen by the nursery alone.
        proc = ["--ro-bind", "/proc", "/proc"] if self._has_proc else []
        descriptors, words = self._files_and_folders(proc, NURSERY_TMP_BYTES)
        words += ["--cap-drop", "ALL"]
        for right in NURSERY_RIGHTS:
            words += ["--cap-add", right]
        if self._filter is not None:
            descriptors.append(passed_file(self._filter))
        settings = {
            "packages": self._package_paths(),
            "walls": self._walls(),
            "has_network": self._has_network,
            "has_proc": self._has_proc,
            "filter": None if self._filter is None else descriptors[-1],
        }
        words += ["--", *python_command(INSIDE_FOLDER, "nursery", control, json.dumps(settings))]
        return Launch(words, self._environment, Path("/"), descriptors)

    def _files_and_folders(self, proc: Sequence[str], tmp_bytes: int) -> tuple[list[int], list[str]]:
        files = {path: passed_file(content) for path, content in self._made_settings().items()}
        words = [self._path, *self._isolation(), *self._system(), *self._own_files(files), *proc]
        words += self._private(tmp_bytes)
        return list(files.values()), [*words, "--chdir", WORKSPACE]

    def _walls(self) -> Mapping[str, object] | None:
        """A second wall where the kernel has one; with the machine's network, the only one before abstract sockets."""
        writable = ["/dev", "/tmp", *([WORKSPACE] if self._is_writable else [])]
        walls = {"readable": ["/"], "writable": writable, "allow_tcp": True, "filter": None}
        return walls if _has_landlock() else None

    def _package_paths(self) -> list[str]:
        return [f"{PACKAGES}/{index}" for index in range(len(self._packages))]

    def _isolation(self) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        if not self._has_network:
            yield "--unshare-net"
        if "--disable-userns" in self._options:
            yield "--disable-userns"
        yield from ("--uid", USER_ID, "--gid", USER_ID, "--hostname", "sandbox")
        yield from ("--die-with-parent", "--new-session", "--as-pid-1")

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
        yield from ("--ro-bind", str(INSIDE), f"{INSIDE_FOLDER}/inside")
        yield from ("--ro-bind", landlock.__file__, f"{INSIDE_FOLDER}/landlock.py")
        for path, folder in zip(self._package_paths(), self._packages, strict=True):
            yield from ("--ro-bind", str(folder.resolve()), path)
        for path, descriptor in files.items():
            yield from ("--ro-bind-data", str(descriptor), path)

    def _private(self, tmp_bytes: int) -> Iterator[str]:
        size = ("--size", str(tmp_bytes)) if "--size" in self._options else ()
        mode = ("--perms", "1777") if "--perms" in self._options else ()
        yield from ("--dev", "/dev")
        yield from (*size, *mode, "--tmpfs", "/dev/shm", *size, *mode, "--tmpfs", "/tmp")
        yield from ("--bind" if self._is_writable else "--ro-bind", str(self._workspace), WORKSPACE)
        # What bubblewrap made for its own mounts is memory without a bound.
        yield from ("--remount-ro", "/dev", "--remount-ro", "/")


def _has_landlock() -> bool:
    """Before version 2 it forbids to move files between folders, which programs live on."""
    return landlock.abi() >= 2


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

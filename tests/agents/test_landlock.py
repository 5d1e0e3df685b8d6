"""Landlock: what is asked of each version of it, by a kernel played here, and what the real one then refuses."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from patience import PATIENCE_SECONDS
from treadle.agents.sandbox import landlock


class Kernel:
    """Takes Landlock's calls and remembers the structures they point at."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.attributes: tuple[int, ...] = ()
        self.rules: dict[str, int] = {}
        self.is_restricted = False

    def __call__(self, number: int, *arguments: object) -> int:
        if number == 444 and arguments[2] == 1:
            if self.version == 0:
                raise OSError(errno.ENOSYS, "landlock_create_ruleset failed")
            return self.version
        if number == 444:
            attributes, size, flags = arguments
            assert isinstance(attributes, ctypes.Array)
            assert (len(attributes.raw), flags) == (size, 0)
            self.attributes = struct.unpack(f"={len(attributes.raw) // 8}Q", attributes.raw)
            return os.open("/dev/null", os.O_RDONLY)
        if number == 445:
            _, kind, rule, flags = arguments
            assert isinstance(rule, ctypes.Array)
            rights, descriptor = struct.unpack("=Qi", rule.raw)
            assert (kind, flags) == (1, 0)
            assert rights & ~self.attributes[0] == 0, "the kernel refuses rights that the ruleset does not handle"
            self.rules[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = rights
            return 0
        assert number == 446
        self.is_restricted = True
        return 0


@pytest.fixture(params=[1, 2, 3, 4, 5, 6, 7])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    played = Kernel(request.param)
    monkeypatch.setattr(landlock, "_syscall", played)
    monkeypatch.setattr(landlock, "_no_new_privileges", lambda: None)
    return played


HANDLED = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF, 6: 0xFFFF, 7: 0xFFFF}


def test_each_version_is_asked_for_all_it_knows(kernel: Kernel, tmp_path: Path) -> None:
    landlock.restrict([tmp_path], [], allow_tcp=False)
    more = {4: (3,), 5: (3,), 6: (3, 3), 7: (3, 3)}.get(kernel.version, ())
    assert kernel.attributes == (HANDLED[kernel.version], *more)
    assert kernel.is_restricted


def test_tcp_is_left_alone_on_demand(kernel: Kernel, tmp_path: Path) -> None:
    landlock.restrict([tmp_path], [], allow_tcp=True)
    assert kernel.attributes[1:2] in ((), (0,))


def test_folders_to_write_give_all_but_devices_and_files_only_what_files_have(kernel: Kernel, tmp_path: Path) -> None:
    readable, writable, file = tmp_path / "readable", tmp_path / "writable", tmp_path / "file"
    readable.mkdir()
    writable.mkdir()
    file.touch()
    landlock.restrict([readable, file], [writable], allow_tcp=False)
    made_devices = 1 << 6 | 1 << 11
    assert kernel.rules == {
        str(readable): 0b1101,
        str(file): 0b0101,
        str(writable): HANDLED[kernel.version] & ~made_devices,
    }


def test_a_file_to_write_may_be_cut_where_the_kernel_asks(kernel: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    landlock.restrict([], [file], allow_tcp=False)
    assert kernel.rules == {str(file): 0b111 | HANDLED[kernel.version] & (1 << 14 | 1 << 15)}


def test_without_landlock_nothing_is_pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(landlock, "_syscall", Kernel(0))
    assert landlock.abi() == 0
    with pytest.raises(OSError, match="no Landlock"):
        landlock.restrict([tmp_path], [], allow_tcp=False)


def test_a_path_that_is_not_there_leaves_everything_open(kernel: Kernel, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        landlock.restrict([tmp_path / "gone"], [], allow_tcp=False)
    assert not kernel.is_restricted


# --- live -----------------------------------------------------------------------------------------------------------


def held(tmp_path: Path, source: str, version: int) -> list[str]:
    """Lines printed by Python code that may read the system and ``readable``, and write ``writable``."""
    if landlock.abi() < version:
        pytest.skip(f"this kernel speaks Landlock {landlock.abi()}, not {version}")
    for name in ("readable", "writable", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    system = [path for path in ("/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix) if Path(path).exists()]
    setup = f"""
import os, signal, socket
from pathlib import Path
from treadle.agents.sandbox import landlock
def attempt(call, *arguments):
    try:
        call(*arguments)
        print("done")
    except OSError as error:
        print(type(error).__name__)
os.chdir({str(tmp_path)!r})
landlock.restrict([*map(Path, {system!r}), Path("readable")], [Path("writable")], allow_tcp=False)
"""
    environment = {"PYTHONPATH": str(Path(treadle.__file__).parents[1])}
    command = [sys.executable, "-c", setup + source]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_files_are_read_and_written_where_they_may_be_and_nowhere_else(tmp_path: Path) -> None:
    source = """
attempt(Path("readable/file").read_text)
attempt(Path("readable/file").write_text, "spoilt")
attempt(Path("readable/new").touch)
attempt(Path("writable/file").write_text, "mine")
attempt(Path("writable/new").mkdir)
attempt(Path("hidden/file").read_text)
attempt(os.listdir, "hidden")
attempt(Path("/etc/passwd").read_text)
attempt(os.unlink, "hidden/file")
attempt(os.symlink, "../hidden/file", "writable/link")
attempt(Path("writable/link").read_text)
attempt(os.system, "true")
"""
    denied, done = "PermissionError", "done"
    assert held(tmp_path, source, 1) == [
        *(done, denied, denied, done, done),
        *(denied, denied, denied, denied, done, denied, done),
    ]
    assert [(tmp_path / name / "file").read_text() for name in ("readable", "writable", "hidden")] == [
        "readable",
        "mine",
        "hidden",
    ]


def test_files_cannot_be_cut(tmp_path: Path) -> None:
    assert held(tmp_path, 'attempt(os.truncate, "hidden/file", 0)', 3) == ["PermissionError"]
    assert (tmp_path / "hidden/file").read_text() == "hidden"


def test_tcp_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"""
attempt(socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}))
attempt(socket.create_server, ("127.0.0.1", 0))
"""
        assert held(tmp_path, source, 4) == ["PermissionError", "PermissionError"]


def test_nobody_outside_is_signalled_or_spoken_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0treadle-test-{os.getpid()}")
        server.listen()
        source = f"""
attempt(socket.socket(socket.AF_UNIX).connect, "\\0treadle-test-{os.getpid()}")
attempt(os.kill, {os.getpid()}, 0)
attempt(os.kill, os.getpid(), 0)
"""
        assert held(tmp_path, source, 6) == ["PermissionError", "PermissionError", "done"]

"""Forks waiting processes into namespaces of their own, again and again; never runs anybody's code itself.

Leaves to others: what the forked process does then (``waiting``).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import signal
import socket
import struct
from typing import Any

LOST = 1  # exit code, when the other side has gone
BROKEN = 70  # exit code, when the sandbox could not be made; why is said on stderr

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/if.h, linux/sockios.h
NEW_MOUNTS, NEW_IPC, NEW_PIDS, NEW_NETWORK = 0x20000, 0x8000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND = 1, 2, 4, 8, 0x20, 0x1000
RECURSIVE, PRIVATE = 0x4000, 0x40000
SET_SECCOMP, FILTER_MODE, SET_NO_NEW_PRIVILEGES = 22, 2, 38
CAPABILITIES_V3 = 0x20080522
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")

libc = ctypes.CDLL(None, use_errno=True)


def breed(nursery: socket.socket, settings: dict[str, Any]) -> socket.socket:
    """Fork a process into fresh namespaces per message; return its control socket in that process only."""
    filter_program = None
    if settings["filter"] is not None:
        with os.fdopen(settings["filter"], "rb") as file:
            filter_program = file.read()
    signal.signal(signal.SIGCHLD, lambda *_: bury())
    gc.freeze()
    nursery.send(b"R")
    while True:
        message, descriptors, _, _ = socket.recv_fds(nursery, 4096, 4)
        if not message:
            os._exit(LOST)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nursery.close()
            control, *pipes = descriptors
            for number, descriptor in enumerate(pipes):
                os.dup2(descriptor, number)
                os.close(descriptor)
            try:
                settle(json.loads(message), settings, filter_program)
            except OSError as error:
                os.write(2, str(error).encode())
                os._exit(BROKEN)
            return socket.socket(fileno=control)
        for descriptor in descriptors:
            os.close(descriptor)


def bury() -> None:
    """Wait for every child that has ended, those that others left to the first process included."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def settle(wanted: dict[str, Any], settings: dict[str, Any], filter_program: bytes | None) -> None:
    """Move into namespaces of our own, as the first process of them, and give all rights away."""
    apart = NEW_MOUNTS | NEW_IPC | NEW_PIDS | (0 if settings["has_network"] else NEW_NETWORK)
    check(libc.unshare(apart), "unshare")
    if os.fork() != 0:
        os._exit(0)
    mount(None, "/", None, RECURSIVE | PRIVATE)
    size = f"mode=1777,size={wanted['tmp_bytes']},nr_inodes={wanted['num_files']}"
    for path in ("/tmp", "/dev/shm"):
        mount("tmpfs", path, "tmpfs", NO_SUID | NO_DEVICES, size)
    for name in DEVICES:  # the machine's own nodes, whose modes and times root's programs could change
        mount(None, f"/dev/{name}", None, REMOUNT | BIND | READ_ONLY | NO_SUID)
    if settings["has_proc"]:
        mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC | READ_ONLY)
    if not settings["has_network"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lookup:
            fcntl.ioctl(lookup, SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", INTERFACE_UP))
    drop_rights()
    if filter_program is not None:
        install_filter(filter_program)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or change how it is mounted."""
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    check(libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mounting {target}")


def drop_rights() -> None:
    """Give all capabilities away, for good: no program that is run gives them back, not even to root."""
    check(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    check(libc.capset(struct.pack("=Ii", CAPABILITIES_V3, 0), bytes(24)), "dropping capabilities")


def install_filter(program: bytes) -> None:
    """Put this process and its coming children under a filter of system calls."""
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    check(libc.prctl(SET_SECCOMP, FILTER_MODE, described, 0, 0), "the filter of system calls")


def check(answer: int, what: str) -> None:
    """Raise OSError if a call of libc failed."""
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")

"""Waits for one request, forks the program it names, and reports how that ended.

Leaves to others: what the fork does (``program``), and the namespaces it is in (``nursery``, or bubblewrap itself).
"""

from __future__ import annotations

import ast
import collections
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

READY, GO = b"R", b"G"
REHEARSAL = "import json\ntext = json.dumps({'a': [1, 2.5]})"
LOST = 1  # exit code, when the other side has gone
MAX_ROUNDS = 1000  # of killing what has been forked during the last one
SET_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own: where no namespace holds them, we must find them."""
    ctypes.CDLL(None).prctl(SET_SUBREAPER, 1, 0, 0, 0)


def serve(control: socket.socket, *, is_alone: bool, enter: Callable[[], None]) -> tuple[dict[str, Any], int]:
    """Fork a child that waits for the request; return it and a pipe end in the child, and never in the parent.

    The child is there before the request, and has done a little of what it will do, because the first touch of a page
    after a fork costs a copy of it. It is forked when the other side has moved this process to where it is counted,
    and begins with ``enter``.
    """
    gc.freeze()
    control.sendall(READY)
    if control.recv(1) != GO:
        os._exit(LOST)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        enter()
        exec(compile(ast.parse(REHEARSAL), "<rehearsal>", "exec"), {})
        control.sendall(READY)
        request = receive(control)
        control.close()
        os.write(tell, f"{time.process_time()}\n".encode())
        return request, tell
    for descriptor in (tell, 0, 1, 2):  # else an end of the program's pipes would stay open here
        os.close(descriptor)
    ending = attend(control, pid, is_alone=is_alone)
    os.set_blocking(told, False)
    with contextlib.suppress(BlockingIOError, ValueError):
        spent, _, reason = os.read(told, 64).decode("ascii", "replace").partition("\n")
        ending["cpu_seconds"] -= float(spent)
        ending["reason"] = reason
    control.sendall(json.dumps(ending).encode() + b"\n")
    control.recv(1)
    if is_alone:
        kill_descendants(os.getpid())
    os._exit(0)


def receive(control: socket.socket) -> Any:
    """Return the request; end if the other side goes before it is complete."""
    parts: collections.deque[bytes] = collections.deque()
    while not parts or not parts[-1].endswith(b"\n"):
        part = control.recv(1 << 16)
        if not part:
            os._exit(LOST)
        parts.append(part)
    return json.loads(b"".join(parts))


def attend(control: socket.socket, pid: int, *, is_alone: bool) -> dict[str, Any]:
    """Wait for the program to end and bury orphans meanwhile; kill all and end if the other side goes first."""
    signal.signal(signal.SIGCHLD, lambda *_: bury_orphans(pid))
    bury_orphans(pid)
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(control, 0)  # the request is the child's to read; that the other side hangs up is always told
    while all(ready != descriptor for ready, _ in poll.poll()):
        if is_alone:
            kill_descendants(os.getpid())
        os._exit(LOST)
    _, status, usage = os.wait4(pid, 0)
    return {
        "status": status,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "reason": "",
    }


def bury_orphans(program: int) -> None:
    """Wait for every child that has ended, but not for the program."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == program:
            return
        os.waitpid(ended.si_pid, 0)


def kill_descendants(pid: int) -> None:
    """Kill all that descends from a process which adopts orphans, until nothing runs there any more."""
    for _ in range(MAX_ROUNDS):
        running = [process for process in descendants(pid) if is_running(process)]
        if not running:
            return
        for process in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process is there and not just waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the processes below one, as they are listed now."""
    found = [pid]
    for parent in found:
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208
                with open(f"/proc/{parent}/task/{thread}/children") as file:  # noqa: PTH123
                    found += map(int, file.read().split())
        except OSError:
            continue  # it has ended
    return found[1:]

"""What runs first inside a sandbox: waits for one request, forks the program it names, and reports how that ended.

A script of its own that knows the standard library alone: nothing of Treadle is in the sandbox. It has no rights that
the program lacks; one that kills or imitates it spoils the report on its own end, which the other side checks.
"""

from __future__ import annotations

import ast
import builtins
import collections  # this and what follows is imported so that the program's own import costs nothing
import csv  # noqa: F401
import datetime  # noqa: F401
import functools  # noqa: F401
import gc
import itertools  # noqa: F401
import json
import linecache
import math  # noqa: F401
import os
import random  # noqa: F401
import re  # noqa: F401
import resource
import select
import signal
import socket
import statistics  # noqa: F401
import string  # noqa: F401
import sys
import traceback
import types
from typing import Any

CODE_NAME = "<code>"
MAX_FRAMES = 20
LOST = 1  # exit code, when the other side has gone


def serve(control: socket.socket) -> tuple[dict[str, Any], int]:
    """Wait for the request and fork; return the request and a pipe end in the child, and never in the parent."""
    gc.freeze()
    control.sendall(b"R")
    request = receive(control)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        control.close()
        os.close(told)
        return request, tell
    os.close(tell)
    for fd in (0, 1, 2):  # else an end of the program's pipes would stay open here
        os.close(fd)
    status, usage = attend(control, pid)
    os.set_blocking(told, False)
    try:
        reason = os.read(told, 16).decode("ascii", "replace")
    except BlockingIOError:
        reason = ""
    report = {
        "status": status,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
        "reason": reason,
    }
    control.sendall(json.dumps(report).encode() + b"\n")
    control.recv(1)
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


def attend(control: socket.socket, pid: int) -> tuple[int, resource.struct_rusage]:
    """Wait for the program to end; kill it and end if the other side goes first."""
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(control, select.POLLIN)
    while all(ready != descriptor for ready, _ in poll.poll()):
        os.kill(pid, signal.SIGKILL)
        os._exit(LOST)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def confine(request: dict[str, Any]) -> None:
    """Take on the limits of the call; what is forked from here on has them, too."""
    os.setsid()
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    os.nice(request["nice"])
    for number, soft, hard in request["rlimits"]:
        resource.setrlimit(number, (soft, hard))


def execute(argv: list[str]) -> None:
    """Become the program, with the signals as a shell leaves them."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def run_code(code: str, tell: int) -> None:
    """Run the code as ``__main__`` and print the value of a last expression, as a notebook does."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a kill is worth having
    sys.argv[:] = [CODE_NAME]
    sys.path.insert(0, os.path.realpath("."))
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    linecache.cache[CODE_NAME] = (len(code), None, code.splitlines(True), CODE_NAME)
    try:
        tree = ast.parse(code, CODE_NAME)
        ending = tree.body[-1] if tree.body else None
        last = ast.Expression(ending.value) if isinstance(ending, ast.Expr) else None
        if last is not None:
            tree.body.pop()
        exec(compile(tree, CODE_NAME, "exec", dont_inherit=True), main.__dict__)
        if last is not None:
            value = eval(compile(last, CODE_NAME, "eval", dont_inherit=True), main.__dict__)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
    except SystemExit:
        raise
    except BaseException as error:
        tell_error(error, tell)
        sys.exit(1)


def tell_error(error: BaseException, tell: int) -> None:
    """Print the traceback without the frames that are not the code's."""
    if isinstance(error, MemoryError):
        os.write(tell, b"memory")
        traceback.clear_frames(error.__traceback__)
    told = traceback.TracebackException.from_exception(error)
    links = [told]
    for link in links:
        link.stack[:] = [frame for frame in link.stack if frame.filename == CODE_NAME][-MAX_FRAMES:]
        links += [other for other in (link.__cause__, link.__context__) if other is not None]
    sys.stdout.flush()
    sys.stderr.writelines(told.format())


def main() -> None:
    """Serve one request, and be the program of it in the child."""
    request, tell = serve(socket.socket(fileno=int(sys.argv[1])))
    confine(request)
    if request["argv"] is not None:
        execute(request["argv"])
    run_code(request["code"], tell)


main()

"""Becomes the program that a request names, or runs its Python code, under the limits of the call.

Leaves to others: reporting how it ended (``waiting``).
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import linecache
import os
import resource
import signal
import sys
import threading
import traceback
import types
from typing import Any

CODE_NAME = "<code>"
MAX_FRAMES = 20


def confine(request: dict[str, Any]) -> None:
    """Take on the limits of the call; what is forked from here on has them, too."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["cpus"]:
        with contextlib.suppress(OSError):  # a share of the CPUs is a courtesy, not a wall
            os.sched_setaffinity(0, request["cpus"])
    os.nice(request["nice"])
    for number, soft, hard in request["rlimits"]:
        before = resource.getrlimit(number)[1]
        ceiling = hard if before == resource.RLIM_INFINITY else min(hard, before)
        resource.setrlimit(number, (min(soft, ceiling), ceiling))


def execute(argv: list[str]) -> None:
    """Become the program, with the signals as a shell leaves them."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def run_code(code: str, tell: int, *, packages: list[str]) -> None:
    """Run the code as ``__main__``, and end."""
    try:
        run_cells(code, tell, packages)
        exit_code = 0
    except SystemExit as error:
        exit_code = told_code(error.code)
    finish(exit_code)


def told_code(told: object) -> int:
    """Return the exit code that ``sys.exit`` was meant to give, as the interpreter does."""
    if told is None or isinstance(told, int):
        return (told or 0) & 0xFF
    sys.stderr.write(f"{told}\n")
    return 1


def finish(exit_code: int) -> None:
    """End as the interpreter does, but leave its memory to the kernel: taking it apart would copy every page of it."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    except SystemExit as error:
        exit_code = told_code(error.code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code)


def run_cells(code: str, tell: int, packages: list[str]) -> None:
    """Run the code and print the value of a last expression, as a notebook does."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what is printed before a kill is kept
    sys.argv[:] = [CODE_NAME]
    sys.path[:] = [os.path.realpath("."), *sys.path, *packages]
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

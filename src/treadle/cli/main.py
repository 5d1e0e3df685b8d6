"""The table of commands, and how a run of one ends: exit code, message, broken pipes.

Leaves to others: each command to its own file.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from treadle.cli.console import console
from treadle.errors import CapacityError, TreadleError, UsageError

__all__ = ["application", "main"]

_MEMORY_HINT = "`treadle plan MODEL` says what a model needs; --context and --memory make it less"
EXIT_OK, EXIT_USER, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 2, 130

# Each command and its file. Only the file of the command that runs is imported, which saves a tenth of a second.
_COMMANDS = {
    "run": "run",
    "chat": "chat",
    "agent": "agent",
    "serve": "serve",
    "mcp-serve": "mcp_serve",
    "pull": "pull",
    "list": "list_models",
    "show": "show",
    "plan": "plan",
    "tune": "tune",
    "profile": "profile",
    "doctor": "doctor",
    "trace": "trace",
    "rm": "rm",
    "cache": "cache",
}
# The class behind "no such option" and the like; typer re-exports only children of it.
_CommandLineError = typer.BadParameter.__mro__[2]


class _ConsoleHandler(logging.Handler):
    """Shows what threads in the background warn of like any other warning."""

    def emit(self, record: logging.LogRecord) -> None:
        console.warn(self.format(record))


_LOG_HANDLER = _ConsoleHandler(logging.WARNING)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  slow to import, rarely wanted

        try:
            console.out(f"treadle {version('treadle')}")
        except PackageNotFoundError:
            console.out("treadle, run from its sources without being installed")
        raise typer.Exit


def _treadle(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def application(first: str | None = None) -> typer.Typer:
    """Return the command line as far as it is needed: one command if ``first`` is its name, otherwise all."""
    app = typer.Typer(
        name="treadle",
        help="Run language models on the CPU you already have.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_treadle)
    for name in [first] if first in _COMMANDS else _COMMANDS:
        importlib.import_module(f"treadle.cli.{_COMMANDS[name]}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the user can mend it, 2 a bug of ours, 130 stopped with Ctrl-C."""
    warnings.showwarning = lambda message, *_, **__: console.warn(str(message))
    logging.getLogger("treadle").addHandler(_LOG_HANDLER)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows `?` for it
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # what is no text is refused, not smuggled into the prompt
    code = _run(arguments)
    if code == EXIT_INTERRUPTED and console.is_interactive:
        console.say("")  # the shell's prompt begins a line of its own
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = _report_system_error(error)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        result = application(arguments[0])(args=arguments, prog_name="treadle", standalone_mode=False)
    except SystemExit as error:  # typer's own answer to a closed pipe
        _forget_stdout()
        return error.code if isinstance(error.code, int) else EXIT_USER
    except BaseException as error:
        return _report(error)
    return result if isinstance(result, int) else EXIT_OK


def _report(error: BaseException) -> int:
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return EXIT_INTERRUPTED
    if isinstance(error, OSError):
        return _report_system_error(error)
    if isinstance(error, _CommandLineError):
        command = getattr(getattr(error, "ctx", None), "command_path", "treadle")
        message = getattr(error, "format_message", error.__str__)()
        error = UsageError(message, hint=f"`{command} --help` lists what can be typed")
    elif isinstance(error, MemoryError):
        error = CapacityError(f"the system gave no more memory: {error}", hint=_MEMORY_HINT)
    console.error(error)
    return error.exit_code if isinstance(error, TreadleError) else EXIT_BUG


def _report_system_error(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        _forget_stdout()  # whoever read the output has enough; nobody is left to tell
        return EXIT_USER
    what = error.filename or "the output could not be written"
    console.error(UsageError(f"{what}: {error.strerror or error}"))
    _forget_stdout()
    return EXIT_USER


def _forget_stdout() -> None:
    """Keep the interpreter from failing at exit over what is still in the buffer of a broken stdout."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

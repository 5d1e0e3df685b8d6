"""Where a command's words come from and go: data to stdout, everything else to stderr.

Leaves to others: what to say (the commands) and how a run ends (``cli.main``).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from treadle.errors import InternalError, TreadleError, UsageError

__all__ = ["Console", "console"]

_MAX_INPUT_CHARS = 16 << 20  # several times the longest context there is
_RED, _YELLOW, _BOLD, _DIM, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
_COLOURS = {"cyan": "\x1b[36m", "yellow": _YELLOW, "red": _RED, "magenta": "\x1b[35m", "bold": _BOLD}
_LEVEL_COLOURS = {"red": _RED, "amber": _YELLOW, "green": "\x1b[32m"}


class Console:
    """The streams of one command, and how much of the second one is wanted."""

    def __init__(self) -> None:
        self.is_quiet = False
        self.is_verbose = False

    @property
    def is_interactive(self) -> bool:
        """Tell whether somebody types on stdin."""
        return sys.stdin is not None and sys.stdin.isatty()

    def read_line(self) -> str:
        """Return the next line of stdin with its end, or nothing after the last; raises as ``read_all`` does."""
        return "" if sys.stdin is None else self._read(lambda: sys.stdin.readline(_MAX_INPUT_CHARS + 1))

    def read_all(self) -> str:
        """Return all of stdin, nothing if it is closed; raises UsageError for what is no text, or has no end."""
        return "" if sys.stdin is None else self._read(lambda: sys.stdin.read(_MAX_INPUT_CHARS + 1))

    def out(self, text: str, *, end: str = "\n") -> None:
        """Write data to stdout at once, so that a closed pipe or a full disk is met here and not at exit."""
        if sys.stdout is None:
            raise UsageError("the output could not be written: stdout is closed")
        sys.stdout.write(_harmless(text) + end if sys.stdout.isatty() else text + end)
        sys.stdout.flush()

    def marked(self, mark: str, level: str, text: str) -> None:
        """Write data to stdout after a mark, on a terminal in the colour of its level: red, amber or green."""
        if sys.stdout is not None and sys.stdout.isatty() and _shows_colours():
            sys.stdout.write(f"{_BOLD}{_LEVEL_COLOURS[level]}{mark}{_PLAIN}")
            mark = ""
        self.out(mark + text)

    def painted(self, *parts: tuple[str, str]) -> None:
        """Write a line of data to stdout whose parts have, on a terminal, a colour each; "" is its usual one."""
        if sys.stdout is not None and sys.stdout.isatty() and _shows_colours():
            for text, colour in parts:
                sys.stdout.write(f"{_COLOURS.get(colour, '')}{_harmless(text)}{_PLAIN}")
            parts = ()
        self.out("".join(text for text, _ in parts))

    def note(self, text: str) -> None:
        """Tell the user something on stderr, unless --quiet."""
        if not self.is_quiet:
            self._err(text, _DIM)

    def detail(self, text: str) -> None:
        """Tell the user something on stderr that only --verbose asks for."""
        if self.is_verbose:
            self._err(text, _DIM)

    def say(self, text: str) -> None:
        """Answer the user on stderr, even with --quiet."""
        self._err(text)

    def warn(self, text: str) -> None:
        """Warn on stderr, even with --quiet."""
        self._err(text, label="warning:", label_colour=_YELLOW)

    def error(self, error: BaseException) -> None:
        """Say what failed and what to type next; with --verbose or TREADLE_DEBUG also where."""
        if self.is_verbose or os.environ.get("TREADLE_DEBUG"):
            self._err("".join(traceback.format_exception(error)).rstrip())
        is_known = isinstance(error, TreadleError)
        message = str(error.args[0]) if is_known else f"{type(error).__name__}: {error}"
        self._err(message, label="error:", label_colour=_RED)
        if isinstance(error, TreadleError) and error.hint:
            self._err(error.hint, label="hint:")
        if not is_known or isinstance(error, InternalError):
            self._err("this is a bug in Treadle; please report the command, the model and what --verbose prints")

    def draw(self, text: str) -> None:
        """Show a line on the terminal behind stderr until the next one takes its place."""
        _write_err(f"\r\x1b[K{_harmless(text)}")

    @staticmethod
    def _read(read: Callable[[], str]) -> str:
        try:
            text = read()
        except UnicodeDecodeError as error:
            encoding = error.encoding.upper()
            hint = None if encoding == "UTF-8" else "PYTHONUTF8=1 reads UTF-8, whatever the locale says"
            raise UsageError(f"stdin is not {encoding} text: {error.reason}", hint=hint) from None
        if len(text) > _MAX_INPUT_CHARS:
            raise UsageError(f"stdin: expected at most {_MAX_INPUT_CHARS:,} characters, found more")
        return text

    def _err(self, text: str, colour: str = "", *, label: str = "", label_colour: str = "") -> None:
        if sys.stderr is None:
            return
        if sys.stderr.isatty():
            text = _harmless(text)
            if _shows_colours():
                text = f"{colour}{text}{_PLAIN}" if colour else text
                label = f"{_BOLD}{label_colour}{label}{_PLAIN}" if label else ""
        _write_err(f"{label} {text}\n" if label else f"{text}\n")


def _write_err(text: str) -> None:
    # Answers do not depend on whether what is said beside them can be written: its reader may be gone, its disk full.
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _shows_colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _harmless(text: str) -> str:
    """Replace the control characters with which text from a model or a file could steer a terminal."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    return char not in "\n\t" and (char < " " or "\x7f" <= char < "\xa0")


console = Console()

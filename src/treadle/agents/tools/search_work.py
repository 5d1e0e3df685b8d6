"""Searches the files beneath a folder line by line, in a child process because patterns may never end.

Leaves to others: starting and stopping the process (``child``).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from treadle.agents.tools.text import decode
from treadle.agents.tools.workspace import Entry, Workspace
from treadle.errors import ToolError

__all__ = ["SKIPPED_FOLDERS", "work"]

# Folders full of what nobody wrote.
SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache"})

_MAX_FILE_BYTES, _MAX_TOTAL_BYTES = 16 << 20, 256 << 20
_MAX_FILES = 20_000
_MAX_MATCHES = 60
_CHARS_BEFORE, _CHARS_OF_LINE = 80, 200

Find = Callable[[str], "re.Match[str] | None"]


def work(request: Mapping[str, Any]) -> str:
    """Return the lines that match, as ``path:line: text``, and what was left out.

    Raises:
        ToolError: The pattern is no regular expression, or the folder is not there.
    """
    workspace = Workspace(request["root"], fd=request["fd"])
    search = _Search(workspace, _finder(request["text"], request["regex"]))
    names = workspace.names_of(request["folder"])
    search.run(_entries(workspace, names, request["files"]))
    return search.answer()


def _finder(text: str, is_regex: bool) -> Find:
    try:
        return re.compile(text if is_regex else re.escape(text), re.IGNORECASE).search
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"{text[:200]!r} is no regular expression ({error}); with regex false it is plain text"
        raise ToolError(problem) from None


def _entries(workspace: Workspace, names: tuple[str, ...], pattern: str) -> Iterable[Entry]:
    """Return the files that are meant; a path of a file is as good as one of a folder."""
    with suppress(ToolError):
        os.close(workspace.open_file(names))
        return [Entry(names, is_folder=False, is_file=True, num_bytes=0)]
    return (
        entry
        for entry in workspace.walk(names, SKIPPED_FOLDERS)
        if entry.is_file and (fnmatch.fnmatch(entry.names[-1], pattern) or fnmatch.fnmatch(entry.path, pattern))
    )


class _Search:
    """The matches so far, and what the search has cost."""

    def __init__(self, workspace: Workspace, find: Find) -> None:
        self._workspace = workspace
        self._find = find
        self._matches: list[str] = []
        self._unread: list[str] = []
        self._num_files = 0
        self._num_bytes = 0
        self._is_cut = False

    def run(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self._num_files == _MAX_FILES or self._num_bytes > _MAX_TOTAL_BYTES or self._is_cut:
                self._is_cut = True
                return
            try:
                content = self._workspace.read(entry.names, _MAX_FILE_BYTES)
                self._num_files += 1
                self._num_bytes += len(content)
                self._look(entry.path, decode(content, entry.path)[0])
            except ToolError:
                self._unread.append(entry.path)

    def _look(self, path: str, text: str) -> None:
        for number, line in enumerate(text.split("\n"), start=1):
            found = self._find(line)
            if found is None:
                continue
            if len(self._matches) == _MAX_MATCHES:
                self._is_cut = True
                return
            self._matches.append(f"{path}:{number}: {_excerpt(line, found.start())}")

    def answer(self) -> str:
        lines = list(self._matches)
        if not lines:
            lines.append(f"no line matches in {self._num_files} text file{'s' * (self._num_files != 1)}")
        if self._is_cut:
            lines.append("[cut: there is more to search; look for something rarer, or in one folder]")
        if self._unread:
            more = ", ..." if len(self._unread) > 10 else ""
            lines.append(f"[not searched, as binary or too long: {', '.join(self._unread[:10])}{more}]")
        return "\n".join(lines)


def _excerpt(line: str, start: int) -> str:
    first = max(0, start - _CHARS_BEFORE) if len(line) > _CHARS_OF_LINE else 0
    part = line[first : first + _CHARS_OF_LINE].rstrip("\r")
    return f"{'...' * (first > 0)}{part}{'...' * (first + _CHARS_OF_LINE < len(line))}"

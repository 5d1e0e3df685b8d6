"""The folder that the tools of an agent work in: reads, lists and replaces what is beneath it, and nothing else.

Leaves to others: resolving a path safely (``beneath``), what bytes mean as text (``text``), what a model is told of it
(``files`` and its like).
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treadle.agents.tools.beneath import open_beneath
from treadle.errors import ToolError, UsageError

__all__ = ["Entry", "Workspace"]

# Where the sandbox shows the workspace: what code prints there must mean the same file to the other tools.
_SANDBOX_ROOT = "/workspace"
_MAX_PATH_CHARS, _MAX_NAME_BYTES = 1024, 255
_MAX_LISTED_NAMES = 10_000
_NUM_NEAR_NAMES = 8
_MAX_COMPARED_NAMES = 1000
_NEW_FILE_MODE, _NEW_FOLDER_MODE = 0o666, 0o777


@dataclass(frozen=True)
class Entry:
    """Something beneath the workspace: its path there, what it is, and the length of a file."""

    names: tuple[str, ...]
    is_folder: bool
    is_file: bool
    num_bytes: int

    @property
    def path(self) -> str:
        """Return the path with slashes; what is no character of a file name is escaped."""
        return shown("/".join(self.names))


class Workspace:
    """A folder, held open, so that it stays the same one whatever becomes of its path.

    Args:
        root: The folder.
        fd: A descriptor of it, which becomes the workspace's own; by default one is opened.

    Raises:
        UsageError: It is no folder, or the system cannot open files relative to one.
    """

    def __init__(self, root: str | Path, *, fd: int | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        if os.open not in os.supports_dir_fd:
            raise UsageError("this system cannot open files beneath a folder safely, as the file tools must")
        if fd is not None:
            self._fd = fd
            return
        try:
            self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"the workspace {root} is no folder to work in: {error.strerror}") from None

    @property
    def fd(self) -> int:
        """Return the descriptor of the folder."""
        return self._fd

    def close(self) -> None:
        """Let go of the folder; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def names_of(self, path: str) -> tuple[str, ...]:
        """Return the parts of a path that a model wrote: relative, or with the workspace named in front.

        Raises:
            ToolError: It leads elsewhere, or no file can have it.
        """
        if "\0" in path or len(path) > _MAX_PATH_CHARS:
            raise ToolError(f"{shown(path[:80])!r} is no path")
        inside = path
        for root in (str(self.root), _SANDBOX_ROOT):
            if path == root or path.startswith(f"{root}/"):
                inside = path[len(root) :].lstrip("/")
                break
        if inside.startswith("/"):
            raise ToolError(f"{shown(path)} is outside of the workspace; give a path relative to it, like 'data.csv'")
        names = tuple(name for name in inside.split("/") if name not in ("", "."))
        if ".." in names:
            raise ToolError(f"{shown(path)} has '..' in it; give a path relative to the workspace, like 'data.csv'")
        if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in names):
            raise ToolError(f"{shown(path[:80])}... has a name longer than {_MAX_NAME_BYTES} bytes")
        return names

    def open_file(self, names: Sequence[str]) -> int:
        """Return a descriptor to read a file with; the caller closes it.

        Raises:
            ToolError: It is not there, no regular file, or cannot be read.
        """
        # Without O_NONBLOCK the opening of a pipe would wait for somebody to write to it.
        fd = self._open(names, os.O_RDONLY | os.O_NONBLOCK)
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return fd
        os.close(fd)
        what = "a folder; list_files shows what is in it" if stat.S_ISDIR(mode) else "no regular file"
        raise ToolError(f"{_joined(names)} is {what}")

    def read(self, names: Sequence[str], max_bytes: int) -> bytes:
        """Return what is in a file.

        Raises:
            ToolError: As ``open_file`` does, or it has more than ``max_bytes``.
        """
        with os.fdopen(self.open_file(names), "rb") as file:
            content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                num_bytes = max(os.fstat(file.fileno()).st_size, len(content))
                raise ToolError(f"{_joined(names)} is too long: {num_bytes:,} bytes of at most {max_bytes:,}")
        return content

    def entries(self, names: Sequence[str]) -> list[Entry]:
        """Return what is in a folder, by name, at most 10,000 of it.

        Raises:
            ToolError: It is not there, or no folder.
        """
        fd = self._open(names, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found: list[Entry] = []
            with os.scandir(fd) as scan:
                for each in scan:
                    if len(found) == _MAX_LISTED_NAMES:
                        break
                    found.append(_entry((*names, each.name), fd))
        finally:
            os.close(fd)
        return sorted(found, key=lambda entry: entry.names)

    def walk(self, names: Sequence[str], skipped: frozenset[str]) -> Iterator[Entry]:
        """Yield what is beneath a folder, the nearest first; of folders with a name in ``skipped`` only themselves.

        Symbolic links are not followed.
        """
        waiting = deque([tuple(names)])
        while waiting:
            folder = waiting.popleft()
            try:
                entries = self.entries(folder)
            except ToolError:
                if folder == tuple(names):
                    raise
                continue  # gone or forbidden meanwhile
            for entry in entries:
                yield entry
                if entry.is_folder and entry.names[-1] not in skipped:
                    waiting.append(entry.names)

    def replace(self, names: Sequence[str], content: bytes) -> bool:
        """Put ``content`` into a file at once: a reader sees the old content or the new, never a part.

        Folders that are missing are made; the file keeps its permissions.

        Returns:
            Whether the file is new.

        Raises:
            ToolError: There is something else than a file at the path, or it cannot be written.
        """
        if not names or any(shown(name) != name for name in names):
            raise ToolError(f"{_joined(names)!r} cannot be the name of a file to write")
        try:
            folder = self._open_folder(names[:-1])
            try:
                return _replace_in(folder, names, content)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._refusal(names, error, "written") from None

    def _open_folder(self, names: Sequence[str]) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY
        folder = open_beneath(self._fd, (), flags)
        for depth in range(1, len(names) + 1):
            try:
                inner = open_beneath(self._fd, names[:depth], flags)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(names[depth - 1], _NEW_FOLDER_MODE, dir_fd=folder)
                inner = open_beneath(self._fd, names[:depth], flags)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _open(self, names: Sequence[str], flags: int) -> int:
        try:
            return open_beneath(self._fd, names, flags)
        except OSError as error:
            raise self._refusal(names, error, "read") from None

    def _refusal(self, names: Sequence[str], error: OSError, verb: str) -> ToolError:
        path = _joined(names)
        if error.errno == errno.ENOENT:
            return ToolError(f"{path} is not there{self._near(names)}")
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return ToolError(f"{path} leads through a symbolic link that is not followed: it may lead out")
        if error.errno == errno.ENOTDIR:
            return ToolError(f"{path}: a part of the path, or its end, is no folder")
        return ToolError(f"{path} cannot be {verb}: {error.strerror}")

    def _near(self, names: Sequence[str]) -> str:
        """Name what is there instead, in the nearest folder that is, and what sounds alike first."""
        depth = len(names) - 1
        there = self._names_in(names[:depth])
        while there is None and depth > 0:
            depth -= 1
            there = self._names_in(names[:depth])
        where = _joined(names[:depth])
        if not there:
            return f"; {where} is empty"
        alike = difflib.get_close_matches(names[-1], there[:_MAX_COMPARED_NAMES], _NUM_NEAR_NAMES, cutoff=0.5)
        listed = list(dict.fromkeys([*alike, *there]))[:_NUM_NEAR_NAMES]
        more = ", ..." if len(there) > len(listed) else ""
        return f"; in {where} there is {', '.join(map(shown, listed))}{more}"

    def _names_in(self, names: Sequence[str]) -> list[str] | None:
        try:
            return [entry.names[-1] + "/" * entry.is_folder for entry in self.entries(names)]
        except ToolError:
            return None


def shown(name: str) -> str:
    """Return a name of a file as text for a model: control characters and broken bytes are escaped."""
    clean = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
    return clean.encode("utf-8", "backslashreplace").decode()


def _joined(names: Sequence[str]) -> str:
    return shown("/".join(names)) or "the workspace"


def _entry(names: tuple[str, ...], folder: int) -> Entry:
    try:
        status = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return Entry(names, is_folder=False, is_file=False, num_bytes=0)
    return Entry(names, stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode), status.st_size)


def _replace_in(folder: int, names: Sequence[str], content: bytes) -> bool:
    name, mode = names[-1], None
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise ToolError(f"{_joined(names)} is {kind} and cannot be replaced")
        mode = stat.S_IMODE(status.st_mode) & 0o777
    temporary = f".{os.urandom(8).hex()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _NEW_FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return mode is None

"""Takes the address, or the file, on which a server listens, and gives the file back at the end.

Leaves to others: serving what comes (``server.serve``).
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.server.settings import ServerSettings

__all__ = ["address_of", "listening"]

_BACKLOG = 2048  # uvicorn's


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """Bind before anything is loaded, so that what is taken is told at once; close what was bound at the end.

    A port refuses clients until it is served. A socket file lets them wait, as nothing else would keep a second server
    from taking it for one that was left behind. Only such a one is replaced.

    Raises:
        UsageError: The address is taken or not ours, or the file cannot be made.
    """
    if settings.socket is None:
        with _bind_port(settings) as listener:
            yield listener
        return
    with _bind_file(settings.socket, settings.socket_mode) as listener:
        made = _identity(settings.socket)
        try:
            yield listener
        finally:
            if _identity(settings.socket) == made:
                settings.socket.unlink(missing_ok=True)


def address_of(listener: socket.socket, *, is_secure: bool) -> str:
    """Return where clients find a listener."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    scheme = "https" if is_secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind_port(settings: ServerSettings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with both, such as localhost, the address that every client tries.
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"host {settings.host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}",
            hint="choose another with --port, or 0 for any that is free",
        ) from None
    return listener


def _bind_file(path: Path, mode: int) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError(f"cannot listen on {path}: this system has no unix sockets", hint="use --host and --port")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_behind(path)
        listener.bind(str(path))
        path.chmod(mode)  # before anybody can connect
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {path}: {error.strerror or error}",
            hint="the folder must exist and be yours to write in, and the path be shorter than 108 bytes",
        ) from None
    except UsageError:
        listener.close()
        raise
    return listener


def _remove_left_behind(path: Path) -> None:
    """Make room: remove the socket of a server that was killed, and refuse whatever else there is."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"cannot listen on {path}: it is there already, and no socket", hint="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # so many wait there already
            pass
    raise UsageError(f"cannot listen on {path}: another server does", hint="end that one, or choose another path")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""Opens files beneath a folder so that nothing in a path, or put into it meanwhile, leads out of the folder.

The kernel does it where it can (``openat2``, which follows symbolic links that stay inside); elsewhere the path is
walked one name at a time and every symbolic link is refused.

Leaves to others: what paths mean to a model, and what is read and written (``workspace``).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
from collections.abc import Sequence

__all__ = ["open_beneath"]

# https://man7.org/linux/man-pages/man2/openat2.2.html; the number is the same on all architectures but Alpha.
_SYS_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
# The kernel gives up with EAGAIN if a folder is renamed while `..` of a link is resolved.
_NUM_TRIES = 8
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: int, names: Sequence[str], flags: int, *, has_openat2: bool | None = None) -> int:
    """Open what ``names`` lead to from the folder behind the descriptor ``root``; no names are the folder itself.

    Args:
        root: A descriptor of the folder.
        names: The parts of the path, without ``.``, ``..`` and slashes.
        flags: Those of ``os.open``; what opens must exist.
        has_openat2: Whether to let the kernel resolve the path; by default if it can.

    Raises:
        OSError: It cannot be opened; EXDEV or ELOOP if a symbolic link leads out or is not followed.
        ValueError: A name is none.
    """
    for name in names:
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is no name of a file")
    flags |= os.O_CLOEXEC | os.O_NOCTTY
    if _has_openat2() if has_openat2 is None else has_openat2:
        return _openat2(root, os.fsencode("/".join(names) or "."), flags)
    return _walk(root, names, flags | os.O_NOFOLLOW)


def _openat2(root: int, path: bytes, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_NUM_TRIES):
        number = _libc().syscall(_SYS_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how))
        if number >= 0:
            return int(number)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), os.fsdecode(path))


def _walk(root: int, names: Sequence[str], flags: int) -> int:
    if not names:
        return os.open(".", flags, dir_fd=root)
    folder = os.dup(root)
    try:
        for name in names[:-1]:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(names[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    return libc


@functools.cache
def _has_openat2() -> bool:
    if platform.system() != "Linux":
        return False
    try:
        os.close(_openat2(_AT_FDCWD, b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return False  # a kernel before 5.6, or a filter that knows nothing of the call
    return True

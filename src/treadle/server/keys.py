"""The API keys of a server: where they come from, and which of them a request carries.

Leaves to others: who must carry one (``server.auth``) and how much it may use (``server.limits``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from treadle.errors import UsageError

__all__ = ["KEY_VARIABLE", "Keyring", "read_keys"]

KEY_VARIABLE = "TREADLE_API_KEY"


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Return the key in the environment, if there is one, and those of a file: one a line, lines with ``#`` left out.

    Raises:
        UsageError: The file cannot be read, has no key or a line that is none; what is in it is not told.
    """
    given = os.environ.get(KEY_VARIABLE, "").strip()
    keys = [given] if given else []
    if path is not None:
        keys += _keys_of_file(path)
    return tuple(dict.fromkeys(keys))


def _keys_of_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path}: {error}") from None
    keys = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not key.isprintable() or len(key.split()) > 1:
            raise UsageError(
                f"--api-key-file {path}, line {number}: expected a key without spaces in it",
                hint="write one key per line, and comments into lines of their own that begin with #",
            )
        keys.append(key)
    if not keys:
        raise UsageError(f"--api-key-file {path}: there is no key in it", hint="write one key per line")
    return keys


class Keyring:
    """The keys a server accepts at present; it holds their digests only."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests: list[bytes] = []
        self.replace(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def replace(self, keys: Iterable[str]) -> None:
        """Accept other keys from now on."""
        self._digests = [_digest(key.encode()) for key in keys]

    def find(self, given: bytes) -> str | None:
        """Return the id of the key that was given, the hex digits of its SHA-256, or None if it is none of ours.

        Takes the same time whichever it is and however near.
        """
        digest = _digest(given)
        found = None
        for key in self._digests:
            if hmac.compare_digest(key, digest):
                found = key.hex()
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

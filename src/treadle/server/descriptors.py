"""Sees to it that connections never take all the files this process may open: models and caches need some, too.

Leaves to others: refusing a connection (``server.protocol``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

__all__ = ["AcceptFailures", "connection_limit"]

_log = logging.getLogger("treadle.server")
_OTHER_FILES = 256  # models, caches, the sockets of engines elsewhere
_REPORT_SECONDS = 60.0
_ACCEPTING = ("accept", "_start_serving")  # the latter is how a loop goes on after the former has failed


def connection_limit(wanted: int) -> int:
    """Return how many connections may be open at a time: what is wanted, or what the limits of the process leave.

    Raises the process's own limit as far as it may.
    """
    most = _raise_file_limit(2 * wanted + _OTHER_FILES)  # those just closed count until the loop has come round
    if most is None or most >= wanted + _OTHER_FILES:
        return wanted
    limit = max(1, most - min(_OTHER_FILES, most // 2))
    if limit < wanted:
        _log.warning(
            "this process may open %d files, which leaves %d connections at a time instead of %d; "
            "raise it with `ulimit -n` or LimitNOFILE=",
            most,
            limit,
            wanted,
        )
    return min(limit, wanted)


def _raise_file_limit(wanted: int) -> int | None:
    """Return how many files may be open, None where nothing limits them."""
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY or now >= wanted:
        return None if now == resource.RLIM_INFINITY else now
    raised = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
    except (ValueError, OSError):
        return now
    return raised


class AcceptFailures:
    """Handles what an event loop reports: that no file was left for a connection, once a minute; all else as ever.

    A loop may fail to accept thousands of times a second, with a traceback each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report what happened; an exception handler of an event loop."""
        if not any(call in context.get("message", "") for call in _ACCEPTING):
            loop.default_exception_handler(context)
            return
        now = self._clock()
        if self._reported is None or now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            _log.error("connections wait, as none could be accepted: %s", context.get("exception"))

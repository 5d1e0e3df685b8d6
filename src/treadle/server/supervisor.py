"""Tells the service manager that started this process how it is doing, by the protocol of systemd's sd_notify.

Leaves to others: when (``server.serve``). Does nothing where nobody asked to be told.
https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["tell_supervisor"]


def tell_supervisor(state: str) -> None:
    """Send a state such as ``READY=1``; an answer is not awaited, and that it did not arrive is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):  # the abstract namespace of Linux
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)

"""Names of hosts and origins of pages, spelled in one way so that they can be compared.

Leaves to others: which of them are welcome (``server.auth``).
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from treadle.errors import UsageError

__all__ = ["ANY_ORIGIN", "host_name", "is_unambiguous", "operator_host", "operator_origin", "origin_host"]

ANY_ORIGIN = "*"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port, brackets and the dot of the root."""
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    elif host.count(":") > 1:  # an address without the brackets it should have
        name = host
    else:
        name = host.partition(":")[0]
    name = name.lower().removesuffix(".")
    try:
        return ipaddress.ip_address(name).compressed
    except ValueError:
        return name


def is_unambiguous(name: str) -> bool:
    """Tell whether a name means the same to everybody on this network, so that no stranger's DNS can point it here.

    That is an address, or a name without a dot, which no public DNS has.
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name
    return True


def origin_host(origin: str) -> str | None:
    """Return host and port of an origin as they stand in a Host header, None if it is no web page's."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def operator_host(given: str) -> str:
    """Return a host an operator allows as ``host_name`` would; raises UsageError if nobody could be called so."""
    name = host_name(given.strip())
    if "/" in given or not (_NAME.fullmatch(name) or ":" in name):
        raise UsageError(
            f"allowed host {given!r:.80}: expected a name or an address", hint="name each host, such as llm.example.com"
        )
    return name


def operator_origin(given: str) -> str:
    """Return an origin an operator allows as browsers spell it; raises UsageError if no browser would send it."""
    origin = given.strip().lower().removesuffix("/")
    if origin in (ANY_ORIGIN, "null"):
        return origin
    try:
        parts = urlsplit(origin)
    except ValueError:
        parts = urlsplit("")
    if not (parts.scheme and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"):
        raise UsageError(
            f"origin {given!r:.80}: expected scheme and host, and the port unless it is the usual one",
            hint="such as https://app.example.com or http://localhost:3000",
        )
    return origin

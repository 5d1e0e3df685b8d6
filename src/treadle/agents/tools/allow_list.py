"""Which addresses of the web a tool may ask: hosts and beginnings of URLs, none of the own network by a trick.

Leaves to others: asking them (``fetch``).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import httpx

from treadle.errors import ToolError, UsageError

__all__ = ["AllowList", "Rule", "is_public"]

_PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(
    r"((?P<scheme>https?)://)?(?P<host>\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(/[^?#\s]*)?)",
    re.IGNORECASE,
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class Rule:
    """An entry of the list, taken apart; ``port`` None means the usual one of the scheme.

    ``names_machine`` is whether the host is an IP address or localhost: who wrote that means that very machine, however
    private it is.
    """

    host: str
    scheme: str | None
    port: int | None
    path: str
    names_machine: bool

    def fits(self, url: httpx.URL) -> bool:
        """Tell whether the rule allows an address."""
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        port = url.port or _PORTS[url.scheme]
        return (
            self._fits_host(host)
            and self.scheme in (None, url.scheme)
            and port == (self.port or _PORTS[url.scheme])
            and _is_beneath(url.path, self.path)
        )

    def _fits_host(self, host: str) -> bool:
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return host == self.host


class AllowList:
    """Hosts and beginnings of URLs, such as "example.com", "*.example.com", "localhost:8000", "https://a.b/api/".

    Args:
        entries: They; "*" is every host that is not of the own network.
        allow_private: Whether names may lead to addresses of the own network, or of this machine.

    Raises:
        UsageError: An entry is none.
    """

    def __init__(self, entries: Sequence[str], *, allow_private: bool = False) -> None:
        self._entries = list(entries)
        self._rules = [_read_rule(entry) for entry in entries]
        self._allow_private = allow_private

    def __str__(self) -> str:
        return ", ".join(self._entries) or "none"

    def check(self, url: httpx.URL) -> Rule:
        """Return the rule that allows an address.

        Raises:
            ToolError: There is none, or it is no address of the web.
        """
        if url.scheme not in _PORTS or not url.host:
            raise ToolError(f"{_short(url)} is no address of the web; it should be like https://example.com/page")
        if url.userinfo:
            raise ToolError("an address with a user name in it is not asked")
        for rule in self._rules:
            if rule.fits(url):
                return rule
        raise ToolError(f"{_short(url)} is not allowed; allowed are: {self}")

    def check_address(self, rule: Rule, host: str, address: str) -> None:
        """Refuse an IP address that a host of a rule has in the own network.

        Raises:
            ToolError: It is one.
        """
        if not (self._allow_private or rule.names_machine or is_public(address)):
            raise ToolError(f"{host} leads to {address}, an address of the own network, which is not allowed")


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the internet, also if it is an IPv4 one in the clothes of an IPv6 one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False  # with a zone, as link-local addresses have one
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast


def _read_rule(entry: str) -> Rule:
    found = _ENTRY.fullmatch(entry.strip())
    port = int(found["port"] or 1) if found else 0
    if found is None or not 0 < port < 65536 or (found["path"] and not found["scheme"]):
        raise UsageError(
            f"{entry!r} is nothing that can be allowed",
            hint="give a host or the beginning of a URL, like example.com, localhost:8000 or https://example.com/api/",
        )
    host = found["host"].lower().strip("[]")
    scheme = found["scheme"].lower() if found["scheme"] else None
    return Rule(host, scheme, port if found["port"] else None, found["path"], host == "localhost" or _is_ip(host))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_beneath(path: str, prefix: str) -> bool:
    """Tell whether a path begins with another one; dots that lead up again, however written, begin with none."""
    if prefix in ("", "/"):
        return True
    if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(unquote(path)))):
        return False
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _short(url: httpx.URL) -> str:
    text = str(url)
    return text if len(text) <= 200 else f"{text[:200]}..."

"""What the list of allowed addresses lets through."""

from __future__ import annotations

import httpx
import pytest

from treadle.agents.tools.allow_list import AllowList, is_public
from treadle.errors import ToolError, UsageError


def is_allowed(entry: str, url: str) -> bool:
    try:
        AllowList([entry]).check(httpx.URL(url))
    except ToolError:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "url", "expected"),
    [
        ("example.com", "https://example.com/a?b", True),
        ("example.com", "http://EXAMPLE.com.", True),
        ("Example.COM", "https://example.com/", True),
        ("example.com", "https://example.com:8443/", False),
        ("example.com", "https://www.example.com/", False),
        ("example.com", "https://example.com.evil.org/", False),
        ("example.com", "https://evilexample.com/", False),
        ("example.com", "https://evil.org/?example.com", False),
        ("example.com", "https://example.com@evil.org/", False),
        ("example.com", "https://user@example.com/", False),
        ("example.com", "ftp://example.com/", False),
        ("example.com", "file:///etc/passwd", False),
        ("example.com", "//example.com/", False),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("*", "https://anything.org/", True),
        ("localhost:8000", "http://localhost:8000/x", True),
        ("localhost:8000", "http://localhost/", False),
        ("[::1]:80", "http://[::1]/", True),
        ("10.0.0.5", "http://10.0.0.5/", True),
        ("https://example.com", "http://example.com/", False),
        ("https://example.com/v1", "https://example.com/v1", True),
        ("https://example.com/v1", "https://example.com/v1/x?y", True),
        ("https://example.com/v1", "https://example.com/v10", False),
        ("https://example.com/v1/", "https://example.com/v1/x", True),
        ("https://example.com/v1/", "https://example.com/v1/../admin", False),
        ("https://example.com/v1/", "https://example.com/v1/%2e%2e/admin", False),
        ("https://example.com/v1/", "https://example.com/v1/..%2fadmin", False),
        ("https://example.com/v1/", "https://example.com/v1/%252e%252e/admin", False),
        ("https://example.com/v1/", "https://example.com/v1/..%5cadmin", False),
        ("https://example.com/V1/", "https://example.com/v1/x", False),
    ],
)
def test_what_an_entry_lets_through(entry: str, url: str, expected: bool) -> None:
    assert is_allowed(entry, url) is expected


def test_nothing_is_allowed_by_default() -> None:
    with pytest.raises(ToolError, match="allowed are: none"):
        AllowList([]).check(httpx.URL("https://example.com/"))


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "ftp://x",
        "example.com/path",
        "a b",
        "https://",
        "*.*.com",
        "exa*mple.com",
        "x:99999",
        "x:0",
        "http://u@x/",
        "http://x/?q",
        "-x",
    ],
)
def test_what_is_no_entry_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="nothing that can be allowed"):
        AllowList([entry])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("nothing", False),
    ],
)
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


def test_who_names_a_machine_means_it() -> None:
    allowed = AllowList(["127.0.0.1", "intranet.example"])
    named = allowed.check(httpx.URL("http://127.0.0.1/"))
    allowed.check_address(named, "127.0.0.1", "127.0.0.1")
    by_name = allowed.check(httpx.URL("http://intranet.example/"))
    with pytest.raises(ToolError, match=r"intranet.example leads to 127.0.0.1, an address of the own network"):
        allowed.check_address(by_name, "intranet.example", "127.0.0.1")
    AllowList(["intranet.example"], allow_private=True).check_address(by_name, "intranet.example", "127.0.0.1")

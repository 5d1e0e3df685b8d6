"""The tool that gets a page of the web, from hosts that were allowed before.

A name is resolved once, its address is checked, and that very address is connected to: a name that leads elsewhere the
next time it is asked for gains nothing. No proxy is used, which would resolve names by itself.

Leaves to others: what is allowed (``allow_list``) and the text of a page (``html_work``).
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from treadle.agents.gate import OpenGate, ToolGate
from treadle.agents.tool import ToolResult, ToolSpec
from treadle.agents.tools.allow_list import AllowList
from treadle.agents.tools.child import run_child
from treadle.agents.tools.local_tool import parameters
from treadle.agents.tools.text import MAX_RESULT_CHARS
from treadle.agents.trace import span
from treadle.errors import ToolError

__all__ = ["FetchLimits", "FetchTool", "Resolve"]

# Gives the IP addresses of a host, best first.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_HTML_WORK = "treadle.agents.tools.html_work"
_MAX_URL_CHARS = 2000
# A connection is known by its address: the next host there must show a certificate of its own.
_NO_REUSE = httpx.Limits(max_keepalive_connections=0)
_HEADERS = {
    "User-Agent": "treadle",
    "Accept": "text/html, application/json, text/*;q=0.9",
    "Accept-Encoding": "identity",
}
_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT_TYPES = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|javascript|x-ndjson)|")
# Codecs that only turn bytes into characters, and do so in one pass.
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(-?[lb]e)?|us-ascii|(iso-?8859|windows|cp)-?[0-9-]+|gbk|gb2312|gb18030|big5|"
    r"shift[_-]jis|euc-(jp|kr)|koi8-[ru]|latin-?1"
)


@dataclass(frozen=True)
class FetchLimits:
    """What one call may take."""

    seconds: float = 20.0
    body_bytes: int = 2 << 20
    num_redirects: int = 5


@dataclass(frozen=True)
class _Page:
    url: httpx.URL
    status: int
    content_type: str
    body: bytes
    is_cut: bool


class FetchTool:
    """Gets pages with GET and shows their text.

    Args:
        allowed: What may be asked.
        limits: What one call may take.
        gate: What a call passes before it starts.
        resolve: Gives the addresses of a host; by default the system does.
    """

    def __init__(
        self,
        allowed: AllowList,
        *,
        limits: FetchLimits | None = None,
        gate: ToolGate | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._allowed = allowed
        description = f"Get a page of the web and show its text. Only these are allowed: {allowed}."
        self._spec = ToolSpec(_NAME, description, _PARAMETERS, is_read_only=True)
        self._limits = limits or FetchLimits()
        self._gate = gate or OpenGate()
        self._resolve = resolve or _resolve
        self._client: httpx.AsyncClient | None = None

    @property
    def spec(self) -> ToolSpec:
        """Return what the model is told of the tool."""
        return self._spec

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Get a page; raises ToolError if it may not be asked for, or there is none."""
        url = _read_url(arguments["url"])
        async with self._gate.enter("io", _NAME):
            try:
                with span("network", url.host):
                    page = await asyncio.wait_for(self._get(url), self._limits.seconds)
            except asyncio.TimeoutError:
                raise ToolError(f"{url} took longer than {self._limits.seconds:g} s") from None
            except httpx.HTTPError as error:
                raise ToolError(f"{url} cannot be got: {error or type(error).__name__}") from None
        text = await self._text(page)
        return ToolResult(_shown(page, text, arguments.get("start", 0)), is_error=page.status >= 400)

    async def close(self) -> None:
        """Close connections; may be called twice."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _get(self, url: httpx.URL) -> _Page:
        for _ in range(self._limits.num_redirects + 1):
            page, target = await self._ask(url)
            if target is None:
                return page
            url = _read_url(target, url)
        raise ToolError(f"{url} is one redirect too many; at most {self._limits.num_redirects} are followed")

    async def _ask(self, url: httpx.URL) -> tuple[_Page, str | None]:
        """Return a page, and where it redirects to."""
        rule = self._allowed.check(url)
        host = url.raw_host.decode("ascii")
        try:
            addresses = await self._resolve(host, url.port or (443 if url.scheme == "https" else 80))
        except OSError as error:
            raise ToolError(f"the host {host} is not known: {error.strerror or error}") from None
        for address in addresses:
            self._allowed.check_address(rule, host, address)
        problem: httpx.HTTPError | None = None
        for address in addresses:
            try:
                return await self._ask_address(url, host, address)
            except httpx.ConnectError as error:
                problem = error
        raise problem or ToolError(f"the host {host} has no address")

    async def _ask_address(self, url: httpx.URL, host: str, address: str) -> tuple[_Page, str | None]:
        if self._client is None:
            # Certificates as SSL_CERT_FILE says; nothing else of the environment, which may name a proxy.
            self._client = httpx.AsyncClient(verify=httpx.create_ssl_context(), trust_env=False, limits=_NO_REUSE)
        # The certificate is checked against the name, although the address is connected to.
        extensions = {"sni_hostname": host, "timeout": httpx.Timeout(None).as_dict()}
        headers = {**_HEADERS, "Host": url.netloc.decode("ascii")}
        request = httpx.Request("GET", url.copy_with(host=address), headers=headers, extensions=extensions)
        response = await self._client.send(request, stream=True)
        try:
            return await self._read(url, response)
        finally:
            await response.aclose()
            self._client.cookies.clear()

    async def _read(self, url: httpx.URL, response: httpx.Response) -> tuple[_Page, str | None]:
        kind = response.headers.get("Content-Type", "")
        target = response.headers.get("Location") if response.status_code in _REDIRECTS else None
        if target is not None:
            return _Page(url, response.status_code, kind, b"", is_cut=False), target
        if not _TEXT_TYPES.fullmatch(kind.partition(";")[0].strip().lower()):
            raise ToolError(f"{url} is {kind[:100]}; only text, HTML and JSON are shown")
        body, is_cut = await self._body(response)
        return _Page(url, response.status_code, kind, body, is_cut), None

    async def _body(self, response: httpx.Response) -> tuple[bytes, bool]:
        """Return the body, or as much of it as may be, and whether that was too little."""
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip", "deflate"):
            raise ToolError(f"the answer is in the encoding {encoding[:40]}, which was not asked for")
        inflate = None if encoding == "identity" else zlib.decompressobj(wbits=47)
        body, most = bytearray(), self._limits.body_bytes
        async for chunk in response.aiter_raw():
            try:
                body += chunk if inflate is None else inflate.decompress(chunk, most + 1 - len(body))
            except zlib.error as error:
                raise ToolError(f"the answer is no {encoding}: {error}") from None
            if len(body) > most:
                return bytes(body[:most]), True
        return bytes(body), False

    async def _text(self, page: _Page) -> str:
        text = _decode(page)
        kind = page.content_type.lower()
        if "html" in kind:
            return (await run_child(_HTML_WORK, {"html": text}, name=_NAME, gate=self._gate)).text
        if "json" in kind and not page.is_cut:
            with suppress(ValueError, RecursionError):
                return json.dumps(json.loads(text), ensure_ascii=False, indent=1)
        return text


_NAME = "fetch"
_PARAMETERS = parameters(
    {"url": {"type": "string", "description": "The whole address, with https:// in front."}},
    {"start": {"type": "integer", "minimum": 0, "default": 0, "description": "Characters to pass over at first."}},
)


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _read_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    if len(text) > _MAX_URL_CHARS:
        raise ToolError(f"an address has at most {_MAX_URL_CHARS} characters, not {len(text)}")
    try:
        url = httpx.URL(text.strip()) if base is None else base.join(text.strip())
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise ToolError(f"{text[:200]!r} is no address: {error}") from None
    return url.copy_with(fragment=None)


def _decode(page: _Page) -> str:
    found = re.search(r"charset=[\"']?([\w.:-]+)", page.content_type)
    charset = found[1].lower() if found else "utf-8"
    if not _CHARSETS.fullmatch(charset):
        charset = "utf-8"
    with suppress(LookupError):
        return codecs.decode(page.body, charset, "replace").removeprefix("\ufeff")
    return page.body.decode("utf-8", "replace")


def _shown(page: _Page, text: str, start: int) -> str:
    title = f"{page.url} answered {page.status}, {page.content_type.partition(';')[0] or 'without a type'}"
    part = text[start : start + MAX_RESULT_CHARS]
    lines = [title, part or ("it is empty" if not text else f"it has only {len(text):,} characters")]
    end = start + len(part)
    if part and end < len(text):
        lines.append(f"[cut: {end:,} of {len(text):,} characters; read on with start {end}]")
    if page.is_cut:
        lines.append(f"[cut: the page goes on beyond the first {len(page.body):,} bytes, which cannot be read]")
    return "\n".join(lines)

"""The fetch tool against a server on this machine: what is shown of pages, and where it does not go."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tool_calls import call, refusal

from local_server import Answer, LocalServer, local_server, status_answer, text_answer
from patience import PATIENCE_SECONDS
from treadle.agents.tools.allow_list import AllowList
from treadle.agents.tools.fetch import FetchLimits, FetchTool
from treadle.agents.tools.html_work import work
from treadle.errors import ToolError


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        yield server


def tool(server: LocalServer, *entries: str, **limits: float) -> list[FetchTool]:
    address = server.url.removeprefix("http://")
    return [FetchTool(AllowList(entries or [address]), limits=FetchLimits(**limits))]  # type: ignore[arg-type]


def raw_answer(body: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_shows_title_and_text_of_a_page(server: LocalServer) -> None:
    page = "<html><head><title> A  page </title><style>x</style></head><body><h1>Hello</h1><p>wor<b>ld</b> &amp; all"
    server.routes["/"] = text_answer(page, "text/html; charset=utf-8")
    url = f"{server.url}/#part"
    assert (
        call(tool(server), "fetch", url=url)
        == f"{server.url}/ answered 200, text/html\nTitle: A page\n\nHello\n\nworld & all"
    )
    (headers,) = server.headers_of("/")
    assert headers["host"] == server.url.removeprefix("http://")
    assert "cookie" not in headers


def test_shows_json_with_a_line_for_each_value(server: LocalServer) -> None:
    server.routes["/x"] = text_answer('{"a":[1,"é"]}')
    shown = call(tool(server), "fetch", url=f"{server.url}/x").partition("\n")[2]
    assert json.loads(shown) == {"a": [1, "é"]}
    assert shown == '{\n "a": [\n  1,\n  "é"\n ]\n}'
    server.routes["/x"] = text_answer("{broken")
    assert call(tool(server), "fetch", url=f"{server.url}/x").endswith("\n{broken")


def test_long_pages_are_read_on(server: LocalServer) -> None:
    text = "".join(f"{number:06d}\n" for number in range(3000))
    server.routes["/long"] = text_answer(text, "text/plain")
    shown, start = "", 0
    while True:
        part = call(tool(server), "fetch", url=f"{server.url}/long", start=start).partition("\n")[2]
        body, cut, rest = part.partition("\n[cut: ")
        shown += body
        if not cut:
            break
        start = int(rest.rpartition("start ")[2].rstrip("]"))
    assert shown == text


@pytest.mark.parametrize("compressed", [True, False])
def test_a_body_is_read_up_to_its_limit_however_it_is_packed(server: LocalServer, compressed: bool) -> None:
    body = b"x" * (10 << 20)
    headers = {"Content_Encoding": "gzip"} if compressed else {}
    server.routes["/bomb"] = raw_answer(
        gzip.compress(body) if compressed else body, Content_Type="text/plain", **headers
    )
    shown = call(tool(server, body_bytes=20_000), "fetch", url=f"{server.url}/bomb")
    assert "[cut: 8,000 of 20,000 characters" in shown
    assert "beyond the first 20,000 bytes" in shown


def test_what_is_no_text_is_not_read(server: LocalServer) -> None:
    server.routes["/image"] = raw_answer(b"\x89PNG", Content_Type="image/png")
    assert "is image/png; only text" in refusal(tool(server), "fetch", url=f"{server.url}/image")
    server.routes["/odd"] = raw_answer(b"x", Content_Type="text/plain", Content_Encoding="br")
    assert "encoding br" in refusal(tool(server), "fetch", url=f"{server.url}/odd")
    server.routes["/none"] = raw_answer(b"plain")
    assert call(tool(server), "fetch", url=f"{server.url}/none").endswith("without a type\nplain")


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/plain; charset=iso-8859-1", b"\xe9", "é"),
        ('text/plain; charset="windows-1252"', b"\x80", "€"),
        ("text/plain; charset=rot13", "é".encode(), "é"),
        ("text/plain; charset=windows-99999", "é".encode(), "é"),
        ("text/plain", b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_charsets(server: LocalServer, content_type: str, body: bytes, expected: str) -> None:
    server.routes["/text"] = raw_answer(body, Content_Type=content_type)
    assert call(tool(server), "fetch", url=f"{server.url}/text").split("\n")[1] == expected


def test_a_bad_status_is_shown_as_an_error(server: LocalServer) -> None:
    (fetch,) = tool(server)
    result = asyncio.run(fetch.call({"url": f"{server.url}/missing"}))
    assert result.is_error
    assert "answered 404" in result.text


def test_redirects_are_followed_hop_by_hop(server: LocalServer) -> None:
    server.routes["/a"] = status_answer(302, Location="/b")
    server.routes["/b"] = status_answer(307, Location=f"{server.url}/c")
    server.routes["/c"] = text_answer("here", "text/plain")
    assert call(tool(server), "fetch", url=f"{server.url}/a") == f"{server.url}/c answered 200, text/plain\nhere"
    server.routes["/round"] = status_answer(301, Location="/round")
    assert "at most 5 are followed" in refusal(tool(server), "fetch", url=f"{server.url}/round")
    assert len(server.headers_of("/round")) == 6


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost:{port}/secret",
        "file:///etc/passwd",
        "//0.0.0.0:{port}/secret",
        "http://user@127.0.0.1:{port}/secret",
    ],
)
def test_a_redirect_leads_nowhere_else(server: LocalServer, target: str) -> None:
    port = server.url.rpartition(":")[2]
    server.routes["/a"] = status_answer(302, Location=target.format(port=port))
    server.routes["/secret"] = text_answer("secret", "text/plain")
    assert "secret\n" not in refusal(tool(server), "fetch", url=f"{server.url}/a")
    assert server.headers_of("/secret") == []


def resolved(server: LocalServer, *answers: Sequence[str]) -> tuple[list[FetchTool], list[str]]:
    """A tool for the server by the name rebind.example, and what was asked for."""
    waiting, asked = list(answers), []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return waiting.pop(0)

    allowed = AllowList([f"rebind.example:{server.url.rpartition(':')[2]}"], allow_private=answers[0] == ["127.0.0.1"])
    return [FetchTool(allowed, resolve=resolve)], asked


def test_a_name_is_resolved_once_and_its_address_connected_to(server: LocalServer) -> None:
    server.routes["/"] = text_answer("here", "text/plain")
    tools, asked = resolved(server, ["127.0.0.1"])
    port = server.url.rpartition(":")[2]
    assert call(tools, "fetch", url=f"http://rebind.example:{port}/").endswith("here")
    assert asked == ["rebind.example"]
    assert server.headers_of("/")[0]["host"] == f"rebind.example:{port}"


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["::ffff:127.0.0.1"], ["93.184.215.14", "127.0.0.1"]])
def test_a_name_that_leads_into_the_own_network_is_not_asked(server: LocalServer, addresses: list[str]) -> None:
    tools, _ = resolved(server, addresses)
    port = server.url.rpartition(":")[2]
    assert "an address of the own network" in refusal(tools, "fetch", url=f"http://rebind.example:{port}/")
    assert server.requests == []


def test_a_redirect_to_a_name_that_leads_inside_by_then_is_not_followed(server: LocalServer) -> None:
    """The first answer leads to the server on purpose, the second is what the same name says a moment later."""
    port = server.url.rpartition(":")[2]
    server.routes["/"] = status_answer(302, Location=f"http://rebind.example:{port}/secret")
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    class OnlyFirst(AllowList):
        def check_address(self, rule: object, host: str, address: str) -> None:
            if address != "127.0.0.1":
                super().check_address(rule, host, address)  # type: ignore[arg-type]

    tools = [FetchTool(OnlyFirst([f"rebind.example:{port}"]), resolve=resolve)]
    assert "leads to 127.0.0.2" in refusal(tools, "fetch", url=f"http://rebind.example:{port}/")
    assert server.headers_of("/secret") == []


def test_unknown_hosts_and_closed_ports_are_told(server: LocalServer) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    tools = [FetchTool(AllowList(["nowhere.example"]), resolve=resolve)]
    assert "the host nowhere.example is not known" in refusal(tools, "fetch", url="http://nowhere.example/")
    assert "cannot be got" in refusal([FetchTool(AllowList(["127.0.0.1:1"]))], "fetch", url="http://127.0.0.1:1/")
    for url in ["x" * 3000, "http://[bad", "http://\x00/", "relative/path", ""]:
        assert len(refusal(tools, "fetch", url=url)) < 500


def test_a_server_that_never_answers_is_given_up(server: LocalServer) -> None:
    is_over = threading.Event()
    server.routes["/slow"] = lambda _: is_over.wait(PATIENCE_SECONDS) and None
    try:
        assert "took longer than 0.5 s" in refusal(tool(server, seconds=0.5), "fetch", url=f"{server.url}/slow")
    finally:
        is_over.set()


def test_a_proxy_of_the_environment_is_not_asked(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.routes["/"] = text_answer("here", "text/plain")
    assert call(tool(server), "fetch", url=server.url).endswith("here")


def test_the_model_is_told_what_is_allowed() -> None:
    spec = FetchTool(AllowList(["a.example", "https://b.example/api/"])).spec
    assert spec.description.endswith("Only these are allowed: a.example, https://b.example/api/.")


def test_closing_twice(server: LocalServer) -> None:
    (fetch,) = tool(server)
    server.routes["/"] = text_answer("here", "text/plain")

    async def use() -> None:
        await fetch.call({"url": server.url})
        await fetch.close()
        await fetch.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a<script>b</script>c<style>d</style>e", "ace"),
        ("<p>a<p>b<br>c", "a\n\nb\nc".replace("\n\n", "\n")),
        ("<div hidden>x<div>y</div>z</div>shown", "shown"),
        ("<div style='display: none'>x</div><span aria-hidden=true>y</span>shown", "shown"),
        ("<ul><li>a<li>b</ul>", "- a\n- b"),
        ("<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "1 | 2\n\n3"),
        ("<head><title>T</title><meta charset=x><body>b", "Title: T\n\nb"),
        ("<svg><title>not this</title></svg>x", "x"),
        ("<title>One</title><title>Two</title>", "Title: One"),
        ("a &lt;b&gt; &#x41; &nbsp; c", "a <b> A c"),
        ("<div>" * 20_000 + "deep", "deep"),
        ("<input hidden>after", "after"),
        ("<!-- x --><![CDATA[y]]>z", "z"),
    ],
)
def test_text_of_html(html: str, text: str) -> None:
    shown = work({"html": html})
    assert shown.replace("\n\n", "\n") == text.replace("\n\n", "\n")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for named.example and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    names = x509.SubjectAlternativeName([x509.DNSName("named.example")])
    signed = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    file = tmp_path / "certificate.pem"
    file.write_bytes(signed.public_bytes(pem) + private)
    return file


def test_the_certificate_is_checked_against_the_name(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has a certificate for one name; by another name the same address is refused."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
        writer.close()

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async def ask() -> tuple[str, str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        allowed = AllowList([f"named.example:{port}", f"other.example:{port}"], allow_private=True)
        fetch = FetchTool(allowed, resolve=resolve)
        try:
            good = await fetch.call({"url": f"https://named.example:{port}/"})
            with pytest.raises(ToolError) as caught:
                await fetch.call({"url": f"https://other.example:{port}/"})
            return good.text, str(caught.value)
        finally:
            await fetch.close()
            server.close()

    shown, problem = asyncio.run(ask())
    assert shown.endswith("secret")
    assert "certificate" in problem.lower()

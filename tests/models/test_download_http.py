import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_server import FileAnswer, LocalServer, in_turn, local_server, status_answer, text_answer
from treadle.errors import CapacityError, DownloadError
from treadle.models.sources import http
from treadle.models.sources.http import RemoteFile, fetch_file

CONTENT = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_DELAY_SECONDS", 0.0)


def silent(phase: str, name: str, done: int, total: int | None) -> None:
    pass


def fetch(server: LocalServer, folder: Path, **facts: object) -> Path:
    remote = RemoteFile(f"{server.url}/m.gguf", "m.gguf", **facts)  # type: ignore[arg-type]
    return fetch_file(remote, folder, silent).path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_with_its_checksum(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT)
    events: list[tuple[str, int, int | None]] = []
    fetched = fetch_file(
        RemoteFile(f"{server.url}/m.gguf", "m.gguf"), tmp_path, lambda *event: events.append((event[0], *event[2:]))
    )
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.sha256, fetched.bytes) == (SHA256, len(CONTENT))
    assert events[0] == ("download", 0, len(CONTENT))
    assert ("download", len(CONTENT), len(CONTENT)) in events
    assert events[-1] == ("verify", len(CONTENT), len(CONTENT))


def cut(*places: int, **facts: object) -> object:
    """An answer that hangs up after so many bytes, once for each place, and then lets the rest through."""
    return in_turn(*(FileAnswer(CONTENT, cut=place, **facts) for place in places), FileAnswer(CONTENT, **facts))  # type: ignore[arg-type]


def ranges(server: LocalServer) -> list[str | None]:
    return [headers.get("range") for headers in server.headers_of("/m.gguf")]


def test_a_dropped_connection_continues_where_it_broke(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = cut(100_000, 50_000)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", "bytes=150000-"]
    assert server.headers_of("/m.gguf")[1]["if-range"] == '"one"'


def test_an_attempt_that_gets_further_starts_the_count_again(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = cut(*[10_000] * (3 * http.MAX_ATTEMPTS))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_attempts_that_get_no_further_come_to_an_end(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT, cut=1000, ranges=False)
    with pytest.raises(DownloadError, match=r"5 attempts in a row; 1\.0 kB kept"):
        fetch(server, tmp_path)
    assert len(ranges(server)) == http.MAX_ATTEMPTS
    assert names(tmp_path) == ["m.gguf.origin.json", "m.gguf.partial"]


def test_without_range_support_the_file_starts_over(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = cut(100_000, ranges=False)
    assert fetch(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("etag", [None, 'W/"one"'])
def test_without_a_strong_validator_halves_are_never_joined(
    server: LocalServer, tmp_path: Path, etag: str | None
) -> None:
    server.routes["/m.gguf"] = cut(100_000, etag=etag)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, None]


def test_a_known_checksum_makes_it_safe_to_resume_without_a_validator(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = cut(100_000, etag=None)
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-"]


def test_a_known_checksum_lets_another_address_go_on(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/mirror.gguf"] = in_turn(FileAnswer(CONTENT, etag='"a"', cut=100_000), status_answer(404))
    with pytest.raises(DownloadError):
        fetch_file(RemoteFile(f"{server.url}/mirror.gguf", "m.gguf", sha256=SHA256), tmp_path, silent)
    server.routes["/m.gguf"] = FileAnswer(CONTENT, etag='"b"')
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert ranges(server) == ["bytes=100000-"]


def test_a_file_that_changed_between_two_runs_is_fetched_anew(server: LocalServer, tmp_path: Path) -> None:
    old = FileAnswer(b"GGUF" + bytes(300_000), etag='"old"', cut=100_000)
    server.routes["/m.gguf"] = in_turn(old, status_answer(404))
    with pytest.raises(DownloadError, match="404"):
        fetch(server, tmp_path)
    assert (tmp_path / "m.gguf.partial").stat().st_size == 100_000
    server.routes["/m.gguf"] = FileAnswer(CONTENT, etag='"new"')
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.headers_of("/m.gguf")[-1]["if-range"] == '"old"'


def test_a_partial_of_another_address_is_not_continued(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/old.gguf"] = in_turn(FileAnswer(b"GGUF" + bytes(300_000), cut=100_000), status_answer(404))
    with pytest.raises(DownloadError):
        fetch_file(RemoteFile(f"{server.url}/old.gguf", "m.gguf"), tmp_path, silent)
    server.routes["/m.gguf"] = FileAnswer(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None]


def test_a_range_that_begins_elsewhere_is_refused(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = in_turn(
        FileAnswer(CONTENT, cut=100_000),
        status_answer(206, Content_Range=f"bytes 5-9/{len(CONTENT)}", ETag='"one"'),
        FileAnswer(CONTENT),
    )
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", None]


def test_a_rest_of_another_version_is_refused_even_if_the_server_ignores_the_condition(
    server: LocalServer, tmp_path: Path
) -> None:
    size = len(CONTENT)
    other = status_answer(206, Content_Range=f"bytes 100000-{size - 1}/{size}", ETag='"two"')
    server.routes["/m.gguf"] = in_turn(FileAnswer(CONTENT, cut=100_000), other, FileAnswer(CONTENT))
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=100000-", None]


def test_a_rest_that_is_gone_means_a_fresh_start(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = in_turn(FileAnswer(CONTENT, cut=100_000), status_answer(416), FileAnswer(CONTENT))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_complete_partial_is_checked_and_named_without_a_request(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = in_turn(FileAnswer(CONTENT, cut=len(CONTENT) - 1), status_answer(404))
    with pytest.raises(DownloadError):
        fetch(server, tmp_path, sha256=SHA256)
    with (tmp_path / "m.gguf.partial").open("ab") as stream:
        stream.write(CONTENT[-1:])
    server.requests.clear()
    assert fetch(server, tmp_path, sha256=SHA256).read_bytes() == CONTENT
    assert server.requests == []


def test_a_wrong_checksum_leaves_no_file(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT)
    with pytest.raises(DownloadError, match=f"expected SHA-256 {'0' * 64}, found {SHA256}"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert not list(tmp_path.glob("*.gguf*.partial")) and not (tmp_path / "m.gguf").exists()


def test_a_web_page_is_not_stored_as_a_model(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = text_answer("<!doctype html>please log in", "text/html")
    with pytest.raises(DownloadError, match=r"is not a GGUF file: expected it to begin with b'GGUF', found b'<!do'"):
        fetch(server, tmp_path)
    assert not (tmp_path / "m.gguf").exists() and not (tmp_path / "m.gguf.partial").exists()


def test_a_missing_file_fails_at_once(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"{server.url}/m.gguf: the server answered 404"):
        fetch(server, tmp_path)
    assert len(server.requests) == 1


def test_a_denied_file_carries_the_hint_of_its_source(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = status_answer(403)
    with pytest.raises(DownloadError, match="accept the licence"):
        fetch(server, tmp_path, denied_hint="accept the licence")


def test_a_passing_fault_is_tried_again(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = in_turn(status_answer(500), status_answer(503), FileAnswer(CONTENT))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_asks_for_patience_gets_it_within_a_limit(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    monkeypatch.setattr(http.time, "sleep", delays.append)
    busy = [status_answer(429, Retry_After="7"), status_answer(429, Retry_After="86400")]
    server.routes["/m.gguf"] = in_turn(*busy, FileAnswer(CONTENT))
    fetch(server, tmp_path)
    assert delays == [7.0, http.MAX_DELAY_SECONDS]


def test_a_fault_that_stays_is_reported_with_its_status(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = status_answer(503)
    with pytest.raises(DownloadError, match="the server answered 503 Service Unavailable, 5 attempts in a row"):
        fetch(server, tmp_path)


@pytest.mark.usefixtures("server")
def test_a_host_that_is_not_there_is_given_up_soon(tmp_path: Path) -> None:
    with local_server() as gone:
        url = gone.url
    with pytest.raises(DownloadError, match=r"m\.gguf: .*2 attempts in a row"):
        fetch_file(RemoteFile(f"{url}/m.gguf", "m.gguf"), tmp_path, silent)


def test_redirects_are_followed_and_credentials_stay_behind(server: LocalServer, tmp_path: Path) -> None:
    with local_server() as other:
        other.routes["/blob"] = FileAnswer(CONTENT)
        server.routes["/m.gguf"] = status_answer(302, Location=f"{other.url}/blob")
        assert fetch(server, tmp_path, headers={"Authorization": "Bearer secret"}).read_bytes() == CONTENT
        assert server.headers_of("/m.gguf")[0]["authorization"] == "Bearer secret"
        assert "authorization" not in other.headers_of("/blob")[0]


def test_a_circle_of_redirects_ends(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = status_answer(302, Location="/m.gguf")
    with pytest.raises(DownloadError, match="redirects"):
        fetch(server, tmp_path)


@pytest.mark.parametrize("url", ["ftp://host/m.gguf", "http:///m.gguf", "https://[/m.gguf"])
def test_an_address_that_cannot_be_asked_is_an_error_of_its_own(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        fetch_file(RemoteFile(url, "m.gguf"), tmp_path, silent)


def test_a_server_that_promises_more_than_it_sends_is_found_out(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT, declared_bytes=len(CONTENT) + 7, ranges=False)
    with pytest.raises(DownloadError):
        fetch(server, tmp_path)
    assert not (tmp_path / "m.gguf").exists()


def test_a_size_other_than_announced_stops_before_the_body(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT)
    with pytest.raises(DownloadError, match=f"expected 5 bytes, the server offers {len(CONTENT)}"):
        fetch(server, tmp_path, bytes=5)
    assert names(tmp_path) == []


def test_a_body_of_unknown_length_is_taken_whole_or_not_at_all(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = in_turn(FileAnswer(CONTENT, chunked=True, cut=1), FileAnswer(CONTENT, chunked=True))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_compressed_answer_is_refused(server: LocalServer, tmp_path: Path) -> None:
    server.routes["/m.gguf"] = status_answer(200, Content_Encoding="gzip")
    with pytest.raises(DownloadError, match="compresses"):
        fetch(server, tmp_path)


def test_a_disk_without_room_is_found_before_the_body(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.routes["/m.gguf"] = FileAnswer(CONTENT)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(CapacityError, match=r"m\.gguf: not enough disk .* 512\.0 kB needed .* 1\.0 kB free"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []

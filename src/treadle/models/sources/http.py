"""Fetches one file over HTTP: resumes, retries, follows redirects, and never trusts half a file.

Where the file belongs and which URL to ask is left to the callers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import httpx

from treadle.errors import DownloadError
from treadle.models.sources.files import (
    FetchedFile,
    Report,
    finish_file,
    format_bytes,
    hash_file,
    partial_path,
    require_free_disk,
)

__all__ = ["RemoteFile", "fetch_file"]

MAX_ATTEMPTS = 5
MAX_ATTEMPTS_TO_CONNECT = 2
FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 30.0
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_RETRIED_STATUSES = {408, 425, 429, 500, 502, 503, 504}
# How often a body of unknown length is measured against the free disk.
_DISK_CHECK_BYTES = 64 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, with what is known about it before the first request."""

    url: str
    name: str
    bytes: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    denied_hint: str | None = None


@dataclass(frozen=True)
class _Origin:
    """What a partial file is a part of; kept beside it so that a later run can tell whether it still is."""

    url: str
    validator: str | None
    sha256: str | None
    total_bytes: int | None


class _TryAgainError(Exception):
    """The transfer broke in a way that another attempt may mend."""

    def __init__(self, reason: str, *, delay_seconds: float | None = None, connected: bool = True) -> None:
        super().__init__(reason)
        self.delay_seconds = delay_seconds
        self.connected = connected


def fetch_file(remote: RemoteFile, folder: Path, report: Report, *, first: bool = True) -> FetchedFile:
    """Fetch into ``folder`` and return the checked file; what was fetched before an interruption is kept and used.

    ``first`` is false for the further shards of a split file.
    """
    transfer = _Transfer(remote, folder / remote.name, report)
    finished = transfer.finished_before()
    if finished is not None:
        return finished
    try:
        with httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
            _repeat(transfer, client)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
        raise DownloadError(f"{remote.url}: {error}") from error
    return finish_file(transfer.target, origin=remote.url, sha256=remote.sha256, report=report, first=first)


def _repeat(transfer: _Transfer, client: httpx.Client) -> None:
    failures, furthest = 0, transfer.have_bytes()
    while True:
        try:
            return transfer.attempt(client)
        except _TryAgainError as broken:
            have = transfer.have_bytes()
            failures = 1 if have > furthest else failures + 1
            furthest = max(furthest, have)
            if failures >= (MAX_ATTEMPTS if broken.connected else MAX_ATTEMPTS_TO_CONNECT):
                kept = f"; {format_bytes(have)} kept, repeat the command to resume" if have else ""
                raise DownloadError(f"{transfer.remote.url}: {broken}, {failures} attempts in a row{kept}") from broken
            delay = broken.delay_seconds or FIRST_DELAY_SECONDS * 2 ** (failures - 1)
            time.sleep(min(delay, MAX_DELAY_SECONDS))


class _Transfer:
    """The state on disk of one file on its way: the partial file and the note of its origin."""

    def __init__(self, remote: RemoteFile, target: Path, report: Report) -> None:
        self.remote = remote
        self.target = target
        self.partial = partial_path(target)
        self.origin_path = target.with_name(target.name + ".origin.json")
        self._report = report

    def have_bytes(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def finished_before(self) -> FetchedFile | None:
        """Return the file if an earlier run completed it and was interrupted at a later shard."""
        origin = self._read_origin()
        if not self.target.is_file() or origin is None or origin.url != self.remote.url:
            return None
        found = hash_file(self.target, self._report)
        if self.remote.sha256 not in (None, found):
            return None
        return FetchedFile(self.target, self.target.stat().st_size, found)

    def attempt(self, client: httpx.Client) -> None:
        """Ask once for what is missing; raises _TryAgainError when a further attempt may help."""
        origin = self._usable_origin()
        have = self.have_bytes() if origin else 0
        expected = self.remote.bytes or (origin.total_bytes if origin else None)
        if have and have == expected:
            return
        validator = origin.validator if origin and self.remote.sha256 is None else None
        headers = {**self.remote.headers, "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if validator is not None:
                headers["If-Range"] = validator
        try:
            with client.stream("GET", self.remote.url, headers=headers) as response:
                self._receive(response, have, validator)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            raise
        except httpx.TransportError as error:
            self._give_up_on_certificate(error)
            connected = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _TryAgainError(str(error) or type(error).__name__, connected=connected) from error

    def _read_origin(self) -> _Origin | None:
        try:
            return _Origin(**json.loads(self.origin_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _usable_origin(self) -> _Origin | None:
        origin = self._read_origin()
        if origin is None:
            return None
        if self.remote.sha256 is not None:
            # The checksum decides in the end, so the same file may go on from another address or mirror.
            return origin if origin.sha256 == self.remote.sha256 else None
        return origin if origin.url == self.remote.url and origin.validator is not None else None

    def _give_up_on_certificate(self, error: httpx.TransportError) -> None:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise DownloadError(
                f"{self.remote.url}: the server's certificate is not trusted: {error}",
                hint="behind a proxy that inspects traffic, point SSL_CERT_FILE at its certificate",
            ) from error

    def _receive(self, response: httpx.Response, have: int, validator: str | None) -> None:
        self._check_route(response)
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            self._start_over(f"the server no longer has the rest after {have} bytes")
        self._check_status(response)
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        start, total = _content_range(response) if resumed else (0, _content_length(response))
        if resumed and start != have:
            self._start_over(f"the server sent a range from byte {start}, asked was {have}")
        if resumed and validator is not None and _validator(response) not in (None, validator):
            self._start_over("the file changed while it was fetched")
        if total is not None and self.remote.bytes is not None and total != self.remote.bytes:
            raise DownloadError(f"{self.remote.url}: expected {self.remote.bytes} bytes, the server offers {total}")
        if not resumed:
            self.partial.unlink(missing_ok=True)
        require_free_disk(self.partial.parent, (total or 0) - start, self.target.name)
        if not resumed:
            origin = _Origin(self.remote.url, _validator(response), self.remote.sha256, total)
            self.origin_path.write_text(json.dumps(asdict(origin)), encoding="utf-8")
        self._write(response, start, total)

    def _start_over(self, reason: str) -> NoReturn:
        self.partial.unlink(missing_ok=True)
        raise _TryAgainError(reason)

    def _check_route(self, response: httpx.Response) -> None:
        hops = [hop.url for hop in response.history] + [response.url]
        if any(before.scheme == "https" and after.scheme == "http" for before, after in pairwise(hops)):
            raise DownloadError(f"{self.remote.url}: refused a redirect from https to unencrypted {response.url}")

    def _check_status(self, response: httpx.Response) -> None:
        status = f"{response.status_code} {response.reason_phrase}".strip()
        if response.status_code in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            if response.headers.get("content-encoding", "identity") != "identity":
                raise DownloadError(f"{self.remote.url}: the server compresses the file although asked not to")
            return
        if response.status_code in _RETRIED_STATUSES:
            after = response.headers.get("retry-after", "")
            raise _TryAgainError(
                f"the server answered {status}", delay_seconds=float(after) if after.isdigit() else None
            )
        hint = self.remote.denied_hint if response.status_code in (401, 403) else "check the address"
        raise DownloadError(f"{self.remote.url}: the server answered {status}", hint=hint)

    def _write(self, response: httpx.Response, start: int, total: int | None) -> None:
        done, next_check = start, start + _DISK_CHECK_BYTES
        self._report("download", self.target.name, done, total)
        with self.partial.open("ab") as stream:
            for chunk in response.iter_raw():
                stream.write(chunk)
                done += len(chunk)
                self._report("download", self.target.name, done, total)
                if total is None and done >= next_check:
                    require_free_disk(self.partial.parent, _DISK_CHECK_BYTES, self.target.name)
                    next_check += _DISK_CHECK_BYTES
        if total is not None and done != total:
            raise _TryAgainError(f"the transfer ended at byte {done} of {total}")


def _validator(response: httpx.Response) -> str | None:
    etag: str = response.headers.get("etag", "")
    modified: str = response.headers.get("last-modified", "")
    # A weak tag does not promise equal bytes, which is what joining two halves needs.
    return (etag if not etag.startswith("W/") else "") or modified or None


def _content_length(response: httpx.Response) -> int | None:
    value = response.headers.get("content-length", "")
    return int(value) if value.isdigit() else None


def _content_range(response: httpx.Response) -> tuple[int, int | None]:
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
    if match is None:
        return -1, None
    return int(match[1]), None if match[2] == "*" else int(match[2])

"""Follows every request from its first byte to its last: gives it an id, notes what becomes of it, reports it once.

Leaves to others: the form of the report (``server.logs``, ``server.metrics``).
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.server.disconnect import ClientGoneError
from treadle.server.errors import send_error
from treadle.server.record import CURRENT, AnswerPhases, RequestRecord

if TYPE_CHECKING:
    from treadle.engine.completion import CompletionChunk, Timings
    from treadle.engine.contract import OpenTimings
    from treadle.errors import TreadleError
    from treadle.server.metrics import Metrics

__all__ = ["AnswerWatch", "Watch"]

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_STATUS_CLIENT_GONE = 499
_TRACE_HEADERS = ("traceparent", "tracestate")


class Watch:
    """The outermost layer of the server; an ASGI application.

    Args:
        app: The next layer.
        report: Called with the record of every request that has ended.
    """

    def __init__(self, app: ASGIApp, report: Callable[[RequestRecord], None]) -> None:
        self._app = app
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; what no other layer has caught becomes a 500 here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        trace = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
        record = RequestRecord(request_id, scope["method"], scope["path"], trace, client=_address(scope.get("client")))
        CURRENT.set(record)
        if scope["method"] == "HEAD":  # for the routes as GET; the web server leaves the body out
            scope = {**scope, "method": "GET"}
        sender = _Sender(send, record)
        try:
            await self._serve(scope, receive, sender, record)
        finally:
            route = scope.get("route")
            if route is not None:
                record.route = route.path
            if not sender.is_complete:
                record.status = _STATUS_CLIENT_GONE
            self._report(record)

    async def _serve(self, scope: Scope, receive: Receive, sender: _Sender, record: RequestRecord) -> None:
        try:
            await self._app(scope, receive, sender.send)
        except ClientGoneError:
            return
        except Exception as error:
            if sender.has_begun:  # the web server cuts the connection
                record.status, sender.is_complete = 500, True
                raise
            await send_error(error, scope, receive, sender.send)


def _address(peer: Sequence[Any] | None) -> str:
    """Return where a request came from; empty if that is no address, as a forged ``X-Forwarded-For`` may be none."""
    try:
        address = ipaddress.ip_address(peer[0]) if peer else None
    except ValueError:
        address = None
    # One that listens on [::] sees clients of IPv4 by an address of IPv6.
    return "" if address is None else str(getattr(address, "ipv4_mapped", None) or address)


class _Sender:
    """Sends a response and notes its status and its end.

    The chunks of a stream pass here one by one, so there is no coroutine of its own around each.
    """

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self._send = send
        self._record = record
        self.has_begun = False
        self.is_complete = False
        self.send: Send = self._send_out  # type: ignore[assignment]

    def _send_out(self, message: Message) -> object:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._record.status = message["status"]
            # Clients of the one API look for the one name, those of the other for the other.
            names = (b"x-request-id", b"request-id")
            request_id = self._record.request_id.encode()
            message["headers"] = [*message.get("headers", ()), *((name, request_id) for name in names)]
        elif not message.get("more_body", False):
            self.is_complete = True
        return self._send(message)


class AnswerWatch:
    """Notes what becomes of the answers to one prompt, in its request's record and in the metrics.

    Args:
        model: The name by which the server offers the model.
        num_prompt_tokens: The length of the prompt, None if the engine tells it with its first whole answer.
        open_timings: Tells which answers have not ended.
        metrics: Where to count.
    """

    def __init__(self, model: str, num_prompt_tokens: int | None, open_timings: OpenTimings, metrics: Metrics) -> None:
        self._metrics = metrics.of_model(model)
        self._open_timings = open_timings
        self._record = CURRENT.get()
        self._began = time.monotonic() if self._record is None else self._record.began
        self._num_prompt_tokens = 0
        self._last: dict[int, float] = {}
        self._num_tokens: dict[int, int] = {}
        if self._record is not None:
            self._record.model = model
        if num_prompt_tokens is not None:
            self._count_prompt(num_prompt_tokens)

    def took(self, chunk: CompletionChunk) -> None:
        """Note the time of a chunk, and on the last one how the answer went."""
        now = time.monotonic()
        num_tokens = chunk.num_tokens
        last = self._last.get(chunk.index)
        self._last[chunk.index] = now
        self._num_tokens[chunk.index] = self._num_tokens.get(chunk.index, 0) + num_tokens
        if last is None:
            self._start(now)
        else:
            for _ in range(num_tokens):
                self._metrics.inter_token.observe((now - last) / num_tokens)
        self._metrics.generation_tokens.inc(num_tokens)
        record = self._record
        if record is not None:
            record.answer_tokens += num_tokens
            if record.ticket is not None:
                record.ticket.spend(num_tokens)
        completion = chunk.completion
        if completion is not None:
            self._count_prompt(completion.prompt_tokens)
            if record is not None and completion.index == 0:
                record.cached_tokens += completion.cached_tokens
            self._finish(chunk.index, completion.finish_reason, completion.timings, now)

    def ended(self, unfinished: Mapping[int, Timings], error: TreadleError | None, *, is_complete: bool) -> None:
        """Note that answers have ended before their last token."""
        now = time.monotonic()
        for index, timings in unfinished.items():
            if is_complete:
                self._finish(index, "stop", timings, now)
            else:
                self._note_end(index, "abort" if error is None else "error", timings)

    def _count_prompt(self, num_tokens: int) -> None:
        if self._num_prompt_tokens:
            return
        self._num_prompt_tokens = num_tokens
        self._metrics.prompt_tokens.inc(num_tokens)
        if self._record is not None:
            self._record.prompt_tokens += num_tokens
            if self._record.ticket is not None:
                self._record.ticket.spend(num_tokens)

    def _start(self, now: float) -> None:
        self._metrics.first_token.observe(now - self._began)
        record = self._record
        if record is not None and record.first_token_seconds is None:
            record.first_token_seconds = now - record.began
            if record.ticket is not None:
                record.ticket.start()

    def _finish(self, index: int, reason: str, timings: Timings, now: float) -> None:
        self._metrics.end_to_end.observe(now - self._began)
        self._metrics.queue.observe(timings.queued_seconds)
        self._metrics.prefill.observe(timings.prefill_seconds)
        self._metrics.decode.observe(timings.decode_seconds)
        self._metrics.inference.observe(timings.prefill_seconds + timings.decode_seconds)
        num_tokens = self._num_tokens.get(index, 0)
        if num_tokens > 1:
            self._metrics.token.observe(timings.decode_seconds / (num_tokens - 1))
        self._metrics.request_prompt_tokens.observe(self._num_prompt_tokens)
        self._metrics.request_generation_tokens.observe(num_tokens)
        if not self._open_timings():
            self._metrics.longest_answer.observe(max(self._num_tokens.values(), default=0))
        self._note_end(index, reason, timings)

    def _note_end(self, index: int, reason: str, timings: Timings) -> None:
        self._metrics.finished(reason).inc()
        record = self._record
        if record is not None:
            # Counted back from now, which lies between the answer's end and the request's.
            began = time.monotonic() - timings.first_token_seconds - timings.decode_seconds
            record.answers.append(AnswerPhases(index, began, timings))
            record.finish_reasons.append(reason)
            record.queued_seconds = max(record.queued_seconds, timings.queued_seconds)
            record.prefill_seconds = max(record.prefill_seconds, timings.prefill_seconds)
            record.decode_seconds = max(record.decode_seconds, timings.decode_seconds)

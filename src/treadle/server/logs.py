"""Writes one line for every request, as text or JSON; what was asked and answered is never in it.

Leaves to others: what is known of a request (``RequestRecord``).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.server.record import RequestRecord

__all__ = ["configure_logs", "log_request"]

_log = logging.getLogger("treadle.server.access")
_KEY_DIGITS = 8  # enough to tell keys apart, too few to find one
# Asked for every few seconds by machines.
_QUIET_ROUTES = frozenset({"/health", "/ready", "/metrics"})


def configure_logs(*, is_json: bool, level: int) -> None:
    """Write what Treadle, the web server, its event loop and the sender of traces log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if is_json else _TextFormatter())
    for name in ("treadle", "uvicorn", "asyncio", "opentelemetry"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level if name == "treadle" else max(level, logging.WARNING))
        logger.propagate = False


def log_request(record: RequestRecord) -> None:
    """Write the line of a request that has ended."""
    level = logging.DEBUG if record.route in _QUIET_ROUTES else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(level, "request", extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "seconds": round(record.seconds, 4),
    }
    if record.client:
        fields["client"] = record.client
    if record.key_id:
        fields["key"] = record.key_id[:_KEY_DIGITS]
    if record.code is not None:
        fields["code"] = record.code
    if record.model is not None:
        fields |= {
            "model": record.model,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "answer_tokens": record.answer_tokens,
            "finish": ",".join(sorted(set(record.finish_reasons))),
            "queued": round(record.queued_seconds, 4),
            "prefill": round(record.prefill_seconds, 4),
            "decode": round(record.decode_seconds, 4),
        }
    if record.first_token_seconds is not None:
        fields["first_token"] = round(record.first_token_seconds, 4)
    return fields


class _TextFormatter(logging.Formatter):
    """One line: time, level, then the message or the fields as ``name=value``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.converter = time.gmtime
        self.default_time_format = "%Y-%m-%dT%H:%M:%S"
        self.default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name that logging calls
        line = super().formatMessage(record)
        fields = getattr(record, "fields", {})
        line = " ".join([line, *(f"{name}={value}" for name, value in fields.items() if value != "")])
        # Nothing that came from outside may look like another line, or move the cursor of a terminal.
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)

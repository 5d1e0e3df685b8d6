"""Everything an operator may set about the server, with its default and its limits.

Leaves to others: where a value comes from (``cli.serve``) and what it does (the file named beside each group).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from treadle.errors import UsageError
from treadle.server.names import ANY_ORIGIN, operator_host, operator_origin

__all__ = ["ServerSettings"]

_COUNTS = (
    *("max_body_bytes", "max_header_bytes", "max_queued", "max_output_tokens", "max_embedding_inputs"),
    *("max_concurrent_per_key", "max_tokens_per_minute_per_key", "max_connections"),
)
_SECONDS = ("request_timeout", "client_timeout", "keep_alive", "drain_timeout", "idle_unload")
_METRIC_PREFIX = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


@dataclass(frozen=True)
class ServerSettings:
    """How to serve; sizes in bytes, times in seconds, ``None`` for no limit.

    Raises:
        UsageError: A value is out of range, or the address is public and nothing protects it.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    # listening.py
    socket: Path | None = None  # a file to listen on, instead of host and port
    socket_mode: int = 0o600
    # auth.py
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None  # where ``keys.read_keys`` found them, to be read again
    allow_public: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    # limits.py
    max_queued: int = 256
    max_concurrent_per_key: int | None = None
    max_tokens_per_minute_per_key: int | None = None
    drain_timeout: float = 30.0
    # protocol.py
    max_header_bytes: int = 64 << 10
    client_timeout: float = 30.0
    keep_alive: float = 75.0
    max_connections: int = 1024
    # the routes
    max_body_bytes: int = 8 << 20
    max_output_tokens: int | None = None
    max_embedding_inputs: int = 2048
    request_timeout: float | None = 600.0
    # routes/adapters.py
    allow_adapter_loading: bool = False
    # hub.py
    idle_unload: float | None = None
    # response_store.py
    max_stored_bytes: int = 64 << 20
    # metrics.py
    metric_prefix: str = "vllm"
    # spans.py
    otel_endpoint: str | None = None
    # machine_watch.py
    measures_machine: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed_hosts", tuple(map(operator_host, self.allowed_hosts)))
        object.__setattr__(self, "cors_origins", tuple(map(operator_origin, self.cors_origins)))
        self._check_ranges()
        self._check_access()

    def _check_ranges(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port: expected 0 to 65535, found {self.port}")
        if not 0o600 <= self.socket_mode <= 0o777:
            raise UsageError(f"socket_mode: expected 600 to 777, found {self.socket_mode:o}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}: expected at least 1, found {value}")
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name}: expected seconds above 0, found {value}")
        if not _METRIC_PREFIX.fullmatch(self.metric_prefix):
            raise UsageError(f"metric_prefix: expected letters, digits and _, found {self.metric_prefix!r:.80}")
        if self.otel_endpoint is not None and urlsplit(self.otel_endpoint).scheme not in ("http", "https"):
            raise UsageError(
                f"otel_endpoint: expected http://HOST:PORT or https://..., found {self.otel_endpoint!r:.80}"
            )
        if self.max_stored_bytes < 0:
            raise UsageError(f"max_stored_bytes: expected 0 or more, found {self.max_stored_bytes}")

    def _check_access(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("TLS needs both a certificate and a key", hint="give --tls-cert and --tls-key together")
        if self.socket is not None and self.tls_certificate is not None:
            raise UsageError("TLS is for a host and port, not for a socket file", hint="leave out --tls-cert")
        if not (self.is_loopback or self.api_keys or self.allow_public):
            raise UsageError(
                f"host {self.host} can be reached from other machines and there is no API key",
                hint="set TREADLE_API_KEY or --api-key-file, bind 127.0.0.1, or force it with --allow-public",
            )

        if ANY_ORIGIN in self.cors_origins and not self.api_keys:
            raise UsageError(
                "any page a browser shows could call this server, as there is no API key",
                hint="set TREADLE_API_KEY or --api-key-file, or name the origins with --cors-origin",
            )

    def output_limit(self, asked: int | None) -> int | None:
        """Return how many tokens an answer may have: what a request asks for, up to the server's limit."""
        limits = [limit for limit in (asked, self.max_output_tokens) if limit is not None]
        return min(limits, default=None)

    @property
    def is_loopback(self) -> bool:
        """Tell whether only this machine can reach the address."""
        if self.socket is not None:
            return True
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

"""The command ``treadle serve``: models over HTTP.

Leaves to others: serving (``server.serve``) and what each setting means (``server.settings``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from treadle.cli import options
from treadle.cli.adapters import read_adapters
from treadle.cli.console import console
from treadle.cli.named_models import named_models
from treadle.cli.option_groups import ConsoleOptions, EngineOptions, expand_groups
from treadle.config import Settings, parse_bytes
from treadle.engine.batching import DEFAULT_SLOWDOWN
from treadle.engine.memory_plan import MAX_NUM_REQUESTS
from treadle.engine.open_engine import find_engine_url
from treadle.errors import UsageError

if TYPE_CHECKING:
    from treadle.engine.load import LoadOptions

__all__ = ["register"]

_DISK_CACHE = "4GiB"
_log = logging.getLogger("treadle.server")


def _access(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Access")


def _limit(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Limits")


@dataclass(frozen=True)
class ServedEngineOptions(EngineOptions):
    """What computes, of which a server keeps prompts on disk unless it is told otherwise."""

    disk_cache: Annotated[
        str | None,
        typer.Option(
            "--disk-cache",
            help=f"Disk for prompts computed before, kept over restarts; 0 for none, {_DISK_CACHE} by default.",
        ),
    ] = None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("serve")(expand_groups(serve))


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="What to serve, as MODEL or NAME=MODEL; the first is the default. A URL#MODEL is passed on to.",
        ),
    ] = None,
    *,
    host: Annotated[str | None, _access("--host", help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[
        int | None, _access("--port", "-p", help="Port to listen on, 8080 by default; 0 takes a free one.")
    ] = None,
    socket: Annotated[
        Path | None, _access("--socket", help="Unix socket to listen on, instead of an address and port.")
    ] = None,
    socket_mode: Annotated[
        str | None, _access("--socket-mode", help="Who may open the socket, such as 660; 600 by default.")
    ] = None,
    api_key_file: Annotated[
        Path | None, _access("--api-key-file", help="File with one key per line; TREADLE_API_KEY holds one, too.")
    ] = None,
    allow_public: Annotated[
        bool, _access("--allow-public", help="Listen beyond this machine without any key.")
    ] = False,
    allow_adapter_loading: Annotated[
        bool, _access("--allow-adapter-loading", help="Let clients load adapters from files of this machine.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None,
        _access("--cors-origin", help="Origin of pages that may call, * for any; may be given again."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        _access("--allowed-host", help="Name clients may use for this server; on loopback its own names by default."),
    ] = None,
    tls_cert: Annotated[Path | None, _access("--tls-cert", help="Certificate file (PEM).")] = None,
    tls_key: Annotated[Path | None, _access("--tls-key", help="Key file (PEM) of the certificate.")] = None,
    max_queued: Annotated[
        int, _limit("--max-queued", help="Most requests without a first token yet; more get 429.")
    ] = 256,
    max_concurrent_per_key: Annotated[
        int | None, _limit("--max-concurrent-per-key", help="Most requests of one API key at a time.")
    ] = None,
    max_tokens_per_minute: Annotated[
        int | None, _limit("--max-tokens-per-minute", help="Most tokens of prompts and answers for one API key.")
    ] = None,
    max_output_tokens: Annotated[int | None, _limit("--max-output-tokens", help="Most tokens of any answer.")] = None,
    max_embedding_inputs: Annotated[
        int,
        _limit("--max-embedding-inputs", help="Most texts of one request for embeddings, or documents of one ranking."),
    ] = 2048,
    max_body: Annotated[str, _limit("--max-body", help="Largest body of a request.")] = "8MiB",
    max_headers: Annotated[str, _limit("--max-headers", help="Largest request line and headers.")] = "64KiB",
    max_stored: Annotated[
        str, _limit("--max-stored", help="Memory for responses and chats kept for later; 0 keeps none.")
    ] = "64MiB",
    client_timeout: Annotated[
        float,
        _limit(
            "--client-timeout", help="Seconds a client may take to send headers, then a body, or to take an answer."
        ),
    ] = 30.0,
    keep_alive: Annotated[
        float, _limit("--keep-alive", help="Seconds that a connection may rest between requests.")
    ] = 75.0,
    max_connections: Annotated[
        int, _limit("--max-connections", help="Most connections at a time; more get 503.")
    ] = 1024,
    request_timeout: Annotated[
        float, _limit("--request-timeout", help="Seconds in which an answer must have ended; 0 for any time.")
    ] = 600.0,
    drain_timeout: Annotated[
        float, _limit("--drain-timeout", help="Seconds that running answers may take when the server ends.")
    ] = 30.0,
    idle_unload: Annotated[
        float | None, typer.Option("--idle-unload", help="Unload a model unused for this many seconds.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON, one object a line.")] = False,
    metric_prefix: Annotated[
        str, typer.Option("--metric-prefix", help="What names of /metrics begin with that other servers share.")
    ] = "vllm",
    otel_endpoint: Annotated[
        str | None,
        typer.Option("--otel-endpoint", help="OTLP collector for traces, such as http://localhost:4318; else OTEL_*."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the machine's limits while nothing runs.")
    ] = True,
    adapter: options.Adapters = None,
    adapter_memory: options.AdapterMemory = None,
    max_adapters: options.MaxAdapters = None,
    max_num_requests: Annotated[
        int, typer.Option("--max-num-requests", help="Most requests of a model that are computed together.")
    ] = MAX_NUM_REQUESTS,
    slowdown: Annotated[
        float,
        typer.Option(
            "--slowdown",
            help="Prompts make steps of answers at most so many times as long; 0 for any, more throughput.",
        ),
    ] = DEFAULT_SLOWDOWN,
    engine: ServedEngineOptions,
    loudness: ConsoleOptions,
) -> None:
    """Serve models with the OpenAI and Anthropic APIs.

    The server listens on this machine only, unless told otherwise. Ctrl-C or SIGTERM ends it once running answers are
    done.
    """
    from treadle.server.hub import AdapterSource  # noqa: PLC0415
    from treadle.server.keys import read_keys  # noqa: PLC0415
    from treadle.server.logs import configure_logs  # noqa: PLC0415  slow to import
    from treadle.server.serve import serve as run_server  # noqa: PLC0415
    from treadle.server.settings import ServerSettings  # noqa: PLC0415

    settings = ServerSettings(
        **_place(host, port, socket, socket_mode),
        api_keys=read_keys(api_key_file),
        api_key_file=api_key_file,
        allow_public=allow_public,
        allow_adapter_loading=allow_adapter_loading,
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        max_queued=max_queued,
        max_concurrent_per_key=max_concurrent_per_key,
        max_tokens_per_minute_per_key=max_tokens_per_minute,
        drain_timeout=drain_timeout,
        max_body_bytes=parse_bytes("--max-body", max_body),
        max_header_bytes=parse_bytes("--max-headers", max_headers),
        max_stored_bytes=parse_bytes("--max-stored", max_stored),
        client_timeout=client_timeout,
        keep_alive=keep_alive,
        max_connections=max_connections,
        max_output_tokens=max_output_tokens,
        max_embedding_inputs=max_embedding_inputs,
        request_timeout=request_timeout or None,
        idle_unload=idle_unload,
        metric_prefix=metric_prefix,
        otel_endpoint=otel_endpoint,
        measures_machine=measure,
    )
    level = logging.WARNING if loudness.quiet else logging.DEBUG if loudness.verbose else logging.INFO
    configure_logs(is_json=log_json, level=level)
    load = cast("LoadOptions", engine.as_arguments())
    load["disk_cache"] = engine.disk_cache or _usual_disk_cache()
    load["adapter_memory"] = adapter_memory
    load["max_adapters"] = max_adapters
    load["max_num_requests"] = max_num_requests
    load["slowdown"] = slowdown or None
    run_server(
        _sources(models, engine.engine),
        settings,
        load,
        adapters=[AdapterSource(*each) for each in read_adapters(adapter)],
        on_ready=_log.info if log_json else console.note,
    )


def _place(host: str | None, port: int | None, socket: Path | None, socket_mode: str | None) -> dict[str, Any]:
    """Return the settings that say where to listen; those left out keep their defaults."""
    if socket is not None and (host is not None or port is not None):
        raise UsageError("a server listens on a socket file or on a port", hint="leave out --host and --port")
    if socket is None and socket_mode is not None:
        raise UsageError("--socket-mode needs --socket")
    try:
        mode = None if socket_mode is None else int(socket_mode, 8)
    except ValueError:
        raise UsageError(f"--socket-mode: expected an octal number such as 660, found {socket_mode!r}") from None
    given = {"host": host, "port": port, "socket": socket, "socket_mode": mode}
    return {name: value for name, value in given.items() if value is not None}


def _usual_disk_cache() -> str | None:
    """Return what a server takes where nobody says anything."""
    return None if "disk_cache" in Settings.from_environment().sources else _DISK_CACHE


def _sources(models: list[str] | None, engine: str | None) -> dict[str, str]:
    elsewhere = find_engine_url(None, engine)
    usual = options.DEFAULT_MODEL if elsewhere is None else elsewhere[0]
    return named_models(models or [usual], are_elsewhere=elsewhere is not None)

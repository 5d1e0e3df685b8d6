"""The command ``treadle serve``: models over HTTP.

Leaves to others: serving (``server.serve``) and what each setting means (``server.settings``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.errors import UsageError

__all__ = ["register"]

_KEY_VARIABLE = "TREADLE_API_KEY"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("serve")(serve)


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="What to serve, as MODEL or NAME=MODEL; the first is the default."),
    ] = None,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="Port to listen on; 0 takes a free one.")] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"File with one key per line; {_KEY_VARIABLE} holds one, too.")
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Listen beyond this machine without any key.")
    ] = False,
    cors_origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", help="Origin of pages that may call; may be given again.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate file (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Key file (PEM) of the certificate.")] = None,
    max_queued: Annotated[int, typer.Option("--max-queued", help="Most requests that wait; more get 429.")] = 256,
    max_output_tokens: Annotated[
        int | None, typer.Option("--max-output-tokens", help="Most tokens of any answer.")
    ] = None,
    idle_unload: Annotated[
        float | None, typer.Option("--idle-unload", help="Unload a model unused for this many seconds.")
    ] = None,
    context: options.Context = None,
    threads: options.Threads = None,
    mlock: options.Mlock = False,
    quiet: options.Quiet = False,  # noqa: ARG001  its callback has told the console
    verbose: options.Verbose = False,  # noqa: ARG001
) -> None:
    """Serve models with the OpenAI and Anthropic APIs.

    The server listens on this machine only, unless told otherwise. Ctrl-C or SIGTERM ends it once running answers are
    done.
    """
    from treadle.server.serve import serve as run_server  # noqa: PLC0415  slow to import
    from treadle.server.settings import ServerSettings  # noqa: PLC0415

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=_api_keys(api_key_file),
        allow_public=allow_public,
        cors_origins=tuple(cors_origin or ()),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        max_queued=max_queued,
        max_output_tokens=max_output_tokens,
        idle_unload=idle_unload,
    )
    sources = _sources(models or [options.DEFAULT_MODEL])
    run_server(
        sources,
        settings,
        {"context": context, "threads": threads, "mlock": mlock},
        on_ready=lambda url: console.note(f"serving {', '.join(sources)} at {url}"),
    )


def _sources(models: list[str]) -> dict[str, str]:
    """Return what to load by the name clients use: the one given, else the model's own without folder and ending."""
    sources: dict[str, str] = {}
    for model in models:
        name, separator, source = model.partition("=")
        if not separator:
            name, source = Path(model).name.removesuffix(".gguf"), model
        if not name or not source:
            raise UsageError(f"{model!r}: expected MODEL or NAME=MODEL")
        if name in sources:
            raise UsageError(f"two models are called {name}", hint="give one of them another name: NAME=MODEL")
        sources[name] = source
    return sources


def _api_keys(path: Path | None) -> tuple[str, ...]:
    keys = [os.environ.get(_KEY_VARIABLE, "").strip()]
    if path is not None:
        try:
            keys += [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {path}: {error}") from None
        if not any(keys[1:]):
            raise UsageError(f"--api-key-file {path}: there is no key in it", hint="write one key per line")
    return tuple(key for key in keys if key and not key.startswith("#"))

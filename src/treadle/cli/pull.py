"""The command ``treadle pull``: brings a model onto this machine.

Fetching is left to ``models.download``, the bars to ``cli.pull_display``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.console import console
from treadle.cli.model_facts import stored_facts
from treadle.models.sources.files import format_bytes

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("pull")(pull)


def pull(
    model: Annotated[str, typer.Argument(help="Catalog name, hf:org/repo[:quant], URL, or path of a .gguf file.")],
    name: Annotated[str | None, typer.Option("--name", help="Store it under this name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stored as JSON.")] = False,
    quiet: options.Quiet = False,  # noqa: ARG001  its callback has told the console
) -> None:
    """Fetch a model and print the path of its file.

    A pull that was interrupted resumes when it is repeated. A path is not copied: the file stays where it is and
    gets a name.
    """
    from treadle.cli.pull_display import pull_display  # noqa: PLC0415  slow to import, and other commands start too
    from treadle.models.download import pull_model  # noqa: PLC0415

    started = time.monotonic()
    try:
        with pull_display(quiet=console.is_quiet) as progress:
            stored = pull_model(model, name=name, progress=progress)
    except KeyboardInterrupt:
        console.note("stopped; the same command resumes")
        raise
    if sys.stderr.isatty():
        console.note(f"{stored.name}: {format_bytes(stored.bytes)}, {time.monotonic() - started:.1f} s")
    console.out(json.dumps(stored_facts(stored), indent=2) if as_json else str(stored.path))

"""The command ``treadle pull``: brings a model onto this machine.

Fetching is left to ``models.download``, the bars to ``cli.pull_display``.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console

from treadle.cli.model_facts import stored_facts
from treadle.cli.pull_display import pull_display
from treadle.models.download import pull_model
from treadle.models.sources.files import format_bytes

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("pull")(pull)


def pull(
    model: Annotated[str, typer.Argument(help="Catalog name, hf:org/repo[:quant], URL, or the path of a .gguf file.")],
    name: Annotated[str | None, typer.Option("--name", help="Store it under this name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was stored as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Fetch a model and print the path of its file.

    An interrupted pull resumes when repeated. A path is not copied: the file stays where it is and gets a name.
    """
    console = Console(stderr=True)
    started = time.monotonic()
    try:
        with pull_display(quiet=quiet, console=console) as progress:
            stored = pull_model(model, name=name, progress=progress)
    except KeyboardInterrupt:
        console.print(f"stopped; repeat `treadle pull {model}` to resume", markup=False, highlight=False)
        raise
    if console.is_terminal and not quiet:
        seconds = time.monotonic() - started
        console.print(f"{stored.name}: {format_bytes(stored.bytes)}, {seconds:.1f} s", markup=False, highlight=False)
    print(json.dumps(stored_facts(stored), indent=2) if as_json else stored.path)

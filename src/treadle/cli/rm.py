"""The command ``treadle rm``: deletes a stored model.

Deleting is left to the store.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from treadle.cli.console import console
from treadle.errors import UsageError
from treadle.models.sources.files import format_bytes
from treadle.models.store import ModelStore

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("rm")(rm)


def rm(
    name: Annotated[str, typer.Argument(help="Name of a stored model, as `treadle list` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a stored model, or what an interrupted pull left of it.

    The file behind a linked model is kept.
    """
    store = ModelStore()
    if not yes and store.holds(name):
        _confirm(name, store)
    freed = store.remove(name)
    console.note(f"removed {name}, {format_bytes(freed)} set free")


def _confirm(name: str, store: ModelStore) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"rm {name}: there is no terminal to ask on", hint=f"type `treadle rm {name} --yes`")
    model = store.get(name)
    if model is None:
        question = f"Discard the unfinished download of {name}?"
    elif model.linked:
        question = f"Forget {model.name}? {model.path} is kept."
    else:
        question = f"Delete {model.name} ({format_bytes(model.bytes)})?"
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)

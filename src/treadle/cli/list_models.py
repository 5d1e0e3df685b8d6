"""The command ``treadle list``: what is stored on this machine, and what the catalog offers.

Reading the store and the catalog is left to ``models``.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from treadle.cli.console import console
from treadle.cli.model_facts import format_count, stored_facts
from treadle.cli.table import print_rows
from treadle.models.catalog import load_catalog
from treadle.models.sources.files import format_bytes
from treadle.models.store import ModelStore

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("list")(list_models)


def list_models(
    catalog: Annotated[bool, typer.Option("--catalog", help="List what `treadle pull` knows by name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models on this machine, or the catalog."""
    store = ModelStore()
    if catalog:
        _list_catalog(store, as_json=as_json)
    else:
        _list_stored(store, as_json=as_json)


def _list_catalog(store: ModelStore, *, as_json: bool) -> None:
    stored = {model.name for model in store.list()}
    entries = list(load_catalog().values())
    if as_json:
        facts = [
            {
                "name": entry.name,
                "title": entry.title,
                "parameters": entry.parameters,
                "licence": entry.licence,
                "architecture": entry.architecture,
                "stored": entry.name in stored,
                "sources": [str(source) for source in entry.sources],
            }
            for entry in entries
        ]
        console.out(json.dumps(facts, indent=2))
        return
    rows = [("NAME", "PARAMETERS", "LICENCE", "STORED", "TITLE")]
    for entry in entries:
        mark = "yes" if entry.name in stored else ""
        rows.append((entry.name, format_count(entry.parameters), entry.licence, mark, entry.title))
    print_rows(rows)


def _list_stored(store: ModelStore, *, as_json: bool) -> None:
    models = store.list()
    if as_json:
        console.out(json.dumps([stored_facts(model) for model in models], indent=2))
    elif models:
        rows = [("NAME", "SIZE", "SOURCE")]
        for model in models:
            source = f"link to {model.path}" if model.linked else model.source
            problem = model.problem()
            rows.append((model.name, format_bytes(model.bytes), f"{source} ({problem})" if problem else source))
        print_rows(rows)
    else:
        console.note("no models are stored; `treadle list --catalog` shows what `treadle pull` knows by name")
    for pull in store.unfinished():
        size = format_bytes(pull.bytes)
        console.note(f"unfinished: {pull.name}, {size}")
        console.note(f"  `treadle pull {pull.resume}` resumes, `treadle rm {pull.name}` discards")

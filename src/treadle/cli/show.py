"""The command ``treadle show``: what is inside a model file.

Reading the file is left to ``models.gguf``, where it is to the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.console import console
from treadle.cli.model_facts import format_count, stored_facts
from treadle.cli.table import print_rows
from treadle.errors import ModelFileError
from treadle.models.sources.files import format_bytes
from treadle.models.store import ModelStore, find_stored, is_path, resolve_model

if TYPE_CHECKING:
    from treadle.models.gguf import ModelFile
    from treadle.models.manifest import StoredModel

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("show")(show)


def show(
    model: Annotated[str, typer.Argument(help="Name of a stored model, or the path of a .gguf file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show architecture, size, quantisation, context, template and memory needs of a model on this machine."""
    from treadle.models.gguf import ModelFile  # noqa: PLC0415  loads the native core, which other commands can do without

    store = ModelStore()
    path = resolve_model(model, pull=False, store=store)
    stored = None if is_path(model) else find_stored(model, store)
    facts = _file_facts(ModelFile.open(path), stored)
    if as_json:
        console.out(json.dumps(facts, indent=2))
    else:
        print_rows(_rows(facts))


def _file_facts(file: ModelFile, stored: StoredModel | None) -> dict[str, Any]:
    shape = file.hyperparameters
    metadata = file.metadata
    facts: dict[str, Any] = {
        "name": file.name,
        "architecture": file.architecture,
        "parameters": file.num_parameters,
        "bytes": file.file_bytes,
        "quantisation": {
            name: {"tensors": mix.num_tensors, "bytes": mix.num_bytes} for name, mix in file.quant_mix.items()
        },
        "context_length": shape.context_length,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "feed_forward_size": shape.feed_forward_size,
        "vocab_size": shape.vocab_size,
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "tokenizer": _tokenizer(metadata),
        "chat_template": "tokenizer.chat_template" in metadata,
        "ranks": file.ranks,
        "licence": _text(metadata, "general.license"),
        "path": str(file.path),
    }
    facts |= {"engine": _engine(file)}
    if stored is not None:
        kept = stored_facts(stored)
        facts |= {"stored": kept, "licence": facts["licence"] or kept["licence"]}
    return facts


def _engine(file: ModelFile) -> str:
    from treadle.engine.choose import choose_engine  # noqa: PLC0415  loads the native core

    try:
        choice = choose_engine(file)
    except ModelFileError as error:
        return f"none, for {error.args[0].removeprefix(f'{file.path}: ')}"
    return choice.reason.removeprefix("engine: ") or choice.name


def _tokenizer(metadata: Mapping[str, Any]) -> str | None:
    kind, pre = _text(metadata, "tokenizer.ggml.model"), _text(metadata, "tokenizer.ggml.pre")
    return f"{kind} ({pre})" if kind and pre else kind


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    mix = facts["quantisation"]
    parts = [f"{name} {format_bytes(value['bytes'])} ({value['tensors']} tensors)" for name, value in mix.items()]
    heads = f"{facts['num_heads']} heads, {facts['num_kv_heads']} KV heads of {facts['head_dim']}"
    rows = [
        ("name", facts["name"] or "not given"),
        ("architecture", facts["architecture"]),
        ("parameters", format_count(facts["parameters"])),
        ("size", format_bytes(facts["bytes"])),
        ("quantisation", ", ".join(parts)),
        ("context", f"{facts['context_length']} tokens"),
        ("shape", f"{facts['num_layers']} layers, hidden {facts['hidden_size']}, {heads}"),
        ("vocabulary", f"{facts['vocab_size']} tokens"),
        ("tokenizer", facts["tokenizer"] or "none"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        *([("purpose", "ranks documents by how well they answer a query")] if facts["ranks"] else []),
        ("KV cache", f"{facts['kv_bytes_per_token']} bytes per token"),
        ("engine", facts["engine"]),
        ("licence", facts["licence"] or "not given"),
        ("path", facts["path"]),
    ]
    if "stored" in facts:
        stored = facts["stored"]
        rows += [("stored as", stored["name"]), ("source", stored["source"])]
        rows += [("SHA-256", f"{file['sha256']}  {file['name']}") for file in stored["files"]]
    return rows

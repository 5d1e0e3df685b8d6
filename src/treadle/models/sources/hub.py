"""Finds GGUF files in a repository on the Hugging Face hub, chosen by quantisation or by name.

The bytes are left to the HTTP source; tokens, endpoint and offline mode to the huggingface_hub library.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from treadle.errors import DownloadError
from treadle.models.catalog import HubSource
from treadle.models.sources.files import FetchedFile, Report, require_free_disk, safe_file_name
from treadle.models.sources.http import RemoteFile, fetch_file

__all__ = ["HubSelection", "fetch_hub", "parse_hub_reference", "select_files"]

# The best trade of quality for size comes first; K-quants before the older kinds of the same width.
PREFERRED_QUANTS = (
    *("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_0", "MXFP4", "Q6_K", "Q8_0"),
    *("BF16", "F16", "F32"),
)

_REFERENCE = re.compile(r"hf:(?://)?(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<wanted>[^:\s]+))?", re.ASCII)
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4|B?F16|F32|FP16|FP32))(?=$|[-.])", re.IGNORECASE
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


@dataclass(frozen=True)
class HubSelection:
    """The files of one model in a repository, all of the same commit."""

    repo: str
    label: str
    files: tuple[RemoteFile, ...]
    licence: str | None


@dataclass(frozen=True)
class _Group:
    """The shards of one model file; nearly always one."""

    label: str
    paths: tuple[str, ...]
    complete: bool


def parse_hub_reference(reference: str) -> HubSource:
    """Read ``hf:org/repo``, ``hf:org/repo:quant`` or ``hf:org/repo:file.gguf``."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise DownloadError(
            f"{reference}: expected hf:org/repo or hf:org/repo:quant", hint="for example hf:org/name-GGUF:Q4_K_M"
        )
    wanted = match["wanted"]
    if wanted and wanted.lower().endswith(".gguf"):
        return HubSource(match["repo"], file=wanted)
    return HubSource(match["repo"], quant=wanted)


def select_files(source: HubSource) -> HubSelection:
    """Ask the hub what the repository holds and choose the files of one model."""
    info = _repository(source.repo)
    siblings = {item.rfilename: item for item in info.siblings or []}
    group = _choose(source, _groups(siblings))
    files = tuple(_remote_file(source, info, siblings[path], alone=len(group.paths) == 1) for path in group.paths)
    return HubSelection(source.repo, group.label, files, _licence(info))


def fetch_hub(source: HubSource, folder: Path, report: Report) -> list[FetchedFile]:
    """Fetch every file of the model that ``source`` means into ``folder``."""
    selection = select_files(source)
    missing = sum(file.bytes or 0 for file in selection.files if not (folder / file.name).exists())
    begun = sum(path.stat().st_size for path in folder.glob("*.partial"))
    require_free_disk(folder, missing - begun, str(source))
    return [fetch_file(file, folder, report, first=index == 0) for index, file in enumerate(selection.files)]


def _repository(repo: str) -> Any:
    # Imported late: it costs a third of a second, and most commands never talk to the hub.
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return HfApi(library_name="treadle").model_info(repo, files_metadata=True)
    except GatedRepoError as error:
        raise DownloadError(f"hf:{repo}: the hub grants access on request only", hint=_access_hint(repo)) from error
    except RepositoryNotFoundError as error:
        raise DownloadError(
            f"hf:{repo}: no such repository on the hub, or it is private",
            hint="check the name; for a private one type `hf auth login` or set HF_TOKEN",
        ) from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(f"hf:{repo}: HF_HUB_OFFLINE forbids asking the hub", hint="unset HF_HUB_OFFLINE") from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise DownloadError(f"hf:{repo}: {_first_line(error)}") from error
    except Exception as error:  # which HTTP library fails depends on the release of huggingface_hub
        raise DownloadError(
            f"hf:{repo}: the hub cannot be reached: {_first_line(error)}",
            hint="check the connection, or HF_ENDPOINT for a mirror",
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _access_hint(repo: str) -> str:
    return f"accept the licence on the model page of {repo}, then type `hf auth login` or set HF_TOKEN"


def _licence(info: Any) -> str | None:
    card = getattr(info, "card_data", None)
    licence = getattr(card, "license_name", None) or getattr(card, "license", None)
    return licence if isinstance(licence, str) else None


def _groups(paths: Iterable[str]) -> list[_Group]:
    shards: dict[tuple[str, int], list[str]] = {}
    for path in sorted(paths):
        name = PurePosixPath(path).name.lower()
        if not name.endswith(".gguf") or name.startswith("mmproj") or "imatrix" in name:
            continue
        shard = _SHARD.search(path)
        key = (_SHARD.sub("", path), int(shard[2]) if shard else 1)
        shards.setdefault(key, []).append(path)
    return [_Group(_label(base), tuple(found), len(found) == count) for (base, count), found in shards.items()]


def _label(path: str) -> str:
    pure = PurePosixPath(path)
    for text in (pure.name[: -len(".gguf")], pure.parent.name):
        quants = _QUANT.findall(text)
        if quants:
            return str(quants[-1]).upper()
    return pure.name


def _choose(source: HubSource, groups: list[_Group]) -> _Group:
    if not groups:
        raise DownloadError(
            f"hf:{source.repo}: holds no GGUF file", hint=f"many models have a twin named {source.repo}-GGUF"
        )
    if source.file is not None:
        pattern = source.file.lower()
        found = [group for group in groups if any(_matches(path, pattern) for path in group.paths)]
    elif source.quant is not None:
        found = [group for group in groups if group.label == source.quant.upper()]
    else:
        labels = [group.label for group in groups]
        preferred = next((quant for quant in PREFERRED_QUANTS if quant in labels), None)
        found = [group for group in groups if group.label == preferred] if preferred else groups
    # Some repositories offer the same quantisation whole and split; one file is easier to keep.
    whole = [group for group in found if len(group.paths) == 1]
    found = whole or found
    if len(found) != 1:
        raise _no_single_choice(source, groups, found)
    if not found[0].complete:
        raise DownloadError(f"{source}: the repository lacks shards of {found[0].paths[0]}")
    return found[0]


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path.lower(), pattern) or fnmatch.fnmatchcase(PurePosixPath(path).name.lower(), pattern)


def _no_single_choice(source: HubSource, groups: list[_Group], found: list[_Group]) -> DownloadError:
    if found:
        names = ", ".join(group.paths[0] for group in found)
        first = PurePosixPath(found[0].paths[0]).name
        return DownloadError(f"{source}: several files match: {names}", hint=f"name one: hf:{source.repo}:{first}")
    labels = list(dict.fromkeys(group.label for group in groups))
    return DownloadError(
        f"{source}: no such file; the repository offers {', '.join(labels)}",
        hint=f"name one: hf:{source.repo}:{labels[0]}",
    )


def _remote_file(source: HubSource, info: Any, item: Any, *, alone: bool) -> RemoteFile:
    from huggingface_hub import get_token, hf_hub_url  # noqa: PLC0415

    token = get_token()
    lfs = item.lfs or {}
    return RemoteFile(
        # A commit instead of a branch keeps shards, and the halves of an interrupted download, of one version.
        url=hf_hub_url(source.repo, item.rfilename, revision=info.sha),
        name=safe_file_name(PurePosixPath(item.rfilename).name),
        bytes=item.size,
        sha256=(source.sha256 if alone else None) or lfs.get("sha256"),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        denied_hint=_access_hint(source.repo),
    )

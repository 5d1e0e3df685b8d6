"""The folder that holds pulled models, and the way from what a user types to a file on this machine.

Fetching is left to ``models.download``; what is inside a file to ``models.gguf``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from treadle.config import Settings
from treadle.errors import UsageError
from treadle.models.catalog import find_entry, unknown_model
from treadle.models.manifest import StoredModel, delete_other_files, read_manifest, write_manifest

if TYPE_CHECKING:
    from treadle.models.download import Progress

__all__ = [
    "ModelStore",
    "UnfinishedPull",
    "damaged_model",
    "find_stored",
    "is_path",
    "is_url",
    "resolve_model",
]

_RESUME = "resume.txt"


@dataclass(frozen=True)
class UnfinishedPull:
    """What an interrupted pull left on disk, and what to give to ``treadle pull`` to go on."""

    name: str
    resume: str
    bytes: int


class ModelStore:
    """Models by name, each in a folder of its own that appears in one step when the model is complete."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home if home is not None else Settings.from_environment().home
        self._models = self.home / "models"
        self._unfinished = self.home / "unfinished"
        self._locks = self.home / "locks"

    def list(self) -> list[StoredModel]:
        """Return every stored model by name."""
        folders = sorted(self._models.iterdir()) if self._models.is_dir() else []
        return [model for folder in folders if (model := read_manifest(folder)) is not None]

    def get(self, name: str) -> StoredModel | None:
        """Return the model of that name in any letter case, or None."""
        return read_manifest(self._folder(name))

    def find_source(self, source: str) -> StoredModel | None:
        """Return the first model that came from ``source``, or None."""
        return next((model for model in self.list() if model.source == source), None)

    def unfinished(self) -> tuple[UnfinishedPull, ...]:
        """Return every pull that was interrupted, or is under way, by name."""
        folders = sorted(self._unfinished.iterdir()) if self._unfinished.is_dir() else []
        return tuple(_read_unfinished(folder) for folder in folders)

    def staging_folder(self, name: str, source: str, resume: str) -> Path:
        """Return the folder, made if needed, in which the files of a model from one source come together.

        ``resume`` is what to give to ``treadle pull`` to go on after an interruption.
        """
        parent = self._unfinished / _quote(name)
        parent.mkdir(parents=True, exist_ok=True)
        (parent / _RESUME).write_text(resume, encoding="utf-8")
        folder = parent / hashlib.sha256(source.encode()).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        return folder

    def commit(self, model: StoredModel) -> StoredModel:
        """Move a complete staging folder into place under the model's name, in the stead of what was there."""
        target = self._folder(model.name)
        write_manifest(model, model.folder)
        self._models.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        model.folder.rename(target)
        self.discard_unfinished(model.name)
        delete_other_files(model, target)
        return replace(model, folder=target)

    def link(self, model: StoredModel) -> StoredModel:
        """Note a model that stays where the user keeps it."""
        target = self._folder(model.name)
        target.mkdir(parents=True, exist_ok=True)
        write_manifest(model, target)
        return model

    def holds(self, name: str) -> bool:
        """Tell whether ``remove`` would find anything of that name."""
        return any(folder.exists() for folder in self._folders(name))

    def remove(self, name: str) -> int:
        """Delete a model, or what an interrupted download left of it, and return the bytes set free.

        The files of a linked model are not touched. Raises UsageError if there is nothing of that name.
        """
        known = [model.name for model in self.list()]
        if not self.holds(name):
            raise UsageError(
                f"no stored model is named {name!r}",
                hint=f"stored are: {', '.join(known)}" if known else "`treadle list` shows what is stored: nothing yet",
            )
        with self.lock(name, wait=False):
            folders = [folder for folder in self._folders(name) if folder.exists()]
            freed = sum(_tree_bytes(folder) for folder in folders)
            for folder in folders:
                shutil.rmtree(folder)
        return freed

    def discard_unfinished(self, name: str) -> None:
        """Delete what interrupted downloads of a model left behind."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folders(name)[1])

    def discard_notes(self, name: str) -> None:
        """Delete what interrupted downloads of a model left behind if not a byte of the model is among it."""
        files = self._folders(name)[1].rglob("*")
        if not any(file.suffix in (".partial", ".gguf") and file.stat().st_size for file in files):
            self.discard_unfinished(name)

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the one lock of a model against every process; ``on_wait`` is called once if another holds it."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - only commands that change the store need it

        self._locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._locks / (_quote(name) + ".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise UsageError(f"{name} is being pulled by another process", hint="stop that one first") from None
            on_wait()
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _folders(self, name: str) -> tuple[Path, Path]:
        return self._folder(name), self._unfinished / _quote(name)

    def _folder(self, name: str) -> Path:
        return self._models / _quote(name)


def is_url(reference: str) -> bool:
    """Tell whether the reference is a web address."""
    return reference.lower().startswith(("http://", "https://"))


def is_path(reference: str) -> bool:
    """Tell whether the reference is meant as a path, whether or not there is a file."""
    if is_url(reference) or reference.startswith("hf:"):
        return False
    separators = {os.sep, os.altsep or os.sep, "/"}
    return reference.lower().endswith(".gguf") or reference.startswith("~") or any(s in reference for s in separators)


def resolve_model(
    name_or_path: str | Path, *, pull: bool = True, progress: Progress | None = None, store: ModelStore | None = None
) -> Path:
    """Return the file of a model, given as a path, a stored name, a catalog name, ``hf:org/repo[:quant]`` or a URL.

    What is not on this machine is pulled, unless ``pull`` is false, in which case a UsageError says so.
    """
    reference = os.fspath(name_or_path)
    if isinstance(name_or_path, Path) or is_path(reference):
        return _existing_file(Path(reference).expanduser())
    store = store or ModelStore()
    stored = find_stored(reference, store)
    if stored is not None:
        problem = stored.problem()
        if problem is None:
            return stored.path
        if stored.linked or not pull:
            raise damaged_model(stored, problem)
    elif Path(reference).is_file() and find_entry(reference) is None:
        return _existing_file(Path(reference))
    elif not (is_url(reference) or reference.startswith("hf:") or find_entry(reference)):
        raise unknown_model(reference, [model.name for model in store.list()])
    if not pull:
        raise UsageError(f"model {reference} is not on this machine", hint=f"type `treadle pull {reference}`")
    from treadle.models.download import pull_model  # noqa: PLC0415 - the network libraries slow down every start

    return pull_model(reference, store=store, progress=progress).path


def find_stored(reference: str, store: ModelStore) -> StoredModel | None:
    """Return the stored model that a reference means, without asking the network."""
    if is_url(reference):
        return store.find_source(reference)
    stored = store.get(reference)
    if stored is None and reference.startswith("hf:"):
        # Without a quantisation the default one, or else the only one of the repository, will do.
        prefix = reference.lower() + ":"
        found = [model for model in store.list() if model.name.lower().startswith(prefix)]
        usual = [model for model in found if model.name.lower() == prefix + "q4_k_m"]
        found = usual or found
        return found[0] if len(found) == 1 else None
    return stored


def damaged_model(stored: StoredModel, problem: str) -> UsageError:
    """Build the error for a stored model whose files are not what they were."""
    return UsageError(f"stored model {stored.name}: {problem}", hint=f"`treadle rm {stored.name}`, then pull it again")


def _existing_file(path: Path) -> Path:
    if path.is_dir():
        inside = min(path.glob("*.gguf"), default=None)
        hint = f"name a file in it, such as {inside}" if inside else "name a file; there is no .gguf file in the folder"
        raise UsageError(f"{path}: expected a .gguf file, found a folder", hint=hint)
    if not path.is_file():
        if path.exists():
            raise UsageError(f"{path}: expected a .gguf file, found a pipe or a device", hint="save it to a file first")
        raise UsageError(
            f"{path}: no such file", hint="`treadle list` shows stored models, `treadle list --catalog` others"
        )
    return path


# Percent signs keep every name apart from every other on every file system, and lower case the letters alike.
def _quote(name: str) -> str:
    return quote(name.lower(), safe="")


def _read_unfinished(folder: Path) -> UnfinishedPull:
    name = unquote(folder.name)
    try:
        resume = (folder / _RESUME).read_text(encoding="utf-8")
    except OSError:
        resume = name
    return UnfinishedPull(name, resume, _tree_bytes(folder))


def _tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

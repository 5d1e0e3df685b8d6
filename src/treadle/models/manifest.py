"""The note beside every stored model: its name, where it came from, its files and their checksums.

Where notes and files are kept is left to the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["StoredFile", "StoredModel", "delete_other_files", "read_manifest", "write_manifest"]

_FILE_NAME = "model.json"
_VERSION = 1


@dataclass(frozen=True)
class StoredFile:
    """One file of a stored model."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredModel:
    """A model under its name: in the store's own folder, or linked to where the user keeps it."""

    name: str
    source: str
    licence: str | None
    folder: Path
    files: tuple[StoredFile, ...]
    linked: bool = False

    @property
    def path(self) -> Path:
        """The file to open: the only one, or the first shard."""
        return self.folder / self.files[0].name

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.files)

    def problem(self) -> str | None:
        """Say what is wrong with the files on disk, or return None if they are all there at full length."""
        for file in self.files:
            path = self.folder / file.name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_size != file.bytes:
                return f"{path}: expected {file.bytes} bytes, found {path.stat().st_size}"
        return None


def write_manifest(model: StoredModel, folder: Path) -> None:
    """Write the note in one step, so that no reader ever sees half of it."""
    facts = {
        "version": _VERSION,
        "name": model.name,
        "source": model.source,
        "licence": model.licence,
        "folder": str(model.folder) if model.linked else None,
        "files": [asdict(file) for file in model.files],
    }
    new = folder / (_FILE_NAME + ".new")
    new.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    new.replace(folder / _FILE_NAME)


def delete_other_files(model: StoredModel, folder: Path) -> None:
    """Delete what fetching left in the folder beside the note and the files it names."""
    kept = {_FILE_NAME, *(file.name for file in model.files)}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()


def read_manifest(folder: Path) -> StoredModel | None:
    """Return the model whose note is in the folder, or None if there is no note that can be read."""
    try:
        facts = json.loads((folder / _FILE_NAME).read_text(encoding="utf-8"))
        model = StoredModel(
            name=facts["name"],
            source=facts["source"],
            licence=facts["licence"],
            folder=Path(facts["folder"]) if facts["folder"] else folder,
            files=tuple(StoredFile(**file) for file in facts["files"]),
            linked=facts["folder"] is not None,
        )
        is_sound = facts["version"] == _VERSION and _has_types(model)
    except (OSError, ValueError, KeyError, TypeError):
        # A folder without a readable manifest holds no model; the next pull of that name replaces it.
        return None
    return model if is_sound else None


def _has_types(model: StoredModel) -> bool:
    texts = [
        model.name,
        model.source,
        model.licence or "",
        *(text for file in model.files for text in (file.name, file.sha256)),
    ]
    is_text = all(isinstance(text, str) for text in texts)
    return is_text and bool(model.files) and all(type(file.bytes) is int and file.bytes >= 0 for file in model.files)

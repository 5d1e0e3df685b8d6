"""What ``treadle tune`` found out about a model on this machine, kept as a file, and whether it still holds.

Leaves to others: measuring (``engine.tune``).
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.engine.private_file import TEMPORARY_SUFFIX, write_private
from treadle.errors import UsageError
from treadle.hardware.limits import cpu_quota
from treadle.hardware.memory import read_huge_pages
from treadle.hardware.surroundings import read_kernel, read_processor

if TYPE_CHECKING:
    from treadle.config import Settings
    from treadle.engine.execution_plan import MachineView
    from treadle.models.gguf import ModelFile

__all__ = [
    "Tuning",
    "apply_tuning",
    "describe_setup",
    "forget_tuning",
    "prepare_record",
    "save_tuning",
    "treadle_version",
]

_log = logging.getLogger("treadle.engine")

_FORMAT = 1
_SOURCE = "`treadle tune`"
_TUNED = {"threads": int, "prompt_threads": int, "pin": bool, "huge_pages": bool, "kv_type": str}
# What must be as it was, in words.
_SETUP_WORDS = {
    "processor": "another processor",
    "cores": "other cores",
    "memory_nodes": "other memory nodes",
    "quota": "another CPU quota",
    "kernel": "another kernel",
    "huge_pages": "another mode of huge pages",
    "treadle": "another version of Treadle",
}


@dataclass(frozen=True)
class Tuning:
    """The settings that were faster than the plan's own, for what setup, and all that was measured."""

    settings: dict[str, Any]
    setup: dict[str, Any]
    measured: list[dict[str, Any]]


def describe_setup(machine: MachineView, root: Path = Path("/")) -> dict[str, Any]:
    """Return what a tuning depends on, as values for JSON."""
    quota = cpu_quota(root)
    return {
        "processor": read_processor(root, ()).name,
        "cores": [list(core.cpus) for core in machine.topology.cores],
        "memory_nodes": len(machine.topology.nodes),
        "quota": None if quota is None else quota.num_cpus,
        "kernel": read_kernel(root),
        "huge_pages": read_huge_pages(root).mode,
        "treadle": treadle_version(),
    }


def apply_tuning(settings: Settings, file: ModelFile, machine: MachineView) -> Settings:
    """Return the settings with what was tuned in the stead of what nobody set; says so if that no longer holds."""
    tuning = _read(_path(settings.home, file))
    if tuning is None:
        return settings
    setup = describe_setup(machine)
    changed = [words for name, words in _SETUP_WORDS.items() if tuning.setup.get(name) != setup[name]]
    if changed:
        _log.warning(
            "%s was tuned for %s: that is ignored; type `treadle tune %s`", file.name, ", ".join(changed), file.path
        )
        return settings
    return settings.fill(_SOURCE, **tuning.settings)


def prepare_record(home: Path, file: ModelFile) -> Path:
    """Return where a tuning of the model is kept; raises UsageError if nothing can be written there."""
    path = _path(home, file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path.with_suffix(TEMPORARY_SUFFIX))
        path.with_suffix(TEMPORARY_SUFFIX).unlink()
    except OSError as error:
        raise UsageError(
            f"what is found could not be kept: {path.parent}: {error.strerror}",
            hint="TREADLE_HOME names another folder for what Treadle keeps",
        ) from error
    return path


def save_tuning(path: Path, file: ModelFile, tuning: Tuning) -> None:
    """Keep a tuning in the stead of an earlier one. Raises OSError."""
    text = json.dumps({"format": _FORMAT, "model": file.name, **asdict(tuning)}, indent=1)
    write_private(path, text.encode())


def forget_tuning(home: Path, file: ModelFile) -> bool:
    """Remove what was tuned; tells whether there was anything. Raises OSError."""
    path = _path(home, file)
    is_there = path.is_file()
    path.unlink(missing_ok=True)
    return is_there


def _path(home: Path, file: ModelFile) -> Path:
    """Models of one shape and the same formats are equally fast, whatever their weights are."""
    mix = {name: list(share) for name, share in file.quant_mix.items()}
    shape = json.dumps([file.architecture, asdict(file.hyperparameters), mix], sort_keys=True, default=str)
    return home / "tuning" / f"{blake2b(shape.encode(), digest_size=12).hexdigest()}.json"


def _read(path: Path) -> Tuning | None:
    """Read a record; one that is damaged or of another release counts as none."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        settings = found["settings"]
        is_sound = all(type(value) is _TUNED.get(name) for name, value in settings.items())
        if found["format"] == _FORMAT and is_sound:
            return Tuning(settings, dict(found["setup"]), list(found["measured"]))
    return None


def treadle_version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  slow to import, rarely wanted

    try:
        return version("treadle")
    except PackageNotFoundError:
        return "source tree"

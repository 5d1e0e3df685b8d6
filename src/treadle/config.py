"""Settings that come from TREADLE_* variables and treadle.toml, and how sizes are spelled in settings and arguments.

What a setting means is left to the room that uses it; arguments and command-line options win over all of them.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import platformdirs

from treadle.errors import UsageError

__all__ = ["SETTINGS_FILE", "Settings", "parse_bytes", "settings_files"]

SETTINGS_FILE = "treadle.toml"

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(I?)(B?)", re.ASCII | re.IGNORECASE)
_SWITCHES = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}


def parse_bytes(name: str, value: int | str) -> int:
    """Return a size as bytes: a count, or text such as "6GiB", "1.5 GB" or "800M"; a bare letter is a power of 1024.

    Raises UsageError, which names the argument or variable ``name``, for anything else.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match and not (match[3] and not match[2]):
            is_decimal = match[2] and match[4] and not match[3]
            base = 1000 if is_decimal else 1024
            return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UsageError(f"{name}: expected a size such as 6GiB or 800MB, found {value!r:.40}")


def _parse_count(name: str, value: int | str) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 10**9:
        return number
    raise UsageError(f"{name}: expected a whole number above 0, found {value!r:.40}")


def _parse_switch(name: str, value: bool | str) -> bool:
    switch = _SWITCHES.get(value.lower()) if isinstance(value, str) else value
    if isinstance(switch, bool):
        return switch
    raise UsageError(f"{name}: expected on or off, found {value!r:.40}")


def _parse_text(name: str, value: str) -> str:
    if isinstance(value, str):
        return value.strip()
    raise UsageError(f"{name}: expected text, found {value!r:.40}")


# Every setting, with what it is and how its value is read. A size is kept in the field ..._bytes.
_SETTINGS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "adapt": ("whether fewer threads run while others need the CPUs, on or off", _parse_switch),
    "adapter_memory": ("memory set aside for adapters", parse_bytes),
    "context": ("most tokens of prompt and answer", _parse_count),
    "disk_cache": ("disk for KV blocks", parse_bytes),
    "engine": ("what computes, native or llamacpp", _parse_text),
    "engine_api_key": ("the key for engines at a URL", _parse_text),
    "engine_key_file": ("a file of hosts and their keys, for engines at a URL", _parse_text),
    "huge_pages": ("whether memory asks for huge pages, on or off", _parse_switch),
    "isa": ("the name of a kernel table", _parse_text),
    "kv_type": ("how keys and values are kept, f16 or q8_0", _parse_text),
    "max_adapters": ("most adapters in memory", _parse_count),
    "memory": ("memory for weights, KV blocks and caches", parse_bytes),
    "mlock": ("whether the model is kept out of swap, on or off", _parse_switch),
    "numa": ("where memory comes from: auto, node, interleave, replicated or default", _parse_text),
    "pin": ("whether threads stay on their CPUs, on or off", _parse_switch),
    "prompt_threads": ("threads that read prompts", _parse_count),
    "ram_cache": ("memory for KV blocks beyond the pool", parse_bytes),
    "reserve_cores": ("cores that are left to other programs", _parse_count),
    "threads": ("threads that compute", _parse_count),
}
_VARIABLES = {f"TREADLE_{name.upper()}": meaning for name, (meaning, _) in _SETTINGS.items()}
_VARIABLES["TREADLE_HOME"] = "a folder for models and caches"


@dataclass(frozen=True)
class Settings:
    """Where Treadle keeps its files, what it computes with, and what it may take; 0, None or empty if unset.

    ``sources`` says where each setting that is set comes from.
    """

    home: Path
    isa: str = ""
    kv_type: str = ""
    memory_bytes: int | None = None
    ram_cache_bytes: int = 0
    disk_cache_bytes: int = 0
    adapter_memory_bytes: int = 0
    max_adapters: int | None = None
    context: int | None = None
    threads: int | None = None
    prompt_threads: int | None = None
    reserve_cores: int = 0
    pin: bool | None = None
    numa: str = ""
    huge_pages: bool | None = None
    adapt: bool | None = None
    mlock: bool = False
    engine: str = ""
    engine_api_key: str = field(default="", repr=False)
    engine_key_file: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, files: Sequence[Path] | None = None) -> Settings:
        """Read the environment and the settings files; variables win over files, earlier files over later ones.

        ``files`` are by default those of ``settings_files``; missing ones are passed over. Values that make no sense
        and misspelt names, which would be ignored in silence, are refused: raises UsageError.
        """
        _refuse_misspelt(environ)
        settings = cls(home=_home(environ))
        for path in reversed(settings_files() if files is None else files):
            settings = settings._with(_values_of_file(path))
        return settings._with(_values_of_environment(environ))

    def override(self, **given: Any) -> Settings:
        """Return these settings with the arguments that are not None in their stead.

        Raises UsageError for a size that is none; what else a value may be is checked where it is used.
        """
        values = (
            (name, parse_bytes(name, value) if _SETTINGS[name][1] is parse_bytes else value, "asked for")
            for name, value in given.items()
            if value is not None
        )
        return self._with(values)

    def fill(self, source: str, **found: Any) -> Settings:
        """Return these settings with values from ``source`` for those that nobody has set."""
        return self._with((name, value, source) for name, value in found.items() if name not in self.sources)

    def why(self, name: str) -> str:
        """Return in words who set a setting."""
        source = self.sources[name]
        return "as asked for" if source == "asked for" else f"as {source} says"

    def _with(self, values: Iterator[tuple[str, Any, str]]) -> Settings:
        changes, sources = {}, dict(self.sources)
        for name, value, source in values:
            changes[f"{name}_bytes" if _SETTINGS[name][1] is parse_bytes else name] = value
            sources[name] = source
        return replace(self, **changes, sources=sources)


def settings_files() -> list[Path]:
    """Return where settings files may be, the one that wins first: the current folder, the user's configuration."""
    return [Path(SETTINGS_FILE), platformdirs.user_config_path("treadle", appauthor=False) / SETTINGS_FILE]


def _values_of_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for name, (_, parse) in _SETTINGS.items():
        variable = f"TREADLE_{name.upper()}"
        text = environ.get(variable, "").strip()
        if text:
            yield name, parse(variable, text), variable


def _values_of_file(path: Path) -> Iterator[tuple[str, Any, str]]:
    for key, value in _read_toml(path).items():
        if key not in _SETTINGS:
            near = difflib.get_close_matches(key, _SETTINGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it may hold {', '.join(_SETTINGS)}"
            raise UsageError(f"{path}: Treadle does not know the key {key!r:.60}", hint=hint)
        yield key, _SETTINGS[key][1](f"{path}: {key}", value), str(path)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the settings cannot be read: {error}") from None
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  rarely wanted
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    # Names that resemble none of ours may belong to other programs or to a newer release, so only near misses count.
    for name in environ:
        if not name.startswith("TREADLE_") or name in _VARIABLES:
            continue
        near = difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.85)
        if near:
            raise UsageError(
                f"environment variable {name} is set, but Treadle does not know it",
                hint=f"did you mean {near[0]} ({_VARIABLES[near[0]]})?",
            )


def _home(environ: Mapping[str, str]) -> Path:
    value = environ.get("TREADLE_HOME")
    if value is None:
        return platformdirs.user_cache_path("treadle", appauthor=False)
    if not value.strip():
        raise UsageError(
            "TREADLE_HOME: expected a folder, found an empty value", hint="unset TREADLE_HOME or give it a folder"
        )
    home = Path(value).expanduser().absolute()
    if home.exists() and not home.is_dir():
        raise UsageError(f"TREADLE_HOME: expected a folder, found a file: {home}")
    return home

"""The layers of the package: who may import whom, who may touch the native core, what the package exports."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle
from patience import PATIENCE_SECONDS

PACKAGE = Path(treadle.__file__).parent

# Top first. A room imports rooms of lower lines and itself, nothing else.
LAYERS = [
    {"cli"},
    {"server", "agents"},
    {"engine"},
    {"models", "hardware"},
    {"config"},
    {"errors"},
]
# `from treadle import LLM` drags in the whole package, so only the top may say it.
MAY_IMPORT_THE_PACKAGE = {"cli"}
MAY_IMPORT_NATIVE = {"engine/runner.py", "models/gguf.py"}


def modules() -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts)


def room_of(path: Path) -> str:
    """The folder or file right under the package: `engine` for engine/runner.py, `errors` for errors.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports anywhere in it, as a dotted name below `treadle` ('' for treadle itself)."""
    parents = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["treadle", *parents[: len(parents) + 1 - node.level]] if node.level else []
            base += (node.module or "").split(".") if node.module else []
            # `from treadle import engine` names a room; `from treadle import LLM` names the package.
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "treadle":
                yield rest if is_room(rest.partition(".")[0]) else ""


def is_room(name: str) -> bool:
    return name == "_native" or (PACKAGE / name / "__init__.py").is_file() or (PACKAGE / f"{name}.py").is_file()


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in modules()])
def test_imports_point_downwards(path: Path) -> None:
    room = room_of(path)
    for name in imported(path):
        target = name.split(".")[0]
        where = f"{path.relative_to(PACKAGE)} imports treadle.{name}".rstrip(".")
        if target == "_native":
            inside = str(path.relative_to(PACKAGE))
            assert inside in MAY_IMPORT_NATIVE or room == "hardware", (
                f"{where}; only {MAY_IMPORT_NATIVE} and hardware may"
            )
        elif target == "":
            assert room in MAY_IMPORT_THE_PACKAGE, f"{where}; import the module that defines the name"
        elif room not in ("__init__", "__main__") and target != room:
            levels = {name: index for index, names in enumerate(LAYERS) for name in names}
            assert room in levels, f"{room} is in no layer; add it to LAYERS"
            assert levels[target] > levels[room], f"{where}, which is not below it"


@pytest.mark.parametrize(
    "module", ["engine.scheduler", "engine.kv.prefix_cache", "engine.kv.block_pool", "engine.sampling"]
)
def test_imports_without_the_native_core(module: str) -> None:
    program = f"import sys; sys.modules['treadle._native'] = None; import treadle.{module}"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert run.returncode == 0, run.stderr


def export_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as ruff sorts __all__."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_package_exports_are_sorted_and_complete() -> None:
    assert list(treadle.__all__) == sorted(treadle.__all__, key=export_order)
    for name in treadle.__all__:
        assert getattr(treadle, name) is not None
    public = {
        name
        for name, value in vars(treadle).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert public <= set(treadle.__all__)

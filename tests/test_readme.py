"""The commands and scripts that README and guides show do run: `console` blocks in a shell, `python` blocks as scripts.

Blocks marked `sh` need the network, a terminal or time; those that install are run by .ci/run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle
from oracles.tiny_adapter import TinyAdapter
from oracles.tiny_encoder import UNIGRAM_VOCABULARY, TinyEncoder
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.models.manifest import StoredFile, StoredModel
from treadle.models.store import ModelStore
from treadle.server.settings import ServerSettings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
# The shape of the model that the guides load adapters for.
SMOLLM2 = TinyModel(hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64, feed_forward_size=1536, num_layers=30)

pytestmark = pytest.mark.model


def blocks(language: str) -> Iterator[object]:
    for page in PAGES:
        found = re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for number, match in enumerate(found, start=1):
            yield pytest.param(match[1], id=f"{page.name}-{number}")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> dict[str, str]:
    """Variables under which `treadle` is this package and smollm2:135m is the test's model file."""
    folder = tmp_path_factory.mktemp("shell")
    command = folder / "treadle"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m treadle "$@"\n')
    command.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    package = str(Path(treadle.__file__).parents[1])
    home = folder / "home"
    file = StoredFile(smollm2_path.name, smollm2_path.stat().st_size, sha256="")
    ModelStore(home).link(StoredModel("smollm2:135m", "", None, smollm2_path.parent, (file,), linked=True))
    return {**os.environ, "PATH": path, "PYTHONPATH": package, "TREADLE_HOME": str(home)}


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[RunningServer]:
    """What the guides have at port 8080."""
    running = RunningServer(smollm2_path, ServerSettings())
    yield running
    running.close()


@pytest.mark.parametrize("block", [*blocks("console")])
def test_console_block(block: str, shell: dict[str, str], tmp_path: Path) -> None:
    """Every command succeeds; a greedy one gives the answer that is shown below it."""
    transcript = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert transcript, "a console block without a command"
    for command, shown in transcript:
        run = subprocess.run(
            ["bash", "-c", command],
            env=shell,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        if "--temperature 0" in command and shown:
            assert shown.startswith(run.stdout)
            assert same_words(run.stderr, shown.removeprefix(run.stdout))


def same_words(some: str, other: str) -> bool:
    """Equal but for the numbers."""
    return re.sub(r"[\d.]+", "0", some) == re.sub(r"[\d.]+", "0", other)


@pytest.mark.parametrize("block", [*blocks("python")])
def test_python_block(block: str, shell: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Scripts succeed and say nothing on stderr; those that talk to a server, or load adapters or a ranker, find them."""
    for package in re.findall(r"^from (langchain_openai|llama_index)\b", block, re.MULTILINE):
        pytest.importorskip(package)
    script = tmp_path / "block.py"
    if "127.0.0.1:8080" in block:
        url = request.getfixturevalue("server").url
        block = block.replace("http://127.0.0.1:8080", url).replace("smollm2:135m", MODEL)
    for name in re.findall(r"load_adapter\(.*\"(\w+\.gguf)\"", block):
        TinyAdapter(rank=1).write(tmp_path / name, SMOLLM2)
    for name in re.findall(r"LLM\(\"\./(.*rerank.*\.gguf)\"\)", block):
        TinyEncoder(ranks=True, pooling=None, vocabulary=UNIGRAM_VOCABULARY).write(tmp_path / name)
    script.write_text(block)
    run = subprocess.run(
        [sys.executable, script],
        env=shell,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if "SandboxUnavailableError" in run.stderr:
        pytest.skip(f"no sandbox on this machine: {run.stderr.splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/concepts").glob("*.md"))])
def test_links_inside_the_repository(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_server import FileAnswer, LocalServer, in_turn, local_server, status_answer
from patience import PATIENCE_SECONDS
from treadle.errors import CapacityError, DownloadError, UsageError
from treadle.models import catalog, download
from treadle.models.catalog import CatalogEntry, UrlSource
from treadle.models.download import PullEvent, pull_model
from treadle.models.store import ModelStore

CONTENT = b"GGUF" + bytes(range(256)) * 2000


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        server.routes["/tiny.gguf"] = FileAnswer(CONTENT)
        yield server


@pytest.fixture
def two_sources(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    sources = (UrlSource(f"{server.url}/gone.gguf"), UrlSource(f"{server.url}/tiny.gguf"))
    entry = CatalogEntry("pair:1m", "Pair", 1_000_000, "MIT", "llama", sources)
    monkeypatch.setattr(catalog, "load_catalog", lambda: {entry.name: entry})
    return entry


def test_the_next_source_serves_when_one_fails(two_sources: CatalogEntry, store: ModelStore) -> None:
    events: list[PullEvent] = []
    model = pull_model("Pair:1M", store=store, progress=events.append)
    assert (model.name, model.licence, model.source) == ("pair:1m", "MIT", str(two_sources.sources[1]))
    [fallback] = [event for event in events if event.phase == "fallback"]
    assert "gone.gguf: the server answered 404" in fallback.reason
    assert fallback.reason.endswith(f"next source: {two_sources.sources[1]}")


def test_when_every_source_fails_every_reason_is_given(
    two_sources: CatalogEntry, server: LocalServer, store: ModelStore
) -> None:
    server.routes["/tiny.gguf"] = status_answer(403)
    with pytest.raises(DownloadError, match=r"(?s)pair:1m: every source failed:\n.*gone.*404.*\n.*tiny.*403"):
        pull_model("pair:1m", store=store)


PULL = """
import sys
from pathlib import Path
from treadle.models.download import pull_model
from treadle.models.store import ModelStore

def show(event):
    print(event.phase, event.done_bytes, flush=True)

print(pull_model(sys.argv[1], store=ModelStore(Path(sys.argv[2])), progress=show).path, flush=True)
"""


def start_pull(url: str, store: ModelStore) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PULL, url, str(store.home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(wanted):
            return
    pytest.fail(f"{wanted!r} never came: {process.communicate()[1]}")


def test_of_two_pulls_at_once_the_second_waits_and_finds_the_model_there(
    server: LocalServer, store: ModelStore
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    server.routes["/tiny.gguf"] = FileAnswer(CONTENT, halfway=lambda: (begun.set(), go_on.wait(PATIENCE_SECONDS)))
    url = f"{server.url}/tiny.gguf"
    first = start_pull(url, store)
    assert begun.wait(PATIENCE_SECONDS)
    second = start_pull(url, store)
    read_until(second, "wait")
    with pytest.raises(UsageError, match="tiny is being pulled by another process"):
        store.remove("tiny")
    go_on.set()
    for process in (first, second):
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors
        assert Path(output.splitlines()[-1]).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_ctrl_c_leaves_a_partial_from_which_the_next_pull_resumes(server: LocalServer, store: ModelStore) -> None:
    go_on = threading.Event()
    server.routes["/tiny.gguf"] = in_turn(
        FileAnswer(CONTENT, halfway=lambda: go_on.wait(PATIENCE_SECONDS)), FileAnswer(CONTENT)
    )
    url = f"{server.url}/tiny.gguf"
    half = len(CONTENT) // 2
    process = start_pull(url, store)
    read_until(process, f"download {half}")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    go_on.set()
    assert process.returncode != 0
    assert store.list() == []
    assert pull_model(url, store=store).path.read_bytes() == CONTENT
    assert server.headers_of("/tiny.gguf")[1]["range"] == f"bytes={half}-"


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, CapacityError, "the disk or quota of .* is full\nhint: .*it resumes"),
        (errno.EDQUOT, CapacityError, "the disk or quota of .* is full"),
        (errno.EACCES, UsageError, "home: Permission denied\nhint: TREADLE_HOME"),
    ],
)
@pytest.mark.usefixtures("two_sources")
def test_faults_of_the_disk_end_the_pull_and_no_other_source_is_tried(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], message: str
) -> None:
    tried: list[object] = []

    def fetch(source: object, *_: object) -> None:
        tried.append(source)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(download, "_fetch", fetch)
    with pytest.raises(kind, match=message):
        pull_model("pair:1m", store=store)
    assert len(tried) == 1


def test_a_store_that_cannot_be_written_is_named(server: LocalServer, store: ModelStore) -> None:
    store.home.mkdir()
    (store.home / "locks").write_text("not a folder")
    with pytest.raises(UsageError, match=r"home/locks: File exists\nhint: TREADLE_HOME"):
        pull_model(f"{server.url}/tiny.gguf", store=store)

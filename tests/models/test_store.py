import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_server import FileAnswer, LocalServer, in_turn, local_server, status_answer
from treadle.errors import DownloadError, UsageError
from treadle.models import download
from treadle.models.download import PullEvent, pull_model
from treadle.models.sources import http
from treadle.models.store import ModelStore, is_path, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 2000


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        server.routes["/tiny.gguf"] = FileAnswer(CONTENT)
        yield server


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_DELAY_SECONDS", 0.0)


def tree(folder: Path) -> list[str]:
    """Every file below the folder, without the locks."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [file for file in files if not file.startswith("locks/")]


def write_model(path: Path) -> Path:
    path.write_bytes(CONTENT)
    return path


def test_the_home_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    assert ModelStore().home == tmp_path


def test_a_new_store_is_empty_and_makes_no_folders(store: ModelStore) -> None:
    assert store.list() == [] and store.unfinished() == () and store.get("anything") is None
    assert not store.home.exists()


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("model.gguf", True),
        ("MODEL.GGUF", True),
        ("./model", True),
        ("~/model", True),
        ("a/b", True),
        ("smollm2:135m", False),
        ("hf:a/b", False),
        ("hf:a/b:c.gguf", False),
        ("https://host/a.gguf", False),
        ("HTTP://host/a.gguf", False),
    ],
)
def test_paths_are_told_from_names(reference: str, expected: bool) -> None:
    assert is_path(reference) is expected


def test_a_path_is_returned_as_it_is(tmp_path: Path, store: ModelStore) -> None:
    path = write_model(tmp_path / "m.gguf")
    assert resolve_model(str(path), store=store) == path
    assert resolve_model(path, store=store) == path


def test_a_file_without_the_usual_suffix_is_found_by_its_bare_name(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("weights", store=store) == Path("weights")


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path, store: ModelStore) -> None:
    with pytest.raises(UsageError, match=r"missing\.gguf: no such file"):
        resolve_model(tmp_path / "missing.gguf", store=store)
    with pytest.raises(UsageError, match=r"expected a \.gguf file, found a folder\nhint: .* no \.gguf file"):
        resolve_model(tmp_path, store=store)
    model = write_model(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match=re.escape(f"such as {model}")):
        resolve_model(tmp_path, store=store)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(UsageError, match=r"pipe\.gguf: expected a \.gguf file, found a pipe or a device"):
        resolve_model(tmp_path / "pipe.gguf", store=store)


def test_an_unknown_name_is_refused_with_stored_names_among_the_close_ones(tmp_path: Path, store: ModelStore) -> None:
    pull_model(str(write_model(tmp_path / "mine.gguf")), name="my-model", store=store)
    with pytest.raises(UsageError, match=r"unknown model 'my-modle'.*\nhint: did you mean my-model"):
        resolve_model("my-modle", store=store)


def test_without_leave_to_pull_an_absent_model_is_an_error(store: ModelStore) -> None:
    with pytest.raises(UsageError, match="SmolLM2:135M is not on this machine\nhint: type `treadle pull SmolLM2:135M`"):
        resolve_model("SmolLM2:135M", pull=False, store=store)


def test_a_url_is_pulled_once(server: LocalServer, store: ModelStore) -> None:
    url = f"{server.url}/tiny.gguf?download=true"
    events: list[PullEvent] = []
    path = resolve_model(url, store=store, progress=events.append)
    assert path.read_bytes() == CONTENT
    assert {event.phase for event in events} == {"download", "verify"}
    assert {event.model for event in events} == {"tiny"}
    assert resolve_model(url, store=store) == path
    assert resolve_model("TINY", store=store) == path
    assert len(server.requests) == 1
    assert tree(store.home) == ["models/tiny/model.json", "models/tiny/tiny.gguf"]


def test_a_url_of_a_first_shard_brings_all(server: LocalServer, store: ModelStore) -> None:
    for index in (1, 2):
        server.routes[f"/big-0000{index}-of-00002.gguf"] = FileAnswer(CONTENT + bytes([index]))
    model = pull_model(f"{server.url}/big-00001-of-00002.gguf", store=store)
    assert (model.name, model.path.name) == ("big", "big-00001-of-00002.gguf")
    assert [(model.folder / file.name).read_bytes()[-1] for file in model.files] == [1, 2]


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("/a/b.gguf", "b.gguf"),
        ("/a/..%2F..%2Fetc", "etc.gguf"),
        ("/", "model.gguf"),
        ("/.hidden.gguf", "hidden.gguf"),
        ("/a%20b%00c.gguf", "a_b_c.gguf"),
        ("/" + "x" * 300 + ".gguf", "x" * 120 + ".gguf"),
    ],
)
def test_addresses_give_harmless_file_names(server: LocalServer, store: ModelStore, path: str, file: str) -> None:
    server.routes[path] = FileAnswer(CONTENT)
    model = pull_model(server.url + path, store=store)
    assert model.path.name == file
    assert model.folder.parent == store.home / "models"


def test_an_address_that_has_no_model_leaves_nothing_to_resume(server: LocalServer, store: ModelStore) -> None:
    server.routes["/page.gguf"] = FileAnswer(b"<!DOCTYPE html>" * 100)
    for path in ("/missing.gguf", "/page.gguf"):
        with pytest.raises(DownloadError):
            pull_model(server.url + path, store=store)
    assert store.unfinished() == ()


def test_two_addresses_do_not_share_a_name(server: LocalServer, store: ModelStore) -> None:
    server.routes["/other/tiny.gguf"] = FileAnswer(CONTENT)
    pull_model(f"{server.url}/tiny.gguf", store=store)
    with pytest.raises(
        UsageError, match=r"tiny is already the name of a model from .*\nhint: choose another with --name"
    ):
        pull_model(f"{server.url}/other/tiny.gguf", store=store)
    assert pull_model(f"{server.url}/other/tiny.gguf", name="other", store=store).name == "other"
    assert [model.name for model in store.list()] == ["other", "tiny"]


@pytest.mark.parametrize("name", ["", "a/b", "../up", "x.gguf", "hf:a", "smollm2:135m", "a b", "é", "x" * 101])
def test_names_that_would_mislead_are_refused(name: str, server: LocalServer, store: ModelStore) -> None:
    with pytest.raises(UsageError, match=r"name .*: expected letters"):
        pull_model(f"{server.url}/tiny.gguf", name=name, store=store)


def test_a_local_file_is_linked_and_not_copied(tmp_path: Path, store: ModelStore) -> None:
    path = write_model(tmp_path / "Mine.gguf")
    model = pull_model(str(path), store=store)
    assert model.linked and model.path == path
    assert resolve_model("mine", store=store) == path
    assert tree(store.home) == ["models/mine/model.json"]
    assert pull_model(str(path), store=store) == model
    store.remove("mine")
    assert path.exists() and store.list() == []


@pytest.mark.parametrize(
    ("file", "name"), [(b"my model.gguf", "my_model"), (b"two\nlines.gguf", "two_lines"), (b"b\xffd.gguf", "b_d")]
)
def test_a_linked_file_of_any_name_gets_a_name_that_can_be_typed(
    tmp_path: Path, store: ModelStore, file: bytes, name: str
) -> None:
    path = write_model(tmp_path / os.fsdecode(file))
    assert pull_model(str(path), store=store).name == name
    assert resolve_model(name, store=store) == path
    assert tree(store.home) == [f"models/{name}/model.json"]


def test_a_store_that_cannot_be_written_is_told_from_a_file_that_cannot_be_read(
    tmp_path: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "mine.gguf")
    store.home.write_text("no folder")
    with pytest.raises(UsageError, match=r"home.*: (Not a directory|File exists)\nhint: TREADLE_HOME"):
        pull_model(str(path), store=store)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(download, "require_gguf", refuse)
    with pytest.raises(UsageError, match=r"mine\.gguf: Permission denied$"):
        pull_model(str(path), store=store)


def test_a_linked_file_that_is_gone_is_named(tmp_path: Path, store: ModelStore) -> None:
    path = write_model(tmp_path / "mine.gguf")
    pull_model(str(path), store=store)
    path.unlink()
    with pytest.raises(UsageError, match=r"stored model mine: .*mine\.gguf is missing\nhint: `treadle rm mine`"):
        resolve_model("mine", store=store)


def test_linking_refuses_what_is_no_model(tmp_path: Path, store: ModelStore) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("hello")
    with pytest.raises(DownloadError, match="is not a GGUF file"):
        pull_model(str(text), store=store)
    with pytest.raises(UsageError, match="no such file"):
        pull_model(str(tmp_path / "missing.gguf"), store=store)
    with pytest.raises(UsageError, match=r"shard m-00002-of-00002\.gguf is missing beside it"):
        pull_model(str(write_model(tmp_path / "m-00001-of-00002.gguf")), store=store)
    assert store.list() == []


def test_a_pulled_file_of_wrong_size_is_pulled_again(server: LocalServer, store: ModelStore) -> None:
    path = resolve_model(f"{server.url}/tiny.gguf", store=store)
    path.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=f"expected {len(CONTENT)} bytes, found 4"):
        resolve_model("tiny", pull=False, store=store)
    assert resolve_model("tiny", store=store).read_bytes() == CONTENT


def test_a_name_survives_damage_and_a_second_pull(server: LocalServer, store: ModelStore) -> None:
    pull_model(f"{server.url}/tiny.gguf", name="mine", store=store).path.unlink()
    model = pull_model("mine", store=store)
    assert model.name == "mine" and model.path.read_bytes() == CONTENT


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"name": 1}'])
def test_a_folder_with_a_broken_manifest_is_no_model_and_can_be_replaced(
    server: LocalServer, store: ModelStore, manifest: str
) -> None:
    path = pull_model(f"{server.url}/tiny.gguf", store=store).path
    (path.parent / "model.json").write_text(manifest)
    assert store.list() == []
    assert pull_model(f"{server.url}/tiny.gguf", store=store).path.read_bytes() == CONTENT


def test_removing_says_what_it_set_free(server: LocalServer, store: ModelStore) -> None:
    pull_model(f"{server.url}/tiny.gguf", store=store)
    assert store.remove("Tiny") >= len(CONTENT)
    assert tree(store.home) == []
    with pytest.raises(UsageError, match="no stored model is named 'tiny'"):
        store.remove("tiny")


def test_an_interrupted_download_is_listed_and_can_be_discarded(server: LocalServer, store: ModelStore) -> None:
    server.routes["/tiny.gguf"] = in_turn(FileAnswer(CONTENT, cut=1000), status_answer(404))
    with pytest.raises(DownloadError):
        pull_model(f"{server.url}/tiny.gguf", store=store)
    assert store.list() == []
    [unfinished] = store.unfinished()
    assert (unfinished.name, unfinished.resume) == ("tiny", f"{server.url}/tiny.gguf")
    assert unfinished.bytes >= 1000
    store.remove("tiny")
    assert store.unfinished() == ()


def test_the_manifest_is_what_other_programs_may_read(server: LocalServer, store: ModelStore) -> None:
    model = pull_model(f"{server.url}/tiny.gguf", store=store)
    facts = json.loads((model.folder / "model.json").read_text())
    assert facts["version"] == 1
    assert facts["files"] == [{"name": "tiny.gguf", "bytes": len(CONTENT), "sha256": model.files[0].sha256}]

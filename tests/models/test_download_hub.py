import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_server import FileAnswer, LocalServer, local_server, status_answer, text_answer
from treadle.errors import CapacityError, DownloadError
from treadle.models.catalog import HubSource
from treadle.models.download import pull_model
from treadle.models.sources.hub import parse_hub_reference, select_files
from treadle.models.store import ModelStore, resolve_model

REPO = "acme/Tiny-GGUF"
COMMIT = "c0ffee" * 6 + "beef"
USUAL = ["README.md", "Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf", "Tiny-f16.gguf", "mmproj-Tiny-f16.gguf", "imatrix.gguf"]


def content_of(path: str) -> bytes:
    return b"GGUF" + path.encode() * 1000


class FakeHub:
    """The few routes of the hub that a pull asks for, with file contents made from their names."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server

    def add(self, *paths: str, repo: str = REPO, licence: str = "apache-2.0", redirect: str = "") -> None:
        siblings = []
        for path in paths:
            content = content_of(path)
            digest = hashlib.sha256(content).hexdigest()
            siblings.append({
                "rfilename": path,
                "size": len(content),
                "lfs": {"sha256": digest, "size": len(content), "pointerSize": 130},
            })  # fmt: skip
            where = f"/{repo}/resolve/{COMMIT}/{path}"
            self.server.routes[where] = (
                status_answer(302, Location=f"{redirect}/{path}") if redirect else FileAnswer(content)
            )
        facts = {"id": repo, "sha": COMMIT, "siblings": siblings, "cardData": {"license": licence}}
        self.server.routes[f"/api/models/{repo}"] = text_answer(json.dumps(facts))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    from huggingface_hub import constants  # noqa: PLC0415

    with local_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield FakeHub(server)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


def chosen(source: HubSource) -> list[str]:
    return [file.name for file in select_files(source).files]


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        ("hf:a/b", HubSource("a/b")),
        ("hf:a/b:Q8_0", HubSource("a/b", quant="Q8_0")),
        ("hf://a/b.c-GGUF:q4_k_m", HubSource("a/b.c-GGUF", quant="q4_k_m")),
        ("hf:a/b:x-Q8_0.gguf", HubSource("a/b", file="x-Q8_0.gguf")),
    ],
)
def test_references_are_read(reference: str, source: HubSource) -> None:
    assert parse_hub_reference(reference) == source


@pytest.mark.parametrize("reference", ["hf:", "hf:b", "hf:a/b/c", "hf:a/b:", "hf:a/b:c:d", "hf:../b c"])
def test_other_references_are_refused(reference: str) -> None:
    with pytest.raises(DownloadError, match="expected hf:org/repo"):
        parse_hub_reference(reference)


@pytest.mark.parametrize(
    ("paths", "wanted", "files"),
    [
        (USUAL, "", ["Tiny-Q4_K_M.gguf"]),
        (USUAL, "q8_0", ["Tiny-Q8_0.gguf"]),
        (USUAL, "F16", ["Tiny-f16.gguf"]),
        (USUAL, "tiny-q8_0.GGUF", ["Tiny-Q8_0.gguf"]),
        (["m.IQ4_XS.gguf", "m.Q5_K_S.gguf", "m.Q8_0.gguf"], "", ["m.Q5_K_S.gguf"]),
        (["m.IQ4_XS.gguf", "m.Q3_K_M.gguf", "m.Q8_0.gguf"], "", ["m.IQ4_XS.gguf"]),
        (["m-mxfp4.gguf", "m-bf16.gguf"], "", ["m-mxfp4.gguf"]),
        (["m-mxfp4.gguf", "m-bf16.gguf"], "mxfp4", ["m-mxfp4.gguf"]),
        (["m-IQ2_XXS.gguf"], "", ["m-IQ2_XXS.gguf"]),
        (["model.gguf"], "", ["model.gguf"]),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "ud-q4_k_xl", ["m-UD-Q4_K_XL.gguf"]),
        (["Q4_K_M/model.gguf", "Q8_0/model.gguf"], "Q8_0", ["model.gguf"]),
        (["m-q4_k_m.gguf", "m-q4_k_m-00001-of-00002.gguf", "m-q4_k_m-00002-of-00002.gguf"], "", ["m-q4_k_m.gguf"]),
        (
            ["m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"],
            "",
            ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_right_files_are_chosen(hub: FakeHub, paths: list[str], wanted: str, files: list[str]) -> None:
    hub.add(*paths)
    assert chosen(parse_hub_reference(f"hf:{REPO}:{wanted}" if wanted else f"hf:{REPO}")) == files


@pytest.mark.parametrize(
    ("paths", "wanted", "message"),
    [
        (USUAL, "Q5_K_M", r"hf:acme/Tiny-GGUF:Q5_K_M: no such file; the repository offers Q4_K_M, Q8_0, F16"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "", r"several files match: a-Q4_K_M.gguf, b-Q4_K_M.gguf\nhint: name one"),
        (["README.md", "model.safetensors"], "", "holds no GGUF file"),
        (["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"], "", "lacks shards"),
    ],
)
def test_what_cannot_be_chosen_names_what_there_is(hub: FakeHub, paths: list[str], wanted: str, message: str) -> None:
    hub.add(*paths)
    with pytest.raises(DownloadError, match=message):
        select_files(parse_hub_reference(f"hf:{REPO}:{wanted}" if wanted else f"hf:{REPO}"))


def test_a_pull_without_quantisation_is_stored_under_the_one_it_got(hub: FakeHub, store: ModelStore) -> None:
    hub.add(*USUAL)
    model = pull_model(f"hf:{REPO}", store=store)
    assert model.name == model.source == f"hf:{REPO}:Q4_K_M"
    assert model.licence == "apache-2.0"
    assert model.path.read_bytes() == content_of("Tiny-Q4_K_M.gguf")
    assert sorted(path.name for path in model.folder.iterdir()) == ["Tiny-Q4_K_M.gguf", "model.json"]


def test_what_is_stored_is_used_without_asking_the_hub(hub: FakeHub, store: ModelStore) -> None:
    hub.add(*USUAL)
    path = pull_model(f"hf:{REPO}", store=store).path
    hub.server.requests.clear()
    for reference in (f"hf:{REPO}", f"hf:{REPO.lower()}:q4_k_m", f"hf:{REPO}:Q4_K_M"):
        assert resolve_model(reference, store=store) == path
    assert hub.server.requests == []


def test_of_several_stored_quantisations_the_default_is_meant(hub: FakeHub, store: ModelStore) -> None:
    hub.add(*USUAL)
    pull_model(f"hf:{REPO}:Q8_0", store=store)
    assert resolve_model(f"hf:{REPO}", store=store).name == "Tiny-Q8_0.gguf"
    pull_model(f"hf:{REPO}", store=store)
    assert resolve_model(f"hf:{REPO}", store=store).name == "Tiny-Q4_K_M.gguf"


def test_all_shards_arrive_and_the_first_is_the_model(hub: FakeHub, store: ModelStore) -> None:
    shards = [f"Q8_0/m-Q8_0-0000{index}-of-00003.gguf" for index in (1, 2, 3)]
    hub.add(*shards)
    model = pull_model(f"hf:{REPO}:q8_0", store=store)
    assert model.path.name == "m-Q8_0-00001-of-00003.gguf"
    assert [model.folder.joinpath(file.name).read_bytes() for file in model.files] == [content_of(s) for s in shards]


def test_shards_that_are_complete_are_not_fetched_again(hub: FakeHub, store: ModelStore) -> None:
    shards = [f"m-Q8_0-0000{index}-of-00002.gguf" for index in (1, 2)]
    hub.add(*shards)
    second = f"/{REPO}/resolve/{COMMIT}/{shards[1]}"
    working = hub.server.routes.pop(second)
    with pytest.raises(DownloadError, match="404"):
        pull_model(f"hf:{REPO}", store=store)
    hub.server.routes[second] = working
    pull_model(f"hf:{REPO}", store=store)
    assert len(hub.server.headers_of(f"/{REPO}/resolve/{COMMIT}/{shards[0]}")) == 1


def test_a_file_that_differs_from_the_hubs_checksum_is_refused(hub: FakeHub, store: ModelStore) -> None:
    hub.add("m-Q8_0.gguf")
    forged = bytearray(content_of("m-Q8_0.gguf"))
    forged[-1] ^= 1
    hub.server.routes[f"/{REPO}/resolve/{COMMIT}/m-Q8_0.gguf"] = FileAnswer(bytes(forged))
    with pytest.raises(DownloadError, match=r"checksum of m-Q8_0\.gguf differs"):
        pull_model(f"hf:{REPO}", store=store)
    assert store.list() == []


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(
    hub: FakeHub, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with local_server() as storage:
        storage.routes["/m-Q8_0.gguf"] = FileAnswer(content_of("m-Q8_0.gguf"))
        hub.add("m-Q8_0.gguf", redirect=storage.url)
        pull_model(f"hf:{REPO}", store=store)
        [asked] = hub.server.headers_of(f"/{REPO}/resolve/{COMMIT}/m-Q8_0.gguf")
        assert asked["authorization"] == "Bearer hf_secret"
        assert "authorization" not in storage.headers_of("/m-Q8_0.gguf")[0]


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {"X_Error_Code": "RepoNotFound"}, "no such repository on the hub, or it is private\nhint: .*HF_TOKEN"),
        (403, {"X_Error_Code": "GatedRepo"}, "access on request only\nhint: accept the licence on the model page"),
        (500, {}, "500"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(hub: FakeHub, status: int, headers: dict[str, str], message: str) -> None:
    hub.server.routes[f"/api/models/{REPO}"] = status_answer(status, **headers)
    with pytest.raises(DownloadError, match=message):
        select_files(HubSource(REPO))


@pytest.mark.usefixtures("hub")
def test_a_hub_that_cannot_be_reached_is_a_download_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants  # noqa: PLC0415

    with local_server() as gone:
        monkeypatch.setattr(constants, "ENDPOINT", gone.url)
    with pytest.raises(DownloadError, match=f"hf:{REPO}: the hub cannot be reached"):
        select_files(HubSource(REPO))


def test_all_shards_must_fit_on_the_disk_before_the_first_is_fetched(
    hub: FakeHub, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [f"m-Q8_0-0000{index}-of-00002.gguf" for index in (1, 2)]
    hub.add(*shards)
    room = len(content_of(shards[0])) + (64 << 20) + 100
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, room))
    with pytest.raises(CapacityError, match="not enough disk"):
        pull_model(f"hf:{REPO}", store=store)
    assert [path for path, _ in hub.server.requests if "resolve" in path] == []


def test_the_endpoint_of_the_environment_is_asked(tmp_path: Path) -> None:
    with local_server() as server:
        FakeHub(server).add(*USUAL)
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
        environment["TREADLE_HOME"] = str(tmp_path / "home")
        code = f"from treadle.models.store import resolve_model; print(resolve_model('hf:{REPO}'))"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content_of("Tiny-Q4_K_M.gguf")

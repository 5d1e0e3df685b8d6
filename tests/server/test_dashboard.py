"""The page's files and headers, the figures of /stats, and what is remembered of requests."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import httpx
import pytest
from test_operation import wait_until_idle

from running_server import MODEL, RunningServer
from treadle.engine.contract import AsyncEngine
from treadle.engine.sampling import SamplingParams
from treadle.errors import UsageError
from treadle.hardware.throttling import Throttling
from treadle.server.errors import ApiError
from treadle.server.hub import ModelHub
from treadle.server.limits import Limits
from treadle.server.machine_watch import MachineWatch
from treadle.server.schema.chat import ChatRequest
from treadle.server.settings import ServerSettings
from treadle.server.statistics import server_statistics

FOLDER = files("treadle.server") / "dashboard"
NAMES = sorted(file.name for file in FOLDER.iterdir())
SECRET = "a word nobody else would say: zyzzyva"


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.model
@pytest.mark.parametrize("path", ["/", *(f"/dashboard/{name}" for name in NAMES)])
def test_files_come_with_a_strict_policy(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'" and "unsafe" not in str(policy)
    name = path.rpartition("/")[2] or "index.html"
    assert response.content == (FOLDER / name).read_bytes()


@pytest.mark.model
@pytest.mark.parametrize("path", ["/", "/dashboard/app.js"])
def test_what_a_browser_has_is_not_sent_again(http: httpx.Client, path: str) -> None:
    first = http.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f'"other", W/{tag}', "*"):
        again = http.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    head = http.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)


@pytest.mark.model
@pytest.mark.parametrize("path", ["/dashboard/", "/dashboard/no.js", "/dashboard/..%2f..%2fapp.py", "/dashboard/%00"])
def test_nothing_but_the_files_of_the_page_is_served(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404


def test_the_page_needs_nothing_that_its_policy_forbids() -> None:
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    Reader().feed((FOLDER / "index.html").read_text())
    for tag, attributes in found:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        address = attributes.get("src") or attributes.get("href") or "#"
        assert address.startswith("#") or address.removeprefix("dashboard/") in NAMES
        assert tag not in ("style", "iframe")
        if tag == "script":
            assert attributes.get("src")
    for name in NAMES:
        text = (FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://\w|innerHTML|outerHTML|insertAdjacentHTML|document\.write|@import|url\(", text
        ), name
        assert not re.search(r"""(fetch|from|import)\W+["'`]/""", text), f"{name} has an address that is not relative"


def test_every_file_of_the_page_is_used_and_no_other_asked_for() -> None:
    texts = {name: (FOLDER / name).read_text() for name in NAMES}
    used = set(re.findall(r'(?:href|src)="dashboard/([^"]+)"', texts["index.html"])) | {"index.html"}
    for name in NAMES:
        used |= set(re.findall(r'from "\./([^"]+)"', texts[name]))
    assert used == set(NAMES)


def test_the_settings_tell_the_defaults_and_the_limits_of_the_server() -> None:
    fields = {}

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "input" and dict(attrs).get("type") == "number":
                fields[dict(attrs)["name"]] = dict(attrs)

    Reader().feed((FOLDER / "index.html").read_text())
    assert set(fields) <= set(ChatRequest.model_fields)
    default = SamplingParams()
    off = {"top_k": 0, "min_p": 0, "repetition_penalty": 1}
    for name in ("temperature", "top_p", *off):
        told = fields[name]["placeholder"]
        assert getattr(default, name) == (off[name] if told == "off" else float(told or ""))
        for bound in ("min", "max"):
            if fields[name].get(bound):
                ChatRequest.model_validate({"messages": [{}], name: json.loads(fields[name][bound] or "")})


@pytest.mark.model
@pytest.mark.parametrize("server", ["native"], indirect=True)
def test_statistics_count_a_request_and_keep_none_of_its_text(http: httpx.Client, server: RunningServer) -> None:
    wait_until_idle(server)  # clients of earlier tests may have left
    before = http.get("/stats").json()["models"][0]
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "temperature": 0}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    http.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 2})
    response = http.get("/stats")
    [model] = response.json()["models"]
    assert "zyzzyva" not in response.text
    assert model["name"] == MODEL and model["is_loaded"]
    assert model["running"] == model["waiting"] == 0
    assert model["steps"]["count"] > before["steps"]["count"]
    assert model["decode_read_bytes_per_second"] > 0
    assert model["tokens_per_second"]["answer"] > 0
    limit = response.json()["limits"]["read_bytes_per_second"]
    assert (limit is None) == (model["shares"]["bandwidth"] is None)
    assert sum(model["kv_blocks"][name] for name in ("used", "cached")) <= model["kv_blocks"]["total"]
    plain, chat = model["requests"][:2]
    assert chat["prompt_tokens"] == usage["prompt_tokens"]
    assert chat["answer_tokens"] == usage["completion_tokens"] == 4
    assert (chat["state"], plain["state"], plain["answer_tokens"]) == ("length", "length", 2)
    phases = [chat[f"{phase}_seconds"] for phase in ("queued", "prefill", "decode")]
    assert 0 < sum(phases) <= chat["total_seconds"]
    assert (model["is_loading"], model["is_elsewhere"], model["users"], model["adapters"]) == (False, False, 0, [])
    assert model["idle_seconds"] >= 0
    assert response.json()["clock_seconds"] > 0
    assert {"throttled_seconds", "steal_seconds"} == set(response.json()["denied"])


@pytest.mark.model
@pytest.mark.parametrize("server", ["native"], indirect=True)
def test_fewer_requests_are_told_if_fewer_are_wanted(http: httpx.Client) -> None:
    for _ in range(3):
        http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    latest = http.get("/stats").json()["models"][0]["requests"]
    told = {
        number: http.get("/stats", params={"requests": number}).json()["models"][0]["requests"] for number in (0, 2)
    }
    assert told == {0: [], 2: latest[:2]}
    for wrong in ("-1", "51", "9" * 5000, "x", "", "1.0", "٣"):
        response = http.get("/stats", params={"requests": wrong})
        assert response.status_code == 400 and "requests: expected 0 to 50" in response.json()["error"]["message"]


def test_what_was_kept_from_the_process_is_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []
    clock = Clock()

    def read() -> Throttling:
        reads.append(clock.now)
        return Throttling(None, None, clock.now, None)

    monkeypatch.setattr("treadle.server.machine_watch.read_throttling", read)
    machine = MachineWatch(ModelHub({}, None), Limits(ServerSettings()), clock=clock)  # type: ignore[arg-type]
    for clock.now in (10.0, 10.5, 10.9, 11.0, 11.5, 30.0):
        assert machine.denied.throttled_seconds == reads[-1]
    assert reads == [10.0, 11.0, 30.0]


@pytest.mark.model
@pytest.mark.parametrize("server", ["native", "remote"], indirect=True)
def test_a_request_for_vectors_is_remembered(http: httpx.Client) -> None:
    usage = http.post("/v1/embeddings", json={"input": [SECRET, "two", "three"]}).json()["usage"]
    http.post("/v1/embeddings", json={"input": SECRET, "dimensions": 1_000_000})
    response = http.get("/stats")
    failed, done = response.json()["models"][0]["requests"][:2]
    assert "zyzzyva" not in response.text
    assert (done["kind"], done["num_inputs"], done["state"]) == ("embeddings", 3, "stop")
    assert (done["prompt_tokens"], done["answer_tokens"]) == (usage["prompt_tokens"], 0)
    assert done["queued_seconds"] + done["prefill_seconds"] == pytest.approx(done["total_seconds"])
    assert (failed["state"], failed["queued_seconds"]) == ("error", None)


def test_models_tell_their_state() -> None:
    async def load(source: str) -> AsyncEngine:
        [model] = facts(source)
        seen.append((model["is_loaded"], model["is_loading"], model["users"], model["is_elsewhere"]))
        raise UsageError("no such file")

    def facts(name: str) -> list[dict[str, Any]]:
        found = server_statistics(hub, machine, max_output_tokens=7)
        assert found["limits"]["answer_tokens"] == 7
        return [model for model in found["models"] if name.endswith(model["name"])]

    seen: list[tuple[bool, bool, int, bool]] = []
    hub = ModelHub({"near": "near", "far": "http://127.0.0.1:1/v1#far"}, load)
    machine = MachineWatch(hub, Limits(ServerSettings()))

    async def use(name: str) -> None:
        async with hub.use(name):
            pass

    for name in ("near", "far"):
        with pytest.raises(ApiError):
            asyncio.run(use(name))
    assert seen == [(False, True, 1, False), (False, True, 1, True)]
    assert [(model["is_loading"], model["users"], model["idle_seconds"]) for model in facts("near")] == [
        (False, 0, None)
    ]

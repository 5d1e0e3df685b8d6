"""The page's files and headers, the figures of /stats, and what is remembered of requests."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import httpx
import pytest

from running_server import MODEL
from treadle.engine.completion import Completion, CompletionChunk, Timings
from treadle.errors import InternalError, TreadleError
from treadle.server.recent import RecentRequests

FOLDER = files("treadle.server") / "dashboard"
NAMES = sorted(file.name for file in FOLDER.iterdir())
SECRET = "a word nobody else would say: zyzzyva"


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def chunk(num_tokens: int, *, index: int = 0, ends: Timings | None = None, reason: str = "stop") -> CompletionChunk:
    completion = None
    if ends is not None:
        completion = Completion("", [1] * num_tokens, reason, 8, num_tokens, ends, cached_tokens=4, index=index)  # type: ignore[arg-type]
    return CompletionChunk("", (1,) * num_tokens, num_tokens, completion=completion, index=index)


@pytest.mark.model
@pytest.mark.parametrize("path", ["/", *(f"/dashboard/{name}" for name in NAMES)])
def test_files_come_with_a_strict_policy(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert response.headers["x-content-type-options"] == "nosniff"
    name = path.rpartition("/")[2] or "index.html"
    assert response.content == (FOLDER / name).read_bytes()


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
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|localStorage|@import", text), name


@pytest.mark.model
@pytest.mark.parametrize("server", ["native"], indirect=True)
def test_statistics_count_a_request_and_keep_none_of_its_text(http: httpx.Client) -> None:
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


def test_a_request_goes_through_its_states() -> None:
    clock = Clock()
    recent = RecentRequests(clock, wall_clock=lambda: 1234.5)
    so_far = {0: Timings(0.25, 0.5, 0.0)}
    request = recent.begin(8, lambda: so_far)
    clock.now = 11.0
    [waiting] = recent.as_json()
    assert (waiting["state"], waiting["total_seconds"], waiting["prefill_seconds"]) == ("waiting", 1.0, 0.5)
    request.took(chunk(1))
    clock.now = 13.0
    so_far[0] = Timings(0.25, 0.75, 1.5)
    [answering] = recent.as_json()
    assert (answering["state"], answering["first_token_seconds"], answering["decode_seconds"]) == (
        "answering",
        1.0,
        1.5,
    )
    so_far.clear()
    request.took(chunk(3, ends=Timings(0.25, 0.75, 2.0)))
    clock.now = 99.0
    [done] = recent.as_json()
    assert json.loads(json.dumps(done)) == {
        "id": 1,
        "began_at": 1234.5,
        "state": "stop",
        "prompt_tokens": 8,
        "cached_tokens": 4,
        "answer_tokens": 4,
        "total_seconds": 3.0,
        "first_token_seconds": 1.0,
        "queued_seconds": 0.25,
        "prefill_seconds": 0.75,
        "decode_seconds": 2.0,
    }


def test_a_request_of_several_answers_ends_with_the_last() -> None:
    recent = RecentRequests(Clock())
    request = recent.begin(8, dict)
    request.took(chunk(1, index=0))
    request.took(chunk(1, index=1))
    request.took(chunk(1, index=0, ends=Timings(0, 1, 2)))
    assert recent.as_json()[0]["state"] == "answering"
    request.took(chunk(1, index=1, ends=Timings(0, 1, 3), reason="length"))
    assert (recent.as_json()[0]["state"], recent.as_json()[0]["decode_seconds"]) == ("length", 3)


@pytest.mark.parametrize(
    ("error", "is_complete", "state"),
    [(None, False, "stopped"), (None, True, "stop"), (InternalError("broken"), False, "error")],
)
def test_a_request_cut_short_says_why_and_where_its_time_went(
    error: TreadleError | None, is_complete: bool, state: str
) -> None:
    recent = RecentRequests(Clock())
    request = recent.begin(8, dict)
    request.took(chunk(1))
    request.ended({0: Timings(1, 2, 3)}, error, is_complete=is_complete)
    [ended] = recent.as_json()
    assert (ended["state"], ended["queued_seconds"], ended["decode_seconds"]) == (state, 1, 3)


def test_an_engine_that_tells_no_phases_leaves_them_open() -> None:
    recent = RecentRequests(Clock())
    recent.begin(8, dict).took(chunk(1))
    assert recent.as_json()[0]["queued_seconds"] is None


def test_only_the_newest_are_kept() -> None:
    recent = RecentRequests()
    for _ in range(200):
        recent.begin(1, dict)
    assert [request["id"] for request in recent.as_json()] == [*range(200, 150, -1)]

"""The pages of `treadle trace` and `treadle profile`: one file that needs nothing else, in which text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from command import treadle
from made_traces import agent_trace
from treadle.cli.page import make_page

SAMPLE = Path(__file__).parents[1] / "engine" / "profiles" / "smollm2.json"
LOCAL = {"--part", "--gutter"}  # what sheets of style set for themselves
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&lt;]]>\u2028\x00\x1b\ud800"


class Elements(HTMLParser):
    """Every element of a page with its attributes and the text in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._is_open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.texts.append((tag, ""))
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        if tag == self.texts[-1][0]:
            self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            tag, text = self.texts[-1]
            self.texts[-1] = tag, text + data

    def text_of(self, tag: str) -> list[str]:
        return [text for each, text in self.texts if each == tag]


def read(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    elements.close()
    return elements


@pytest.fixture(params=["trace", "profile"])
def page(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_page"))


@pytest.fixture
def profile_page(tmp_path: Path) -> str:
    record = json.loads(SAMPLE.read_text())
    record["model"]["name"] = HOSTILE[:-1]  # a lone surrogate is no JSON of a profile
    kept, path = tmp_path / "profile.json", tmp_path / "page.html"
    kept.write_text(json.dumps(record))
    result = treadle("profile", kept, "--compare", SAMPLE, "--html", path)
    assert result.code == 0 and f"wrote {path}\n" in result.err and "of limit" in result.out
    return path.read_text(encoding="utf-8")


@pytest.fixture
def trace_page(tmp_path: Path) -> str:
    traces, path = tmp_path / "run.jsonl", tmp_path / "page.html"
    trace = agent_trace(HOSTILE)
    trace.root.add("tool", HOSTILE, 0, 5, arguments=HOSTILE, **{HOSTILE: 1})
    trace.write(traces)
    result = treadle("trace", traces, "--html", path)
    assert (result.code, result.out, result.err) == (0, "", f"wrote {path}\n")
    return path.read_text(encoding="utf-8")


def test_what_was_measured_is_in_the_page(profile_page: str) -> None:
    facts = json.loads(read(profile_page).text_of("script")[0])
    record = json.loads(SAMPLE.read_text())
    assert [cell["rates"] for cell in facts["cells"]] == [cell["rates"] for cell in record["cells"]]
    assert {each["derived"]["limit_name"] for cell in facts["cells"] for each in cell["operators"]} == {
        "",
        "memory",
        "int8",
        "float",
    }
    assert facts["model"]["name"] == HOSTILE[:-1]
    assert [change["outcome"] for change in facts["comparison"]["changes"]] == ["same"] * 6
    assert facts["comparison"]["warnings"]


def test_a_profile_page_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    result = treadle("profile", SAMPLE, "--html", tmp_path / "no" / "page.html")
    assert result.code == 1 and "--html: expected a file in a folder that is there" in result.err


def test_text_of_models_and_tools_stays_text(trace_page: str) -> None:
    elements = read(trace_page)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert "img" not in [tag for tag, _ in elements.found]
    data, _ = elements.text_of("script")
    facts = json.loads(data)
    assert facts["tasks"][0]["name"] == HOSTILE
    [tool] = [span for span in facts["tasks"][0]["spans"] if span["kind"] == "tool" and span["name"] == HOSTILE]
    assert tool["attributes"] == {"arguments": HOSTILE, HOSTILE: 1}


def test_nothing_else_may_run_and_nothing_is_fetched(page: str) -> None:
    elements = read(page)
    attributes = [(name, value) for _, attrs in elements.found for name, value in attrs.items()]
    assert not [name for name, _ in attributes if name in ("src", "href", "style") or name.startswith("on")]
    [policy] = [attrs["content"] for tag, attrs in elements.found if tag == "meta" and "http-equiv" in attrs]
    assert policy is not None and policy.startswith("default-src 'none'; ")
    for tag, text in (("style", elements.text_of("style")[0]), ("script", elements.text_of("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org/)", page)


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    agent_trace().write(path)
    result = treadle("trace", path, "--html", tmp_path / "no" / "page.html")
    assert result.code == 1 and "page.html: the page cannot be written: No such file" in result.err


@pytest.mark.parametrize("facts", [{"a": [float("nan")]}, {"a": float("inf")}])
def test_figures_that_are_no_numbers_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        make_page("t", "trace", facts)


def test_colours_and_type_are_those_of_the_page_of_the_server(page: str) -> None:
    tokens = (files("treadle.server") / "dashboard" / "tokens.css").read_text()
    [style] = read(page).text_of("style")
    assert tokens in style
    folders = files("treadle.cli") / "page", files("treadle.server") / "dashboard"
    known = set(re.findall(r"^\s*(--[\w-]+):", tokens, re.MULTILINE)) | LOCAL
    for sheet in (file for folder in folders for file in folder.iterdir() if file.name.endswith(".css")):
        text = sheet.read_text()
        assert set(re.findall(r"var\((--[\w-]+)", text)) <= known, sheet
        if sheet.name != "tokens.css":
            assert not re.search(r"#[0-9a-f]{3,8}\b", text), sheet
            assert set(re.findall(r"^\s*(--[\w-]+):", text, re.MULTILINE)) <= LOCAL, sheet

"""The pages of `treadle trace` and `profile` in a real browser: keyboard, zoom, hostile text, both colour schemes."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made_traces import add, agent_trace, new_trace
from patience import PATIENCE_SECONDS
from treadle.agents.trace import Trace
from treadle.cli.page import make_page
from treadle.cli.profile_facts import profile_facts
from treadle.cli.trace_facts import trace_facts
from treadle.engine.profile.comparison import compare
from treadle.engine.profile.record import Limits
from treadle.engine.profile.record_file import read_record

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Where to leave the picture of the guide.
SCREENSHOT = os.environ.get("TREADLE_SCREENSHOT")
HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE_SECONDS
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page; at the end nothing may have been complained about or fetched."""
    complaints: list[str] = []
    addresses: list[str] = []
    contexts = []
    path = tmp_path / "page.html"

    def open_one(text: str, **options: object) -> Page:
        path.write_text(text)
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("svg.drawing *", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []
    assert set(addresses) == {path.as_uri()}


def page_of(*traces: Trace) -> str:
    return make_page("Where the time went", "trace", trace_facts(traces, [], has_spans=True))


def labels(page: Page) -> list[str]:
    return [text.lstrip("▾▸ ") for text in page.locator("#waterfall text.label").all_text_contents()]


def selected(page: Page) -> str:
    return page.locator(".row.selected text.label").text_content().strip().lstrip("▾▸ ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_task_is_drawn(open_page: Callable[..., Page], scheme: str) -> None:
    page = open_page(page_of(agent_trace("Which region sold most?")), color_scheme=scheme)
    assert labels(page)[:4] == ["task Which region sold most?", "turn 1", "model m", "queue"]
    assert len(labels(page)) == 17
    assert page.locator("#groups li").all_inner_texts()[0].split("\n")[:3] == ["model", "0.88 s", "44 %"]
    assert page.locator("#path tr").first.inner_text().split("\t") == ["sandbox python", "0.94 s", "47 %"]
    assert page.locator("#tools tr").nth(2).inner_text().split("\t") == ["fetch", "1", "1", "0.28 s", ""]
    assert page.locator("#tasks").is_hidden()
    # The call that ran beside the longer one decided nothing.
    assert page.locator(".row.failed .on-path").count() == 0
    widths = {
        name: page.locator(f".row.kind-{name} .bar").first.evaluate("bar => bar.getBoundingClientRect().width")
        for name in ("sandbox", "wait")
    }
    assert widths["sandbox"] == pytest.approx(9.4 * widths["wait"], rel=0.02)
    if SCREENSHOT is not None:
        page.screenshot(path=SCREENSHOT.replace(".png", f"-trace-{scheme}.png"))


def test_the_keyboard_reaches_everything(open_page: Callable[..., Page]) -> None:
    page = open_page(page_of(agent_trace()))
    tree = page.locator("#waterfall")
    tree.focus()
    page.keyboard.press("ArrowDown")
    assert selected(page) == "turn 1"
    assert tree.get_attribute("aria-activedescendant") == page.locator(".row.selected").get_attribute("id")
    page.keyboard.press("ArrowLeft")
    assert labels(page) == ["task", "turn 1", "turn 2", "model m", "prefill", "decode"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert selected(page) == "model m" and len(labels(page)) == 17
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert selected(page) == "turn 1"
    page.keyboard.press("End")
    assert selected(page) == "decode"
    bar = page.locator(".row.selected .bar").first
    before = bar.evaluate("bar => bar.getBoundingClientRect().width")
    page.keyboard.press("Enter")
    assert bar.evaluate("bar => bar.getBoundingClientRect().width") > 4 * before
    page.keyboard.press("Shift+ArrowLeft")
    assert page.locator(".row.selected .bar").count() > 0
    page.keyboard.press("Escape")
    assert bar.evaluate("bar => bar.getBoundingClientRect().width") == pytest.approx(before)
    page.keyboard.press("Home")
    page.keyboard.press("+")
    assert page.locator("#detail h3").inner_text() == "task"


def test_dragging_zooms_and_hovering_tells(open_page: Callable[..., Page]) -> None:
    page = open_page(page_of(agent_trace()))
    box = page.locator(".row.kind-queue .bar").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"], box["y"] + 5)
    assert page.locator("#detail h3").inner_text() == "queue"
    page.mouse.down()
    page.mouse.move(box["x"] + 2 * box["width"], box["y"] + 5, steps=4)
    page.mouse.up()
    assert page.locator(".row.kind-queue .bar").first.bounding_box()["width"] > 5 * box["width"]  # type: ignore[index]
    page.get_by_role("button", name="Whole task").click()
    assert page.locator(".row.kind-queue .bar").first.bounding_box() == pytest.approx(box)


def test_tasks_are_chosen(open_page: Callable[..., Page]) -> None:
    page = open_page(page_of(agent_trace("first"), new_trace(500, "second")))
    assert page.locator("#scope").inner_text() == "All 2 tasks"
    assert page.locator("#total").inner_text() == "2.50 s"
    page.get_by_label("second").check()
    assert page.locator("#scope").inner_text() == "This task"
    assert labels(page) == ["task second"]
    page.keyboard.press("ArrowUp")
    assert labels(page)[0] == "task first"


def test_hostile_text_is_shown_as_it_is(open_page: Callable[..., Page]) -> None:
    trace = new_trace(100, HOSTILE)
    add(trace, "tool", 0, 50, HOSTILE).attributes.update(arguments=HOSTILE * 3, **{HOSTILE: "x"})
    page = open_page(page_of(trace))
    assert labels(page) == [f"task {HOSTILE}", f"tool {HOSTILE}"]
    page.locator("#waterfall").focus()
    page.keyboard.press("End")
    assert page.locator("#detail pre").inner_text() == HOSTILE * 3
    assert page.locator("img, b").count() == 0


def test_a_big_trace_begins_closed(open_page: Callable[..., Page]) -> None:
    trace = new_trace(10_000)
    for turn in range(100):
        around = add(trace, "turn", 100 * turn, 100 * turn + 100, str(turn))
        for step in range(50):
            add(around, "tool", 100 * turn + step, 100 * turn + step + 1)
    page = open_page(page_of(trace))
    assert len(labels(page)) == 101
    page.locator("#waterfall").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert len(labels(page)) == 151


SAMPLE = Path(__file__).parents[1] / "engine" / "profiles" / "smollm2.json"


def profile_page(**changes: Any) -> str:
    """The page of a real profile, beside one whose rates are a fifth lower."""
    record = replace(read_record(SAMPLE), **changes)
    cells = tuple(replace(cell, rates=tuple(0.8 * rate for rate in cell.rates)) for cell in record.cells)
    old = replace(record, cells=cells)
    return make_page("A profile", "profile", profile_facts(record, "MODEL", compare(old, record), old))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_profile_is_drawn(open_page: Callable[..., Page], scheme: str) -> None:
    page = open_page(profile_page(), color_scheme=scheme)
    cells = page.locator("#cells label").all_inner_texts()
    assert [cell.strip() for cell in cells][::5] == ["prompt of 128", "decode, 16 streams"]
    assert "DRAM-bound: 25.8 GB/s are 46%" in page.locator("#verdict").inner_text()
    assert page.locator("#roofline circle.cell").count() == 6
    assert page.locator("#roofline circle:not(.cell)").count() == 6
    assert "memory, 55.7 GB/s" in page.locator("#roofline text").all_text_contents()
    assert page.locator("#operators tr").count() == 12
    assert page.locator("#steps rect.step").count() == 942
    assert page.locator("#steps line.sample").count() == 4
    assert page.locator("#changes .faster").count() == 12
    assert "no performance counters" in page.locator("#uncounted").inner_text()
    if SCREENSHOT is not None:
        page.screenshot(path=SCREENSHOT.replace(".png", f"-profile-{scheme}.png"))


def test_points_lie_under_the_roof_where_they_were_measured(open_page: Callable[..., Page]) -> None:
    page = open_page(profile_page())
    page.get_by_label("prompt of 512").first.check()
    record = read_record(SAMPLE)
    cell = record.cells[1]
    roof, ring = (page.locator(f"#roofline {name}").first for name in ("path.roof", "circle.cell.selected"))
    assert "prompt of 512: 4,169 tokens per second" in (ring.get_attribute("aria-label") or "")
    # The int8 ceiling and the ring are as far apart as their rates, on the scale of the axis.
    ticks = [page.locator("#roofline line.grid").nth(index).get_attribute("y1") for index in range(-2, 0)]
    decade = abs(float(ticks[0] or 0) - float(ticks[1] or 0))
    ceiling = float((page.locator("#roofline path.roof").nth(1).get_attribute("d") or "").split("L")[0].split(" ")[1])
    below = float(ring.get_attribute("cy") or 0) - ceiling
    rate = cell.num_ops / cell.pass_seconds
    assert below / decade == pytest.approx(math.log10(cell.limits.int8_ops / rate), abs=0.01)
    assert roof.count() == 1


def test_cells_are_chosen_with_the_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(profile_page())
    page.get_by_label("prompt of 128").first.focus()
    page.keyboard.press("Space")
    assert page.locator("#detail h3").inner_text() == "prompt of 128"
    assert "compute-bound" in page.locator("#verdict").inner_text()
    ring = page.get_by_role("button", name="decode, 1 stream:")
    ring.focus()
    page.keyboard.press("Enter")
    assert page.locator("#detail h3").inner_text() == "decode, 1 stream"
    page.locator("#roofline circle:not(.cell)").first.focus()
    assert page.locator("#detail dt").all_inner_texts()[:2] == ["a pass", "of the pass"]


def test_a_profile_without_limits_or_steps_is_drawn(open_page: Callable[..., Page]) -> None:
    record = read_record(SAMPLE)
    unknown = Limits(2, 0.0, None, 0.0, 0.0, "ref")
    cells = tuple(replace(cell, limits=unknown, verdict=None, steps=()) for cell in record.cells)
    page = open_page(profile_page(cells=cells, model=replace(record.model, name=HOSTILE)))
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator("img, b").count() == 0
    assert "not known" in page.locator("#verdict").inner_text()
    assert page.locator("#roofline path.roof").count() == 0

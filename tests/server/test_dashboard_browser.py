"""The page itself in a real browser: what a model writes, the engine's figures, and that everybody can use it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from dashboard_page import (
    CHAT,
    CONTRAST,
    LONG,
    MARKDOWN,
    STATS,
    answer_with,
    answering,
    ask,
    change_stats,
    hold,
    look,
    set_settings,
    wait_for_answer,
    wait_for_text,
)

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    OpenPage = Callable[..., Page]

pytestmark = [pytest.mark.model]

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
# Where to leave the picture of the guide.
SCREENSHOT = os.environ.get("TREADLE_SCREENSHOT")

# The message field's outline is that of the box around it.
OUTLINE = """() => {
    const focused = document.activeElement;
    return getComputedStyle(focused.id === 'question' ? focused.closest('.box') : focused).outlineStyle;
}"""


def test_text_runs_in_its_own_direction(open_page: OpenPage) -> None:
    page = open_page()
    answer_with(page, {"content": "مرحبا بالعالم\n\nHello\n\n```\ncode\n```"})
    ask(page, "שלום")
    wait_for_answer(page)
    directions = page.locator(".assistant .body > *, .user .body p").evaluate_all(
        "all => all.map((each) => getComputedStyle(each.querySelector('pre') ?? each).direction)"
    )
    assert directions == ["rtl", "rtl", "ltr", "ltr"]


@pytest.mark.parametrize("width", [320, *(pytest.param(width, marks=pytest.mark.slow) for width in (360, 800, 1440))])
def test_nothing_needs_sideways_scrolling(open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 740})
    table = "|" + "|".join(["a long heading"] * 9) + "|\n" + "|-" * 9 + "|\n"
    answer_with(
        page, {"content": f"{'x' * 300}\n\n```\n{'y' * 300}\n```\n{table}\n\n{'#' * 2} {'z' * 200}\n\n`{'c' * 200}`"}
    )
    ask(page, "w" * 300)
    wait_for_answer(page)
    edges = page.locator("#messages, .box").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect()).map(({ left, right }) => [left, right])"
    )
    assert edges[0] == edges[1]
    engine = page.get_by_role("button", name="Engine")
    for _ in range(2):
        assert page.evaluate(
            "[document.documentElement.scrollWidth - innerWidth, document.querySelector('#scroller').scrollWidth - document.querySelector('#scroller').clientWidth]"
        ) == [0, 0]
        engine.click()
    page.get_by_role("button", name="Settings").click()
    page.evaluate("document.querySelector('#key-button').hidden = false")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    assert (
        page.locator(".bar button").evaluate_all(
            "all => Math.max(...all.map((each) => each.getBoundingClientRect().right))"
        )
        <= width
    )
    assert page.get_by_role("button", name="Send", exact=True).is_visible()


def test_a_conversation_takes_the_place_of_the_panel_in_a_narrow_window(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 600, "height": 740})
    assert page.locator("#question").is_visible() and not page.locator("#engine").is_visible()
    page.get_by_role("button", name="Engine").click()
    assert not page.locator("#question").is_visible() and page.locator("#engine").is_visible()
    page.get_by_role("button", name="New conversation").click()
    sync_api.expect(page.locator("#question")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_sufficient(open_page: OpenPage, scheme: str) -> None:
    page = open_page(color_scheme=scheme, expects_failure=True)
    answer_with(page, {"reasoning_content": "Hm."}, {"content": "\n\n".join(MARKDOWN)})
    ask(page, "Show everything.")
    wait_for_answer(page)
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.fulfill(status=503, json={"error": {"message": "busy"}}))
    ask(page, "Fail.")
    wait_for_answer(page)
    page.get_by_text("Reasoning", exact=True).click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Edit").first.click()
    found = page.evaluate(CONTRAST)
    page.get_by_role("button", name="History").click()
    found |= page.evaluate(CONTRAST)
    page.keyboard.press("Escape")
    page.evaluate("document.querySelector('#connection').dataset.state = 'lost'")
    found |= page.evaluate(CONTRAST)
    assert len(found) > 60
    assert {text: ratio for text, ratio in found.items() if ratio < 4.5} == {}


def test_the_keyboard_is_enough(open_page: OpenPage, native_server: RunningServer) -> None:
    page = open_page()
    page.keyboard.type("A line.")
    page.keyboard.press("Shift+Enter")
    assert page.get_by_label("Your message").input_value() == "A line.\n"
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(LONG)
    with answering(native_server) as go_on:
        page.keyboard.press("Enter")
        go_on()
        wait_for_text(page)
        page.keyboard.press("Escape")
        wait_for_answer(page)
    assert page.locator(".message.assistant .note").inner_text() == "Stopped"
    page.get_by_role("link", name="Skip").focus()
    order = []
    for _ in range(10):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        assert page.evaluate(OUTLINE) == "solid"
    bar, actions = ["history-button", "new", "engine-button"], ["Copy", "Edit", "Copy", "Try again"]
    assert order == [*bar, "scroller", *actions, "question", "model"]
    page.get_by_role("link", name="Skip").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("here")
    assert page.get_by_label("Your message").input_value() == "here"


def test_everything_has_a_name(open_page: OpenPage) -> None:
    page = open_page()
    answer_with(page, {"content": "```\nx\n```"})
    ask(page, "Hello")
    wait_for_answer(page)
    page.get_by_role("button", name="Settings").click()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, a, [role], svg, section, dialog, [tabindex]')]
            .filter((each) => each.tagName !== 'PRE' && !(each.getAttribute('aria-label') ?? (each.textContent.trim() || each.labels?.[0]?.textContent)) && !each.getAttribute('aria-labelledby'))
            .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    stuck = page.evaluate(
        """() => [...document.querySelectorAll('*')]
            .filter((each) => /auto|scroll/.test(getComputedStyle(each).overflowY) && each.checkVisibility() && each.scrollHeight > each.clientHeight)
            .filter((each) => each.tabIndex < 0 && !each.querySelector('button, input, select, textarea'))
            .map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert stuck == []
    levels = page.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map((each) => Number(each.tagName[1]))")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


@pytest.mark.slow
def test_motion_is_reduced_on_request(open_page: OpenPage) -> None:
    names = []
    for motion in ("reduce", "no-preference"):
        page = open_page(reduced_motion=motion)
        hold(page)
        ask(page, "Hello")
        page.locator(".message.pending").wait_for()
        names.append(page.locator(".pending .body").evaluate("body => getComputedStyle(body, '::after').animationName"))
        page.keyboard.press("Escape")
        wait_for_answer(page)
    assert names == ["none", "breathe"]


def test_figures_come_without_moving_what_is_there(open_page: OpenPage) -> None:
    page = open_page()
    page.reload()
    page.wait_for_selector("#connection[data-state=ok]")
    moved = page.evaluate(
        """() => new Promise((resolve) => { let sum = 0;
            new PerformanceObserver((list) => { for (const each of list.getEntries()) sum += each.value; }).observe({ type: 'layout-shift', buffered: true });
            requestAnimationFrame(() => requestAnimationFrame(() => resolve(sum))); })"""
    )
    assert moved < 0.1


def test_requests_and_models_are_listed(open_page: OpenPage, native_server: RunningServer) -> None:
    page = open_page()
    page.request.post(f"{native_server.url}/v1/embeddings", data={"input": ["one", "two"]})
    look(page)
    first = page.locator("#requests li").first
    sync_api.expect(first.locator(".tokens")).to_have_text(re.compile(r"^\d+ → 2 vectors$"))
    assert first.locator(".decode").count() == 0 and first.locator(".prefill").count() == 1
    state = page.locator("#models dd")
    sync_api.expect(state).to_have_text([re.compile(r"idle for \d+ s")])
    set_settings(page, temperature="0")
    with answering(native_server) as go_on:
        ask(page, LONG)
        sync_api.expect(state).to_have_text(["serving 1 request"])
        go_on()
        growing = page.locator("#requests li:first-child.state-answering .decode")
        growing.wait_for()
        page.keyboard.press("Escape")
        wait_for_answer(page)
    change_stats(page, is_loaded=False, is_loading=True, embeds_only=True)
    sync_api.expect(state).to_have_text(["loading"])
    sync_api.expect(page.locator("#model option")).to_have_text([f"{MODEL} (embeddings only, loading)"])
    assert page.locator("#model option").is_disabled()


def test_a_page_nobody_sees_asks_nothing_and_one_without_a_server_ever_less(open_page: OpenPage) -> None:
    page = open_page(expects_failure=True)
    page.clock.install()
    asked: list[str] = []
    page.route(STATS, lambda route: (asked.append("stats"), route.abort()))
    hide = "value => { Object.defineProperty(document, 'hidden', { value, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    page.clock.run_for(60_000)
    assert asked == []
    page.evaluate(hide, False)
    sync_api.expect(page.locator("#connection")).to_have_text("no connection to the server")
    assert page.get_by_text("these figures are old").is_visible()
    for _ in range(60):
        page.clock.run_for(1000)
        page.evaluate("() => new Promise((resolve) => queueMicrotask(resolve))")
    assert 2 <= len(asked) <= 8
    page.unroute(STATS)
    page.evaluate("() => window.dispatchEvent(new Event('online'))")
    page.wait_for_selector("#connection[data-state=ok]")


def test_it_works_below_a_path_of_a_proxy(browser: Browser, native_server: RunningServer) -> None:
    context = browser.new_context()
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    try:
        page = context.new_page()

        def forward(route: Route) -> None:
            request = route.request
            path = request.url.partition("/deep/down/")[2]
            given = {name: value for name, value in request.headers.items() if name in ("content-type", "accept")}
            route.fulfill(
                response=context.request.fetch(
                    f"{native_server.url}/{path}", method=request.method, data=request.post_data, headers=given
                )
            )

        page.route("http://proxy.test/**", forward)
        page.goto("http://proxy.test/deep/down/")
        page.wait_for_selector("#connection[data-state=ok]")
        set_settings(page, temperature="0", max_tokens="4")
        ask(page, "Hello")
        assert wait_for_answer(page)
    finally:
        context.close()


@pytest.mark.skipif(SCREENSHOT is None, reason="makes the picture of the guide, at $TREADLE_SCREENSHOT")
def test_picture(open_page: OpenPage, native_server: RunningServer) -> None:
    page = open_page(viewport={"width": 1280, "height": 900})
    page.locator("#bandwidth-words", has_text="at best").wait_for()
    page.request.post(f"{native_server.url}/v1/embeddings", data={"input": ["one", "two"]})
    set_settings(page, temperature="0", max_tokens="160")
    for text in ("Name the capital of Japan.", "Write a Python function that adds two numbers, and say how it works."):
        ask(page, text)
        wait_for_answer(page)
    page.locator("#bound", has_text="Nothing runs").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.screenshot(path=SCREENSHOT)

"""The page in a real browser: chatting, stopping, the keyboard, both colour schemes, and what it must never do."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.model, pytest.mark.slow]

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Where to leave the picture of the guide.
SCREENSHOT = os.environ.get("TREADLE_SCREENSHOT")
# Greedy, the model goes on until its context is full.
LONG = "Write a long story about a weaver and a river."


@pytest.fixture(scope="module")
def server(native_server: RunningServer) -> RunningServer:
    """The page tells how an engine in the server's own process is doing."""
    return native_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, server: RunningServer) -> Iterator[Callable[..., Page]]:
    """Opens the page; at the end nothing may have been complained about and nothing asked of another server."""
    complaints: list[str] = []
    addresses: list[str] = []
    contexts = []

    def open_one(**options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(server.url)
        page.wait_for_selector("#connection[data-state=ok]")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []
    assert addresses and all(address.startswith(f"{server.url}/") for address in addresses)


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def wait_for_answer(page: Page) -> str:
    page.get_by_role("button", name="Send").wait_for()
    return page.locator(".message.assistant .body").last.inner_text()


def wait_for_text(page: Page) -> None:
    """Wait for the beginning of an answer."""
    sync_api.expect(page.locator(".message.assistant .body")).to_have_text(re.compile(".{20}", re.DOTALL))


def set_sampling(page: Page, **values: str) -> None:
    page.locator(".sampling summary").click()
    for name, value in values.items():
        page.locator(f"[name={name}]").fill(value)


def test_an_answer_streams_in_and_its_request_is_drawn(open_page: Callable[..., Page]) -> None:
    page = open_page()
    set_sampling(page, temperature="0", max_tokens="200")
    page.evaluate(
        """() => { window.lengths = new Set(); const record = () => {
            window.lengths.add(document.querySelector('.assistant .body')?.textContent.length ?? 0);
            requestAnimationFrame(record); }; record(); }"""
    )
    ask(page, "Write a short story about a weaver.")
    answer = wait_for_answer(page)
    assert len(answer) > 100
    assert page.evaluate("window.lengths.size") > 5
    assert "200 tokens" in page.locator(".message.assistant .note").inner_text()
    assert page.locator("#announcement").inner_text().startswith(answer[:40])
    drawn = page.locator("#requests tr.state-length .decode").first
    drawn.wait_for()
    assert drawn.evaluate("part => part.getBoundingClientRect().width") > 5
    assert "computed" in (page.locator("#cache-bar").get_attribute("aria-label") or "")


def test_the_speed_is_shown_as_a_share_of_the_limit(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.wait_for_function(
        "fetch('stats').then(response => response.json()).then(stats => stats.limits.read_bytes_per_second)"
    )
    set_sampling(page, temperature="0", max_tokens="100")
    ask(page, "Write a short story about a river.")
    share = page.locator("#answer-share")
    sync_api.expect(share).to_have_text(re.compile(r"^[1-9]\d* % of the limit$"))
    assert "memory read at best" in (share.get_attribute("title") or "")
    wait_for_answer(page)


def test_the_bar_of_a_request_grows_while_it_runs(open_page: Callable[..., Page]) -> None:
    page = open_page()
    set_sampling(page, temperature="0")
    ask(page, LONG)
    answering = page.locator("#requests tr:first-child.state-answering .decode")
    answering.wait_for()
    width = answering.evaluate("part => part.getBoundingClientRect().width")
    sync_api.expect(page.locator("#requests tr:first-child .queued")).to_have_count(1)
    page.wait_for_function(
        "width => document.querySelector('#requests tr .decode').getBoundingClientRect().width > width", arg=width
    )
    page.get_by_role("button", name="Stop").click()
    wait_for_answer(page)


def test_a_conversation_remembers_and_a_new_one_forgets(open_page: Callable[..., Page]) -> None:
    page = open_page()
    set_sampling(page, temperature="0", max_tokens="8")
    bodies: list[dict[str, object]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    for _ in range(2):
        ask(page, "Name the capital of Japan.")
        wait_for_answer(page)
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    ask(page, "Name the capital of Peru.")
    wait_for_answer(page)
    assert [[turn["role"] for turn in body["messages"]] for body in bodies] == [  # type: ignore[attr-defined, index]
        ["user"],
        ["user", "assistant", "user"],
        ["user"],
    ]
    assert {(body["temperature"], body["max_tokens"]) for body in bodies} == {(0, 8)}


def test_stopping_frees_the_request(open_page: Callable[..., Page], server: RunningServer) -> None:
    page = open_page()
    set_sampling(page, temperature="0")
    ask(page, LONG)
    wait_for_text(page)
    page.get_by_role("button", name="Stop").click()
    wait_for_answer(page)
    assert page.locator(".message.assistant .note").inner_text() == "Stopped"
    sync_api.expect(page.locator("#queue")).to_have_text("0 running, 0 waiting")
    page.wait_for_selector("#requests tr:first-child.state-stopped")


def test_the_keyboard_is_enough(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.keyboard.type("A line.")
    page.keyboard.press("Shift+Enter")
    assert page.get_by_label("Your message").input_value() == "A line.\n"
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(LONG)
    page.keyboard.press("Enter")
    wait_for_text(page)
    page.keyboard.press("Escape")
    wait_for_answer(page)
    assert page.locator(".message.assistant .note").inner_text() == "Stopped"
    order = []
    for _ in range(4):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert order == ["model", "clear", "send", "SUMMARY"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_markup_stays_text(open_page: Callable[..., Page]) -> None:
    page = open_page()
    set_sampling(page, temperature="0", max_tokens="60")
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    ask(page, f"Repeat this exactly: {attack}")
    wait_for_answer(page)
    assert attack in page.locator(".message.user .body").inner_text()
    assert page.locator(".messages script, .messages img").count() == 0


def test_an_answer_of_markup_stays_text(open_page: Callable[..., Page]) -> None:
    page = open_page()
    attack = "<img src=x onerror=alert(3)>\\n```html\\n<script>alert(4)</script>\\n```"
    event = f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{attack}"}}, "finish_reason": "stop"}}]}}\n\n'
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=f"{event}data: [DONE]\n\n"),
    )
    ask(page, "Hello")
    assert wait_for_answer(page).startswith("<img src=x onerror=alert(3)>")
    assert page.locator(".assistant pre").inner_text() == "<script>alert(4)</script>"
    assert page.locator(".messages script, .messages img").count() == 0


def test_a_refusal_is_shown_and_the_message_kept(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=200, content_type="text/event-stream", body='data: {"error": {"message": "no room <b>here</b>"}}\n\n'
        ),
    )
    ask(page, "Hello")
    wait_for_answer(page)
    assert page.locator(".failed .note").inner_text() == "no room <b>here</b>"
    assert page.get_by_label("Your message").input_value() == "Hello"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_sufficient(open_page: Callable[..., Page], scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    set_sampling(page, temperature="0", max_tokens="90")
    page.locator(".sampling summary").click()
    ask(page, "Name the capital of Japan.")
    wait_for_answer(page)
    ask(page, "Tell me about weaving.")
    wait_for_answer(page)
    page.locator("#requests tr").nth(1).wait_for()
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert {text: ratio for text, ratio in ratios.items() if ratio < 4.5} == {}
    if SCREENSHOT and scheme == "light":
        page.wait_for_timeout(1500)
        page.screenshot(path=SCREENSHOT)


def test_a_narrow_window_needs_no_sideways_scrolling(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.get_by_role("button", name="Send").is_visible()


def test_a_key_is_asked_for_and_kept_in_the_tab_only(browser: Browser, server: RunningServer) -> None:
    page = browser.new_page()
    sent: list[str | None] = []

    def guard(route: object) -> None:
        key = route.request.headers.get("authorization")  # type: ignore[attr-defined]
        sent.append(key)
        if key == "Bearer right":
            route.continue_()  # type: ignore[attr-defined]
        else:
            route.fulfill(status=401, json={"error": {"message": "no valid key"}})  # type: ignore[attr-defined]

    page.route("**/stats", guard)
    page.goto(server.url)
    for key in ("wrong", "right"):
        page.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
        if key == "wrong":
            page.get_by_text("The server refused this key.").wait_for()
    page.wait_for_selector("#connection[data-state=ok]")
    assert sent[:3] == [None, "Bearer wrong", "Bearer right"]
    assert page.evaluate("Object.values(sessionStorage)") == ["right"]
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.close()


def test_an_engine_elsewhere_is_no_error(browser: Browser, remote_server: RunningServer) -> None:
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(remote_server.url)
    set_sampling(page, temperature="0", max_tokens="200")
    ask(page, LONG)
    wait_for_text(page)
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("#requests tr:first-child.state-stopped")
    assert "null" not in page.locator("#requests").inner_text()
    assert page.locator("#threads").inner_text() == "elsewhere"
    assert page.locator("#context").inner_text().endswith("tokens")
    assert complaints == []
    page.close()


# Contrast of every visible text with the first opaque background behind it, as WCAG defines it.
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((numbers(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratios = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility() || element.closest(".unseen")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    ratios[text.slice(0, 40)] = (one + 0.05) / (other + 0.05);
  }
  return ratios;
}"""

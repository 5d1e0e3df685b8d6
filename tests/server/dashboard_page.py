"""What the tests of the page in a browser share: asking, waiting, and answers made up on the spot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from running_server import RunningServer

# Greedy, the model goes on until its context is full.
LONG = "Write a long story about a weaver and a river."
CHAT = "**/v1/chat/completions"
STATS = "**/stats?*"


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def last_answer(page: Page) -> Locator:
    return page.locator(".message.assistant").last


def wait_for_answer(page: Page) -> str:
    page.get_by_role("button", name="Send", exact=True).wait_for()
    return last_answer(page).locator(".body").inner_text()


def wait_for_text(page: Page) -> None:
    """Wait for the beginning of an answer."""
    last_answer(page).locator(".body", has_text=re.compile(".{20}", re.DOTALL)).wait_for()


@contextmanager
def answering(server: RunningServer) -> Iterator[Callable[[], None]]:
    """Keep the model from ending an answer before a browser on a busy machine has looked at it.

    Nothing is computed in the block but when what it gives is called: then so much of an answer as fills some lines.
    """
    engine = server.hub.default.engine
    assert engine is not None and engine.cores is not None
    cores, counters = engine.cores, lambda: engine.stats().scheduler

    def go_on() -> None:
        enough = counters().num_answer_tokens_computed + 100
        cores.hold(0)
        while counters().num_answer_tokens_computed < enough:
            pass
        cores.hold(PATIENCE_SECONDS)

    cores.hold(PATIENCE_SECONDS)
    try:
        yield go_on
    finally:
        cores.hold(0)


def note_of(page: Page) -> str:
    return last_answer(page).locator(".note").inner_text()


def set_settings(page: Page, **values: str) -> None:
    page.get_by_role("button", name=re.compile("^Settings")).click()
    for name, value in values.items():
        page.locator(f"#settings [name={name}]").fill(value)
    page.keyboard.press("Escape")


def events(*deltas: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    """A stream of a chat completion with these deltas."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    chunks.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


def answer_with(page: Page, *deltas: dict[str, Any]) -> None:
    """Answer every message like that."""
    body = events(*deltas)
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=body))


def hold(page: Page, path: str = CHAT) -> list[Route]:
    """Leave every message, or what else is asked of a path, unanswered; the result gathers them."""
    held: list[Route] = []

    def gather(route: Route) -> None:
        held.append(route)

    page.route(path, gather)
    return held


def look(page: Page) -> None:
    """Let the page look at the server at once, as it does when the network comes back."""
    page.evaluate("window.dispatchEvent(new Event('online'))")


def change_stats(page: Page, **changes: Any) -> None:
    """Let every look at the server, from now on, show changes to its first model."""

    def change(route: Route) -> None:
        stats = route.fetch().json()
        stats["models"][0] |= changes
        route.fulfill(json=stats)

    page.route(STATS, change)
    look(page)


# Markdown and how it is drawn.
MARKDOWN = {
    "two\nlines\n\nof *text*": "<p>two\nlines</p><p>of <em>text</em></p>",
    "**a** __b__ _c_ ~~d~~ ***e***": "<p><strong>a</strong> <strong>b</strong> <em>c</em> <del>d</del> <strong><em>e</em></strong></p>",
    "*a **b** c* and **d *e***": "<p><em>a <strong>b</strong> c</em> and <strong>d <em>e</em></strong></p>",
    "2 * 3 * 4, snake_case_name, 5**": "<p>2 * 3 * 4, snake_case_name, 5**</p>",
    r"\*not\* `*code*` ``a`b``": "<p>*not* <code>*code*</code> <code>a`b</code></p>",
    "# One #\n### Three": "<h3>One</h3><h5>Three</h5>",
    "```py\nx < 1\n\n# no\n```\nafter": '<div class="code"><pre><code>x &lt; 1\n\n# no</code></pre></div><p>after</p>',
    "~~~\nopen": '<div class="code"><pre><code>open</code></pre></div>',
    "- a\n- b\n  - c\n\n    more\n- d": "<ul><li><span>a</span></li><li><span>b</span><ul><li><span>c</span><p>more</p></li></ul></li><li><span>d</span></li></ul>",
    "3. a\n4. b\n   - c": '<ol start="3"><li><span>a</span></li><li><span>b</span><ul><li><span>c</span></li></ul></li></ol>',
    "In the year\n2024. It was": "<p>In the year\n2024. It was</p>",
    "> a\n> - b": "<blockquote><p>a</p><ul><li><span>b</span></li></ul></blockquote>",
    "|a|b|\n|-|:-:|\n|1|x \\| y|\n|2|": '<div class="table"><table><thead><tr><th class="start">a</th><th class="center">b</th></tr></thead><tbody><tr><td class="start">1</td><td class="center">x | y</td></tr><tr><td class="start">2</td><td class="center"></td></tr></tbody></table></div>',
    "a | b\nno table": "<p>a | b\nno table</p>",
    "---\na": "<hr><p>a</p>",
    "[t](https://a.example/b_(c)) https://b.example/x_y_z.": '<p><a href="https://a.example/b_(c)">t</a> <a href="https://b.example/x_y_z">https://b.example/x_y_z</a>.</p>',
    "(see https://a.example) <https://b.example>": '<p>(see <a href="https://a.example/">https://a.example</a>) <a href="https://b.example/">https://b.example</a></p>',
    "![a picture](https://a.example/p.png)": '<p><a href="https://a.example/p.png">a picture</a></p>',
}

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
    ratios[`${element.tagName} ${text.slice(0, 40)}`] = (one + 0.05) / (other + 0.05);
  }
  for (const field of document.querySelectorAll("input, select, textarea, .box")) {
    if (!field.checkVisibility()) continue;
    const edge = getComputedStyle(field).borderTopColor;
    if ((numbers(edge)[3] ?? 1) === 0) continue;
    const [one, other] = [light(edge), light(behind(field.parentElement))].sort((a, b) => b - a);
    ratios[`edge of ${field.id || field.name}`] = 1.5 * (one + 0.05) / (other + 0.05); // 3 to 1 is enough
  }
  return ratios;
}"""

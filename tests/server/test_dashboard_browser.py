"""The page itself in a real browser: what a model writes, the engine's figures, and that everybody can use it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from dashboard_page import (
    CHAT,
    CONTRAST,
    LONG,
    STATS,
    answer_with,
    ask,
    change_stats,
    hold,
    look,
    set_settings,
    wait_for_answer,
    wait_for_text,
)

from running_server import MODEL, RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    OpenPage = Callable[..., Page]

pytestmark = [pytest.mark.model]

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
# Where to leave the picture of the guide.
SCREENSHOT = os.environ.get("TREADLE_SCREENSHOT")

DRAW = """async ([texts]) => {
    const { showMarkdown } = await import('./dashboard/markdown.js');
    return texts.map((text) => {
        const place = document.createElement('div');
        showMarkdown(place, text);
        for (const each of place.querySelectorAll('.head')) each.remove();
        for (const each of place.querySelectorAll('*')) for (const name of ['dir', 'tabindex', 'role', 'aria-label', 'scope', 'target', 'rel', 'title']) each.removeAttribute(name);
        return place.innerHTML.replaceAll(/ class="level-\\d"/g, '');
    });
}"""

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

# Each must come out as text: no element besides those of Markdown, no address but of the web.
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](<javascript:alert(1)>)",
    "[a](data:text/html,<script>alert(1)</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](//evil.example) [d](/v1/models)",
    "![a](javascript:alert(1))",
    "<javascript:alert(1)>",
    '[a](https://a.example/"onmouseover="alert(1))',
    '[a](https://a.example/ "x\\" onclick=alert(1)")',
    "```<img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "|<b onclick=alert(1)>|b|\n|-|-|\n|</td><script>alert(1)</script>|b|",
    "# <iframe srcdoc='<script>alert(1)</script>'>",
    "[<img src=x onerror=alert(1)>](https://a.example)",
    "java\nscript:alert(1) https://a.example/<script>",
    "&lt;script&gt; &#x3c;script&#x3e;",
]


# The message field's outline is that of the box around it.
OUTLINE = """() => {
    const focused = document.activeElement;
    return getComputedStyle(focused.id === 'question' ? focused.closest('.box') : focused).outlineStyle;
}"""


@pytest.fixture(scope="module")
def still_page(browser: Browser, native_server: RunningServer) -> Iterator[Page]:
    """A page that is only asked what its scripts do; it looks at the server once."""
    page = browser.new_page()
    page.goto(native_server.url)
    page.wait_for_selector("#connection[data-state=ok]")
    hold(page, STATS)
    yield page
    page.close()


def test_markdown_is_drawn(still_page: Page) -> None:
    drawn = still_page.evaluate(DRAW, [list(MARKDOWN)])
    assert dict(zip(MARKDOWN, drawn, strict=True)) == MARKDOWN


def test_nothing_a_model_writes_becomes_markup(still_page: Page) -> None:
    found = still_page.evaluate(
        """async (texts) => {
            const { showMarkdown } = await import('./dashboard/markdown.js');
            return texts.map((text) => {
                const place = document.body.appendChild(document.createElement('div'));
                showMarkdown(place, text);
                const all = [...place.querySelectorAll('*')];
                const names = all.map((each) => each.tagName).filter((name) => /SCRIPT|IMG|SVG|IFRAME|B$|FORM|STYLE/i.test(name));
                const attributes = all.flatMap((each) => each.getAttributeNames()).filter((name) => /^on|^src|style/.test(name));
                const links = [...place.querySelectorAll('a')].map((each) => each.href).filter((href) => !/^https?:/.test(href));
                const shown = place.textContent;
                place.remove();
                return [names, attributes, links, shown];
            });
        }""",
        ATTACKS,
    )
    assert [each[:3] for each in found] == [[[], [], []]] * len(ATTACKS)
    assert found[0][3] == ATTACKS[0] and found[3][3] == ATTACKS[3] and found[-1][3] == ATTACKS[-1]


def test_an_answer_is_drawn_alike_however_it_comes(still_page: Page) -> None:
    """And text made to be slow does not hold the page up."""
    text = "\n\n".join(sorted(MARKDOWN, key=lambda each: "open" in each))
    same = still_page.evaluate(
        """async ([text, ...hostile]) => {
            const { showMarkdown } = await import('./dashboard/markdown.js');
            const [grown, whole] = [document.createElement('div'), document.createElement('div')];
            for (let end = 1; end <= text.length; end += 1) showMarkdown(grown, text.slice(0, end));
            showMarkdown(whole, text);
            for (const each of hostile) showMarkdown(document.createElement('div'), each);
            return grown.innerHTML === whole.innerHTML && whole.children.length > 20;
        }""",
        [
            text,
            *(
                piece * 20_000
                for piece in ("*a ", "**a ", "_", "[", "`", "``a", "> ", "- ", "|", "https://", "![a](", "~~x", "\\")
            ),
        ],
    )
    assert same


def test_the_selection_and_the_place_in_code_stay_while_text_comes(still_page: Page) -> None:
    kept = still_page.evaluate(
        """async () => {
            const { showMarkdown } = await import('./dashboard/markdown.js');
            const place = document.body.appendChild(document.createElement('div'));
            showMarkdown(place, 'first\\n\\n```py\\none');
            const [first, code] = place.children;
            showMarkdown(place, 'first\\n\\n```py\\none\\ntwo\\n```\\nthen');
            return [first === place.children[0], code === place.children[1], code.querySelector('code').textContent];
        }"""
    )
    assert kept == [True, True, "one\ntwo"]


def test_text_runs_in_its_own_direction(open_page: OpenPage) -> None:
    page = open_page()
    answer_with(page, {"content": "مرحبا بالعالم\n\nHello\n\n```\ncode\n```"})
    ask(page, "שלום")
    wait_for_answer(page)
    directions = page.locator(".assistant .body > *, .user .body p").evaluate_all(
        "all => all.map((each) => getComputedStyle(each.querySelector('pre') ?? each).direction)"
    )
    assert directions == ["rtl", "rtl", "ltr", "ltr"]


@pytest.mark.parametrize("width", [320, 360, 800, 1440])
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
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    assert page.get_by_role("button", name="Send", exact=True).is_visible()


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


def test_the_keyboard_is_enough(open_page: OpenPage) -> None:
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


def test_the_panel_says_what_bounds_the_engine(still_page: Page) -> None:
    words = still_page.evaluate(
        """async () => {
            const { showLimits } = await import('./dashboard/limits.js');
            const bound = document.querySelector('#bound');
            let at = 100;
            const say = ({ shares, rate, running = 1, latest = 2, denied = {}, limit = 30e9 }) => {
                const stats = { clock_seconds: (at += 1), limits: { read_bytes_per_second: limit, int8_ops_per_second: limit && 7e11 },
                    denied: { throttled_seconds: null, steal_seconds: null, ...denied } };
                showLimits(stats, { running, waiting: 0, shares, memory: { weights: 97e6 }, threads: { count: 2, latest },
                    decode_read_bytes_per_second: 24e9, prompt_int8_ops_per_second: 5e11 }, rate);
                return [bound.textContent, document.querySelector('#bandwidth-share').textContent, document.querySelector('#bandwidth-words').textContent];
            };
            const answers = { answer: 100, prompt: 0 };
            const near = { bandwidth: 0.8, int8: 0.1 };
            return [
                say({ shares: near, rate: answers }),
                say({ shares: { bandwidth: 0.8, int8: 0.7 }, rate: { answer: 1, prompt: 900 } }),
                say({ shares: { bandwidth: 0, int8: 0 }, rate: { answer: 0, prompt: 0 }, running: 0 }),
                say({ shares: near, rate: answers, latest: 1 }),
                say({ shares: { bandwidth: null, int8: null }, rate: answers, limit: null }),
                say({ shares: near, rate: answers, denied: { throttled_seconds: 5 } }),
                say({ shares: near, rate: answers, denied: { throttled_seconds: 5.5 } }),
            ];
        }"""
    )
    expected = [
        "^Bound by memory: .* 97 MB",
        "^Bound by arithmetic",
        "^Nothing runs",
        "1 of 2 threads",
        "are measured when",
        "^Bound by memory",
        "CPU quota: cores stood still for 0.50 s",
    ]
    for (bound, _, _), pattern in zip(words, expected, strict=True):
        assert re.search(pattern, bound), bound
    assert words[0][1:] == ["80 %", "24 GB/s of 30 GB/s"]
    assert words[2][1:] == ["–", "30 GB/s at best"]
    assert words[4][1:] == ["–", "not measured yet"]


def test_rates_are_those_between_two_looks(still_page: Page) -> None:
    rates = still_page.evaluate(
        """async () => {
            const { ratesOf } = await import('./dashboard/rates.js');
            const look = (clock_seconds, answer) => ratesOf({ clock_seconds, models: [{ name: 'x', tokens: answer === null ? undefined : { answer, prompt: 0 } }] }, 'x').map((each) => each.answer);
            return [look(1000, 10), look(1002, 30), look(1002, 30), look(1062, 90), look(1063, 5), look(1064, null), look(1065, 7), look(1066, 9), look(2000, 9)];
        }"""
    )
    assert rates == [[], [10], [10], [10, 1], [], [], [], [2], [0]]


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
    ask(page, LONG)
    sync_api.expect(state).to_have_text(["serving 1 request"])
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
    page.screenshot(path=SCREENSHOT)

"""What the page's scripts make of Markdown, of hostile text and of the engine's figures, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from dashboard_page import MARKDOWN, STATS, hold

from running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.model]

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")

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

"""The conversation in a real browser: asking, stopping, asking again, what is kept, and what failures say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from dashboard_page import (
    CHAT,
    LONG,
    STATS,
    answer_with,
    answering,
    ask,
    change_stats,
    events,
    hold,
    last_answer,
    note_of,
    set_settings,
    wait_for_answer,
    wait_for_text,
)

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.server.settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    OpenPage = Callable[..., Page]

pytestmark = [pytest.mark.model]

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")


def conversations(page: Page) -> list[list[str]]:
    kept = page.evaluate("JSON.parse(localStorage.getItem('treadle.conversations') ?? '[]')")
    return [[turn["content"] for turn in conversation["turns"]] for conversation in kept]


def test_an_answer_tells_its_figures_and_is_announced_once(open_page: OpenPage) -> None:
    page = open_page()
    set_settings(page, temperature="0", max_tokens="120")
    page.evaluate(
        """() => { window.spoken = []; const place = document.querySelector('#announcement');
            new MutationObserver(() => window.spoken.push(place.textContent)).observe(place, { childList: true }); }"""
    )
    ask(page, "Write a short story about a weaver.")
    assert len(wait_for_answer(page)) > 100
    note = note_of(page)
    assert re.match(r"120 tokens · [\d,.]+ tok/s · first after [\d.]+ m?s · prompt \d+.* · cut at its limit$", note)
    spoken = page.evaluate("window.spoken")
    assert len(spoken) == 2 and spoken[0] == "Answering" and len(spoken[1]) > 100  # not token by token
    sync_api.expect(page.locator("#context-use")).to_have_text(re.compile(r"^\d+ of 1,024 tokens of context$"))
    drawn = page.locator("#requests li.state-length .decode").first
    assert drawn.evaluate("part => part.getBoundingClientRect().width") > 0


def test_an_answer_streams_in_and_stopping_it_frees_the_request(
    open_page: OpenPage, native_server: RunningServer
) -> None:
    page = open_page()
    set_settings(page, temperature="0")
    with answering(native_server) as go_on:
        ask(page, LONG)
        go_on()
        wait_for_text(page)
        page.get_by_role("button", name="Stop").click()
        wait_for_answer(page)
    assert note_of(page) == "Stopped"
    sync_api.expect(page.locator("#queue")).to_have_text("0 running, 0 waiting")
    page.wait_for_selector("#requests li:first-child.state-stopped")
    assert page.evaluate("document.activeElement.id") == "question"


def test_messages_are_asked_again_and_edited(open_page: OpenPage) -> None:
    page = open_page()
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    answer_with(page, {"content": "Yes."})
    set_settings(page, system="Be brief.", temperature="0", min_p="0.1", seed="7")
    ask(page, "One?")
    wait_for_answer(page)
    ask(page, "Two?")
    wait_for_answer(page)
    page.get_by_role("button", name="Try again").click()
    wait_for_answer(page)
    page.get_by_role("button", name="Edit").first.click()
    field = page.get_by_label("Edit your message")
    assert field.input_value() == "One?"
    page.keyboard.press("Escape")
    sync_api.expect(page.get_by_role("button", name="Edit").first).to_be_focused()
    page.keyboard.press("Enter")
    field.fill("Three?")
    page.keyboard.press("Enter")
    wait_for_answer(page)
    asked = [[turn["content"] for turn in body["messages"]] for body in bodies]
    first = ["Be brief.", "One?"]
    assert asked == [first, [*first, "Yes.", "Two?"], [*first, "Yes.", "Two?"], ["Be brief.", "Three?"]]
    assert {(body["temperature"], body["min_p"], body["seed"], body.get("top_p")) for body in bodies} == {
        (0, 0.1, 7, None)
    }
    assert conversations(page) == [["Three?", "Yes."]]


def test_conversations_and_settings_survive_a_reload_until_they_are_forgotten(open_page: OpenPage) -> None:
    page = open_page()
    answer_with(page, {"content": "Tokyo."})
    set_settings(page, temperature="0.25")
    ask(page, "Name the capital of Japan.")
    wait_for_answer(page)
    page.reload()
    assert page.locator(".message").count() == 2
    sync_api.expect(page.get_by_role("button", name="Settings · 1")).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    ask(page, "And of Peru?")
    wait_for_answer(page)
    page.get_by_role("button", name="History").click()
    assert page.locator(".kept .title").all_inner_texts() == ["And of Peru?", "Name the capital of Japan."]
    page.get_by_role("button", name="Name the capital of Japan.").first.click()
    assert page.locator(".message.user .body").all_inner_texts() == ["Name the capital of Japan."]
    page.get_by_role("button", name="History").click()
    page.get_by_role("button", name="Forget Name the capital").click()
    assert page.locator(".message").count() == 0
    assert conversations(page) == [["And of Peru?", "Tokyo."]]
    page.get_by_role("button", name="Forget all").dblclick()
    assert conversations(page) != []
    page.get_by_role("button", name="Yes, forget all").click()
    page.reload()
    assert conversations(page) == [] and page.locator(".message").count() == 0


def test_what_is_kept_is_bounded_and_may_be_anything(open_page: OpenPage) -> None:
    page = open_page()
    kept = page.evaluate(
        """async () => {
            const { keep, keptConversations, newConversation } = await import('./dashboard/store.js');
            const made = (content) => ({ ...newConversation(), turns: [{ role: 'user', content }] });
            for (let index = 0; index < 60; index += 1) keep(made(`${index}`));
            const most = keptConversations().length;
            for (let index = 0; index < 6; index += 1) keep(made(`${index} ${'x'.repeat(600_000)}`));
            const size = localStorage.getItem('treadle.conversations').length;
            keep(made('y'.repeat(3_000_000)));
            localStorage.setItem('treadle.conversations', '[{"id": 1}, null, {"id": "a", "turns": [{}]}]');
            localStorage.setItem('treadle.settings', '"<b>"');
            return [most, size, keptConversations().length];
        }"""
    )
    assert kept[0] == 50 and kept[1] <= 2_000_000 and kept[2] == 0
    page.reload()
    page.wait_for_selector("#connection[data-state=ok]")
    assert page.locator("#empty").is_visible()


@pytest.mark.parametrize(
    ("status", "error", "headers", "words"),
    [
        (429, {"message": "too many <b>requests</b>"}, {"Retry-After": "7"}, "Too many <b>requests</b>. It asks to wait 7 seconds."),
        (503, {"message": "the server is shutting down"}, {}, "The server is shutting down. Try again in a moment."),
        (400, {"message": "too long", "code": "context_length_exceeded"}, {}, "Too long. Begin a new conversation, or edit an earlier message."),
        (502, None, {}, "The server answered 502 Bad Gateway."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do_and_can_be_tried_again(
    open_page: OpenPage, status: int, error: Any, headers: dict[str, str], words: str
) -> None:
    page = open_page(expects_failure=True)
    body = {"json": {"error": error}} if error else {"body": "<html>proxy</html>"}
    page.route(CHAT, lambda route: route.fulfill(status=status, headers=headers, **body))
    ask(page, "Hello")
    wait_for_answer(page)
    assert note_of(page) == words
    assert page.locator(".message.failed").count() == 1
    page.unroute(CHAT)
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    answer_with(page, {"content": "There."})
    page.get_by_role("button", name="Try again").click()
    assert wait_for_answer(page) == "There."
    assert bodies[0]["messages"] == [{"role": "user", "content": "Hello"}]
    assert page.locator(".message.failed").count() == 0


def test_an_answer_that_breaks_off_keeps_its_beginning(open_page: OpenPage) -> None:
    page = open_page(expects_failure=True)
    ends = iter(['data: {"error": {"message": "no room"}}\n\n', ""])
    page.route(
        CHAT,
        lambda route: route.fulfill(content_type="text/event-stream", body=events({"content": "Half"}, end=next(ends))),
    )
    for words in ("No room.", "The connection ended before the answer did."):
        ask(page, "Hello")
        assert (wait_for_answer(page), note_of(page)) == ("Half", words)
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort())
    ask(page, "Hello")
    wait_for_answer(page)
    assert note_of(page) == "The server could not be reached."


def test_a_message_is_sent_though_nothing_is_known_of_the_server(open_page: OpenPage) -> None:
    page = open_page(expects_failure=True)
    page.route(STATS, lambda route: route.abort())
    page.reload()
    sync_api.expect(page.locator("#connection")).to_have_text("no connection to the server")
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    answer_with(page, {"content": "Here."})
    ask(page, "Anybody?")
    assert wait_for_answer(page) == "Here."
    assert "model" not in bodies[0]


def test_a_message_that_was_not_answered_is_no_part_of_the_next(open_page: OpenPage) -> None:
    page = open_page(expects_failure=True)
    page.route(CHAT, lambda route: route.fulfill(status=503, json={"error": {"message": "busy"}}))
    ask(page, "Lost")
    wait_for_answer(page)
    page.unroute(CHAT)
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    answer_with(page, {"content": "Found."})
    ask(page, "Next")
    wait_for_answer(page)
    assert bodies[0]["messages"] == [{"role": "user", "content": "Next"}]


def test_reasoning_is_folded_and_not_sent_back(open_page: OpenPage) -> None:
    page = open_page()
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    answer_with(page, {"reasoning_content": "Let me think <b>hard</b>."}, {"content": "Four."})
    ask(page, "Two and two?")
    assert wait_for_answer(page) == "Four."
    assert not page.locator(".thoughts").is_visible()
    page.get_by_text("Reasoning", exact=True).click()
    assert page.locator(".thoughts").inner_text() == "Let me think <b>hard</b>."
    ask(page, "And three?")
    wait_for_answer(page)
    assert "hard" not in str(bodies[1])


def test_the_model_is_chosen_and_loading_is_told(open_page: OpenPage) -> None:
    page = open_page()
    change_stats(page, adapters=["pirate"], is_loaded=False, is_loading=False)
    choice = page.get_by_label("Model", exact=True)
    sync_api.expect(choice.locator("option")).to_have_text(
        [f"{MODEL} (not loaded)", f"pirate (adapter of {MODEL}, not loaded)"]
    )
    choice.select_option("pirate")
    held = hold(page)
    ask(page, "Ahoy?")
    sync_api.expect(page.locator(".message.pending .note")).to_have_text(f"Loading {MODEL}…")
    assert page.locator(".message.assistant .who").inner_text() == "pirate"
    sync_api.expect(page.locator(".message.pending")).to_have_count(1)
    assert held[0].request.post_data_json["model"] == "pirate"
    held[0].fulfill(content_type="text/event-stream", body=events({"content": "Aye."}))
    assert wait_for_answer(page) == "Aye." and "Loading" not in note_of(page)
    page.reload()
    sync_api.expect(choice).to_have_value("pirate")


def test_an_answer_says_what_it_waits_for(open_page: OpenPage) -> None:
    page = open_page()
    held = hold(page)
    ask(page, "Hello")
    note = page.locator(".message.pending .note")
    for waiting, words in ((2, "Waiting in the queue…"), (0, "Reading the prompt…")):
        change_stats(page, waiting=waiting)
        sync_api.expect(note).to_have_text(words)
    held[0].fulfill(content_type="text/event-stream", body=events({"content": "Hi."}))
    assert wait_for_answer(page) == "Hi." and note_of(page).startswith("5 tokens")


def test_text_is_copied_with_and_without_a_clipboard(open_page: OpenPage) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    answer_with(page, {"content": "See:\n```py\nprint(1)\n```"})
    ask(page, "Code, please")
    wait_for_answer(page)
    page.get_by_role("button", name="Copy code").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "print(1)"
    page.evaluate(
        "Object.defineProperty(navigator.clipboard, 'writeText', { value: () => Promise.reject(new Error()) })"
    )
    page.get_by_role("button", name="Copy message").click()
    page.get_by_text("Copied").last.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "Code, please"


def test_a_key_is_asked_for_and_the_message_waits_for_it(browser: Browser, native_server: RunningServer) -> None:
    settings = ServerSettings(api_keys=("right",))
    server = RunningServer(f"{native_server.url}/v1#{MODEL}", settings)
    context = browser.new_context()
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    try:
        page = context.new_page()
        page.goto(server.url)
        for key in ("wrong", "right"):
            page.get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")
            if key == "wrong":
                page.get_by_text("The server refused this key.").wait_for()
        page.wait_for_selector("#connection[data-state=ok]")
        assert page.evaluate("Object.entries(sessionStorage)") == [["treadle.api-key", "right"]]
        assert "right" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
        stats = context.request.get(f"{server.url}/stats", headers={"Authorization": "Bearer right"}).json()
        page.route(STATS, lambda route: route.fulfill(json=stats))  # so that the message is what is refused
        page.evaluate("sessionStorage.setItem('treadle.api-key', 'expired')")
        set_settings(page, temperature="0", max_tokens="8")
        ask(page, "Hello")
        page.get_by_label("Key", exact=True).fill("right")
        page.unroute(STATS)
        page.keyboard.press("Enter")
        last_answer(page).locator(".body", has_text=re.compile(".")).wait_for()
        wait_for_answer(page)
        sync_api.expect(page.locator("#not-here")).to_have_text(
            f"{MODEL} is computed elsewhere, and its figures are there."
        )
        assert "null" not in page.locator("#requests").inner_text()
        page.get_by_role("button", name="Forget the API key").click()
        assert page.evaluate("sessionStorage.getItem('treadle.api-key')") is None
    finally:
        context.close()
        server.close()

"""What an engine elsewhere answers becomes what any engine answers: parts, counts, times, reasons."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import CHAT, DONE, Events, ask, delta, models, usage, with_engine

from local_server import LocalServer, text_answer
from treadle.engine.completion import CompletionChunk
from treadle.engine.conversation import Conversation
from treadle.engine.remote.answer import AnswerReader
from treadle.engine.remote.engine import RemoteEngine
from treadle.engine.remote.sse import read_events
from treadle.engine.sampling import SamplingParams
from treadle.errors import RemoteError, TreadleError, UsageError
from treadle.models.tool_dialects import Content, Part, Reasoning, ToolCall

HELLO = Conversation([{"role": "user", "content": "hello"}])


def parts_of(chunks: list[CompletionChunk]) -> list[Part]:
    return [part for chunk in chunks for part in chunk.parts]


def call(index: int | None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"function": function} if index is None else {"index": index, "function": function}


def test_a_stream_becomes_parts_and_counts(server: LocalServer) -> None:
    server.routes[CHAT] = Events(
        [
            delta(role="assistant", content=""),
            b": a comment\r\n\r\n",
            delta(reasoning_content="hm"),
            delta(reasoning="m"),
            delta(content="Hel"),
            delta(content="lo"),
            delta(finish_reason="stop"),
            usage(7, 6, cached=4),
            DONE,
        ]
    )
    chunks = ask(server, HELLO)
    assert parts_of(chunks) == [Reasoning("hm"), Reasoning("m"), Content("Hel"), Content("lo")]
    completion = chunks[-1].completion
    assert completion is not None
    assert (completion.text, completion.finish_reason, completion.token_ids) == ("Hello", "stop", [])
    assert (completion.prompt_tokens, completion.answer_tokens, completion.cached_tokens) == (7, 6, 4)
    assert sum(chunk.num_tokens for chunk in chunks) == 6
    assert completion.timings.prefill_seconds > 0 <= completion.timings.decode_seconds


def test_calls_are_put_together(server: LocalServer) -> None:
    server.routes[CHAT] = Events(
        [
            delta(tool_calls=[call(0, "now")]),
            delta(tool_calls=[call(1, "add", '{"a": ')]),
            delta(tool_calls=[call(1, None, "1}")]),
            delta(finish_reason="tool_calls"),
            DONE,
        ]
    )
    chunks = ask(server, HELLO)
    assert parts_of(chunks) == [ToolCall("now", "{}"), ToolCall("add", '{"a": 1}')]
    assert chunks[-1].finish_reason == "stop"


def test_text_in_place_of_a_call_that_was_asked_for(server: LocalServer) -> None:
    asked = Conversation(HELLO.messages, [{"type": "function", "function": {"name": "now"}}], "required")
    server.routes[CHAT] = Events([delta(content="It is noon."), delta(finish_reason="stop"), DONE])
    with pytest.raises(RemoteError, match="gave no call"):
        ask(server, asked)
    server.routes[CHAT] = Events([delta(tool_calls=[call(0, "now", '"noon"')]), delta(finish_reason="stop"), DONE])
    with pytest.raises(RemoteError, match="gave no call"):  # arguments that are no object, as some servers let through
        ask(server, asked)
    server.routes[CHAT] = Events([delta(tool_calls=[call(0, "now")]), delta(finish_reason="stop"), DONE])
    assert parts_of(ask(server, asked)) == [ToolCall("now", "{}")]


def test_a_call_that_was_cut_off_is_text(server: LocalServer) -> None:
    server.routes[CHAT] = Events([delta(tool_calls=[call(0, "add", '{"a": ')]), delta(finish_reason="length"), DONE])
    assert parts_of(ask(server, HELLO)) == [Content('add({"a":)')]


def test_a_server_that_does_not_stream(server: LocalServer) -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call(None, "a", "{}"), call(None, "b", "{}")]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage(3, 9)["usage"]}
    server.routes[CHAT] = text_answer(json.dumps(answer))
    chunks = ask(server, HELLO)
    assert parts_of(chunks) == [Content("Hi"), ToolCall("a", "{}"), ToolCall("b", "{}")]
    completion = chunks[-1].completion
    assert completion is not None
    assert (completion.finish_reason, completion.prompt_tokens, completion.answer_tokens) == ("length", 3, 9)


def test_without_usage_events_are_counted(server: LocalServer) -> None:
    server.routes[CHAT] = Events([delta(content="a"), delta(content="b"), delta(finish_reason="stop"), DONE])
    [*_, last] = ask(server, HELLO)
    assert last.completion is not None
    assert (last.completion.prompt_tokens, last.completion.answer_tokens) == (0, 2)


def test_several_answers_are_told_apart(server: LocalServer) -> None:
    server.routes[CHAT] = Events(
        [
            delta(1, content="b"),
            delta(0, content="a"),
            delta(1, "length"),
            delta(0, "stop"),
            usage(5, 4),
            DONE,
        ]
    )
    chunks = ask(server, HELLO, SamplingParams(n=2))
    ends = {chunk.index: chunk.completion for chunk in chunks if chunk.completion is not None}
    assert [(ends[index].text, ends[index].finish_reason) for index in (0, 1)] == [("a", "stop"), ("b", "length")]
    assert sum(end.answer_tokens for end in ends.values()) == 4
    assert json.loads(server.bodies[-1])["n"] == 2


def test_counts_that_come_with_every_event(server: LocalServer) -> None:
    server.routes[CHAT] = Events(
        [
            {**delta(content="abc"), "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
            {**delta(content="d"), "usage": {"prompt_tokens": 5, "completion_tokens": 4}},
            delta(finish_reason="stop"),
            DONE,
        ]
    )

    async def test(engine: RemoteEngine) -> None:
        stream = await engine.answer(HELLO)
        assert stream.prompt_tokens is None
        assert [(await anext(stream)).num_tokens, stream.prompt_tokens] == [3, 5]
        assert [chunk.num_tokens async for chunk in stream] == [1, 0]

    with_engine(server, test)


def test_log_probabilities_of_chats_and_texts(server: LocalServer) -> None:
    entry = {"token": "é", "logprob": -1.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -2}]}
    chat = delta(finish_reason="stop", content="é")
    chat["choices"][0]["logprobs"] = {"content": [entry]}
    server.routes[CHAT] = Events([chat, DONE])
    [first, last] = ask(server, HELLO, SamplingParams(logprobs=1))
    [found] = first.logprobs
    assert (found.token_id, found.text, found.token_bytes, found.logprob) == (None, "é", "é".encode(), -1.5)
    assert [(top.text, top.token_bytes, top.logprob) for top in found.top] == [("e", b"e", -2.0)]
    assert last.completion is not None and last.completion.logprobs == [found]
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1, -2], "top_logprobs": [{"a": -1}, None], "text_offset": []}
    text = {"choices": [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]}
    server.routes["/v1/completions"] = Events([text, DONE])
    [first, _] = ask(server, [1, 2, 3], SamplingParams(logprobs=1))
    assert [(each.text, each.logprob, len(each.top)) for each in first.logprobs] == [("a", -1.0, 1), ("b", -2.0, 0)]
    assert (first.text, first.num_tokens) == ("ab", 2)
    assert json.loads(server.bodies[-1])["prompt"] == [1, 2, 3]


def test_what_stopped_an_answer(server: LocalServer) -> None:
    end = delta(finish_reason="stop")
    end["choices"][0]["stop_reason"] = "END"
    server.routes[CHAT] = Events([delta(content="a"), end, DONE])
    completion = ask(server, HELLO)[-1].completion
    assert completion is not None and completion.stopped_by == "END"
    server.routes[CHAT] = Events([delta(content="a"), delta(finish_reason="content_filter"), DONE])
    with pytest.raises(UsageError, match="content filter"):
        ask(server, HELLO)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([{"error": {"message": "out of memory", "code": 500}}], "failed while it answered: out of memory"),
        ([{"object": "error", "message": "out of memory"}], "failed while it answered: out of memory"),
        ([{"error": "out of memory"}], "failed while it answered: out of memory"),
        ([b"data: {not json\n\n"], "no JSON"),
        ([["a list"]], "none of the API"),
        ([{"choices": "text"}], "none of the API"),
        ([delta(-1, content="a")], "none of the API"),
        ([delta(7, content="a")], "none of the API"),
        ([delta(content=["parts"])], "none of the API"),
        ([delta(tool_calls=["call"])], "none of the API"),
        ([DONE], "before their end"),
        ([], "before their end"),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], "no JSON"),
    ],
)
def test_a_server_that_goes_wrong(server: LocalServer, events: list[Any], problem: str) -> None:
    server.routes[CHAT] = Events([delta(content="a"), *events])
    with pytest.raises(RemoteError, match=problem):
        ask(server, HELLO)
    assert len(server.bodies) == 1


WORDS = "choices index delta content tool_calls function name arguments logprobs usage prompt_tokens tokens token text"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(WORDS.split()), inner), max_leaves=20
)


@given(ANYTHING)
def test_no_event_does_more_than_raise_our_errors(event: Any) -> None:
    reader = AnswerReader("host", num_answers=2, has_logprobs=True)
    for wrapped in (event, {"choices": [event]}, {"choices": [{"delta": event}]}, {"choices": [{"logprobs": event}]}):
        try:
            for chunk in reader.read(wrapped):
                assert isinstance(chunk, CompletionChunk)
        except TreadleError:
            continue


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_events_do_not_depend_on_where_the_body_was_cut(texts: list[str], end: str, cuts: list[int]) -> None:
    body = "".join(f"data: {text}{end}: comment{end}event: x{end}{end}" for text in texts).encode()
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[start:stop] for start, stop in pairwise(places)]

    async def source() -> Any:
        for piece in pieces:
            yield piece

    async def read() -> list[str]:
        return [event.decode() async for event in read_events("host", source())]

    expected = texts[: texts.index("[DONE]")] if "[DONE]" in texts else texts
    assert asyncio.run(read()) == expected


def test_facts_that_servers_tell(server: LocalServer) -> None:
    async def facts(engine: RemoteEngine) -> tuple[Any, ...]:
        assert engine.report is None
        return engine.name.partition(" ")[0], engine.context, engine.vocab_size

    server.routes["/v1/models"] = models("vllm", "m", max_model_len=4096)
    assert with_engine(server, facts) == ("m", 4096, None)
    server.routes["/v1/models"] = models("llamacpp", "m", meta={"n_vocab": 32000, "n_ctx": 2048})
    assert with_engine(server, facts) == ("m", 2048, 32000)
    server.routes["/v1/models"] = models("acme", "m", max_model_len="many")
    assert with_engine(server, facts) == ("m", None, None)


def test_has_no_adapters_of_its_own(server: LocalServer) -> None:
    async def test(engine: RemoteEngine) -> None:
        assert list(engine.adapters) == []
        for refused in (
            engine.load_adapter("law", "law.gguf"),
            engine.unload_adapter("law"),
            engine.answer("hi", adapter="law"),
        ):
            with pytest.raises(UsageError, match=r"adapter law: .* is an engine elsewhere"):
                await refused

    with_engine(server, test)

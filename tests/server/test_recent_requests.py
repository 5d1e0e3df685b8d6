"""What is remembered of requests, and for how long."""

from __future__ import annotations

import json

import numpy as np
import pytest

from treadle.engine.completion import Completion, CompletionChunk, Timings
from treadle.engine.embedding import Embedding
from treadle.errors import InternalError, TreadleError
from treadle.server.recent import RecentRequests


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def chunk(num_tokens: int, *, index: int = 0, ends: Timings | None = None, reason: str = "stop") -> CompletionChunk:
    completion = None
    if ends is not None:
        completion = Completion("", [1] * num_tokens, reason, 8, num_tokens, ends, cached_tokens=4, index=index)  # type: ignore[arg-type]
    return CompletionChunk("", (1,) * num_tokens, num_tokens, completion=completion, index=index)


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
        "kind": "answer",
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


def test_vectors_go_through_their_states() -> None:
    clock = Clock()
    recent = RecentRequests(clock)
    request = recent.begin_embeddings(2)
    clock.now = 10.5
    assert [recent.as_json()[0][name] for name in ("state", "queued_seconds")] == ["waiting", None]
    request.took(Embedding(np.zeros(2, np.float32), 5, 3, Timings(0.25, 0.25, 0)))
    clock.now = 11.0
    assert [recent.as_json()[0][name] for name in ("state", "queued_seconds", "prefill_seconds")] == [
        "answering",
        0.25,
        0.75,
    ]
    request.took(Embedding(np.zeros(2, np.float32), 6, 0, Timings(0.5, 0.25, 0)))
    clock.now = 99.0
    [done] = recent.as_json()
    assert (done["state"], done["total_seconds"], done["queued_seconds"]) == ("stop", 1.0, 0.25)
    assert (done["prompt_tokens"], done["cached_tokens"]) == (11, 3)


@pytest.mark.parametrize(("is_error", "state"), [(True, "error"), (False, "stopped")])
def test_vectors_that_never_come_say_why(is_error: bool, state: str) -> None:
    recent = RecentRequests(Clock())
    recent.begin_embeddings(2).ended(is_error=is_error)
    assert recent.as_json()[0]["state"] == state


def test_only_the_newest_are_kept() -> None:
    recent = RecentRequests()
    for _ in range(200):
        recent.begin(1, dict)
    assert [request["id"] for request in recent.as_json()] == [*range(200, 150, -1)]

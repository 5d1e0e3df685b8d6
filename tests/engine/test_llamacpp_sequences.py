"""Sequences without llama.cpp: what is taken over is right, nothing is lost, and cells and numbers suffice."""

from __future__ import annotations

import random

import pytest

from fakes import make_request
from treadle.engine.kv.block_table import BlockTable
from treadle.engine.llamacpp.sequences import Sequences
from treadle.engine.plan import Chunk
from treadle.engine.request import Request

NUM_REQUESTS, NUM_ENDED, NUM_CELLS = 3, 2, 60


class TokenMemory:
    """Keeps the tokens of each sequence, not their keys and values."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.num_copies = 0

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        assert not self.held.get(target)
        assert len(self.held[source]) >= num_tokens
        self.held[target] = self.held[source][:num_tokens]
        self.num_copies += 1

    def remove(self, sequence: int) -> None:
        self.held.pop(sequence, None)


class Steps:
    """Computes chunks as a runner would."""

    def __init__(self, num_ended: int = NUM_ENDED) -> None:
        self.memory = TokenMemory()
        self.sequences = Sequences(
            self.memory, num_requests=NUM_REQUESTS, num_ended=num_ended, num_cells=NUM_CELLS, num_alike=2
        )

    def run(self, *chunks: Chunk) -> list[int]:
        """Return the first position that each chunk computed."""
        self.sequences.end_some()
        placed = [(*self.sequences.place(chunk), chunk) for chunk in chunks]
        self.sequences.make_room()
        for sequence, first, chunk in placed:
            held = self.memory.held.setdefault(sequence, [])
            tokens, end = chunk.request.token_ids, chunk.start + chunk.num_tokens
            assert held == tokens[: len(held)]
            assert len(held) == first or end <= len(held)
            held += tokens[first:end]
        self.sequences.computed()
        assert len({sequence for sequence, _, _ in placed}) == len(chunks)
        assert sum(map(len, self.memory.held.values())) <= NUM_CELLS
        return [first for _, first, _ in placed]


def begin(number: int, token_ids: list[int]) -> Request:
    request = make_request(number, token_ids, 50)
    request.tables.append(BlockTable([0]))
    return request


def whole(request: Request) -> Chunk:
    return Chunk(request, 0, len(request.token_ids), True)


def end(request: Request) -> None:
    request.take_tables()


def test_a_request_takes_over_what_is_alike_but_for_its_last_token() -> None:
    steps = Steps()
    first = begin(0, [1, 2, 3, 4, 5])
    assert steps.run(whole(first)) == [0]
    second, third = begin(1, [1, 2, 3, 9]), begin(2, [1, 2, 3])
    assert steps.run(whole(second), whole(third)) == [3, 2]  # the first still runs
    assert (second.num_cached_tokens, third.num_cached_tokens) == (3, 2)
    end(first)
    end(second)
    assert steps.run(whole(begin(3, [1, 2, 3, 4, 5]))) == [4]
    assert steps.run(whole(begin(4, [1, 7, 3, 4]))) == [0]  # too little to be worth it


def test_what_ended_last_is_kept_and_none_twice() -> None:
    steps = Steps()
    for number, token_ids in enumerate([[1, 1, 1], [1, 1], [1, 1, 1, 1], [2, 2], [3, 3]]):
        request = begin(number, token_ids)
        steps.run(whole(request))
        end(request)
    steps.sequences.end_some()
    assert sorted(steps.memory.held.values()) == [[2, 2], [3, 3]]


def test_what_was_begun_in_this_step_is_not_there_yet() -> None:
    assert Steps().run(whole(begin(0, [1, 2, 3, 4])), whole(begin(1, [1, 2, 3, 4]))) == [0, 0]


def test_requests_get_their_cells_from_what_ended() -> None:
    steps = Steps()
    for number in range(2):
        request = begin(number, [number] * 25)
        steps.run(whole(request))
        end(request)
    steps.run(whole(begin(2, [5] * 40)))
    assert sorted(map(len, steps.memory.held.values())) == [40]


def test_nothing_is_kept_where_a_sequence_can_only_be_continued() -> None:
    steps = Steps(num_ended=0)
    request = begin(0, [1, 2, 3])
    steps.run(whole(request))
    steps.run(whole(begin(1, [1, 2, 4])))
    end(request)
    steps.run(whole(begin(2, [1, 2, 5])))
    assert steps.memory.num_copies == 0
    assert len(steps.memory.held) == 2


def test_after_a_failure_everything_is_forgotten() -> None:
    steps = Steps()
    steps.run(whole(begin(0, [1, 2, 3])), whole(begin(1, [4, 5])))
    steps.sequences.clear()
    assert not steps.memory.held
    assert steps.run(*[whole(begin(number, [1, 2, 3])) for number in range(2, 5)]) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_random_requests_find_what_they_should(seed: int) -> None:
    draw = random.Random(seed)
    steps = Steps()
    running: list[Request] = []
    num_found = 0
    for number in range(200):
        if len(running) < NUM_REQUESTS and draw.random() < 0.7:
            running.append(begin(number, [draw.choice((1, 1, 1, 2)) for _ in range(draw.randint(1, 12))]))
        chunks = []
        for request in draw.sample(running, draw.randint(0, len(running))):
            num_tokens = draw.randint(1, request.num_wanted)
            chunks.append(Chunk(request, request.num_computed, num_tokens, num_tokens == request.num_wanted))
        for chunk, first in zip(chunks, steps.run(*chunks), strict=True):
            chunk.request.num_computed = chunk.start + chunk.num_tokens
            assert first < chunk.request.num_computed or not chunk.samples
            num_found += first > chunk.start
            if chunk.samples:
                chunk.request.token_ids.append(draw.choice((1, 2)))
        for request in list(running):
            if len(request.token_ids) >= 18 or draw.random() < 0.15:
                end(request)
                if draw.random() < 0.3:  # had to make way, and comes back at once
                    request.tables.append(BlockTable([0]))
                else:
                    running.remove(request)
    assert num_found > 20

"""How many requests may wait and how much a key may use, with a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from treadle.server.errors import ApiError
from treadle.server.limits import Limits
from treadle.server.settings import ServerSettings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(limits: Limits, key_id: str = "a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.admit(key_id)
    return caught.value


def test_a_full_queue_refuses_until_somebody_starts() -> None:
    limits = Limits(ServerSettings(max_queued=2))
    with limits.admit("a") as first, limits.admit("b"):
        error = refusal(limits, "c")
        assert (error.status, error.code) == (429, "queue_full")
        assert int(error.headers["Retry-After"]) >= 1
        first.start()
        first.start()
        assert limits.num_queued == 1
        with limits.admit("c"):
            assert limits.num_requests == 3
    assert (limits.num_requests, limits.num_queued) == (0, 0)


def test_the_time_to_retry_follows_the_time_that_requests_waited() -> None:
    clock = Clock()
    limits = Limits(ServerSettings(max_queued=1), clock=clock)
    for _ in range(40):
        with limits.admit("a") as ticket:
            clock.now += 20
            ticket.start()
    with limits.admit("a"):
        assert refusal(limits).headers["Retry-After"] == "20"


def test_a_key_may_run_only_so_many() -> None:
    limits = Limits(ServerSettings(max_concurrent_per_key=1))
    with limits.admit("a") as running:
        running.start()
        assert refusal(limits, "a").code == "key_requests"
        with limits.admit("b"):
            pass
    with limits.admit("a"):
        pass


def test_a_key_that_has_used_its_tokens_waits_for_what_it_owes() -> None:
    clock = Clock()
    limits = Limits(ServerSettings(max_tokens_per_minute_per_key=600), clock=clock)
    with limits.admit("a") as ticket:
        ticket.spend(700)
    error = refusal(limits)
    assert (error.status, error.code, error.headers["Retry-After"]) == (429, "key_tokens", "11")
    with limits.admit("b"):
        pass
    clock.now += 11
    with limits.admit("a"):
        pass
    clock.now += 3600  # what was not used is not saved up
    with limits.admit("a") as ticket:
        ticket.spend(601)
    assert refusal(limits).code == "key_tokens"


def test_draining_refuses_and_waits() -> None:
    async def run() -> None:
        limits = Limits(ServerSettings())
        ticket = limits.admit("a")
        draining = asyncio.ensure_future(limits.drain(30))
        await asyncio.sleep(0)
        error = refusal(limits)
        assert (error.status, error.code, error.headers["Connection"]) == (503, "shutting_down", "close")
        assert not draining.done()
        ticket.__exit__(None, None, None)
        assert await draining
        ticket = Limits(ServerSettings())
        with ticket.admit("a"):
            assert not await ticket.drain(0.001)

    asyncio.run(run())

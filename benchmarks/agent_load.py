"""The loads of serving.py: agents that share a system prompt, and a long prompt that comes in beside answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from targets import Messages, Target, Usage

# Words of about one token each in every vocabulary, so that the same text is about as long for all.
VOCABULARY = """
the a one two red green blue house road river tree bird fish stone water fire light dark open close send read write list
find call tool file name time day night year hand head work play long short high low good bad new old first last left
right food bread milk salt ship boat car train city town king queen man woman child friend book page line
"""
WORDS = VOCABULARY.split()
FEW_TOKENS = 8  # enough for one with text among them: an end token, which is ignored here, has none


@dataclass
class Turn:
    """One answer: when it was asked for and when each piece of its text came, in seconds of one clock."""

    asked: float
    pieces: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    @property
    def first_seconds(self) -> float:
        return self.pieces[0] - self.asked

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in pairwise(self.pieces)]


def text_of(num_words: int, chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(num_words))


async def take_turn(
    target: Target, messages: Messages, num_tokens: int, on_piece: Callable[[], None] | None = None
) -> tuple[Turn, str]:
    turn, texts = Turn(time.perf_counter()), []

    def on_text(text: str) -> None:
        turn.pieces.append(time.perf_counter())
        texts.append(text)
        if on_piece is not None:
            on_piece()

    turn.usage = await target.ask(messages, num_tokens, on_text)
    return turn, "".join(texts)


@dataclass(frozen=True)
class AgentLoad:
    """So many agents at once, each with a task of so many turns, one after the other as the answers come.

    Every round has a system prompt of its own, so no engine knows it from the round before.
    """

    agents: int
    turns: int
    system_words: int
    result_words: int
    answer_tokens: int

    async def run(self, target: Target, round_index: int) -> dict[str, Any]:
        chance = random.Random(f"system {round_index}")
        system = f"You are an agent. {text_of(self.system_words, chance)}"
        began = time.perf_counter()
        tasks = [self._task(target, system, f"{round_index} {agent}") for agent in range(self.agents)]
        turns = await asyncio.gather(*tasks)
        return self._figures(turns, time.perf_counter() - began)

    async def _task(self, target: Target, system: str, seed: str) -> list[Turn]:
        chance = random.Random(seed)
        messages = [{"role": "system", "content": system}]
        turns = []
        for _ in range(self.turns):
            messages.append({"role": "user", "content": f"Result: {text_of(self.result_words, chance)}"})
            turn, text = await take_turn(target, messages, self.answer_tokens)
            turns.append(turn)
            messages.append({"role": "assistant", "content": text})
        return turns

    def _figures(self, tasks: list[list[Turn]], seconds: float) -> dict[str, Any]:
        turns = [turn for task in tasks for turn in task]
        gaps = [gap for turn in turns for gap in turn.gaps]
        first = median(task[0].first_seconds for task in tasks)
        later = [turn.first_seconds for task in tasks for turn in task[1:]]
        return {
            "seconds": seconds,
            "tasks_per_minute": 60 * len(tasks) / seconds,
            "first_turn_ttft_seconds": first,
            "later_turn_ttft_seconds": median(later) if later else None,
            "gap_p50_seconds": median(gaps),
            "gap_p95_seconds": percentile_95(gaps),
            "prompt_tokens": sum(turn.usage.prompt_tokens for turn in turns),
            "cached_tokens": sum(turn.usage.cached_tokens for turn in turns),
        }


@dataclass(frozen=True)
class Interference:
    """Answers under way, then a long prompt beside them; and the same prompt length alone."""

    streams: int
    prompt_words: int
    quiet_pieces: int
    answer_tokens: int

    async def run(self, target: Target, round_index: int) -> dict[str, Any]:
        alone, _ = await take_turn(target, self._prompt(f"{round_index} alone"), FEW_TOKENS)
        is_quiet_over = asyncio.Event()
        pieces = [0] * self.streams

        def count(index: int) -> None:
            pieces[index] += 1
            if min(pieces) >= self.quiet_pieces:
                is_quiet_over.set()

        running: list[list[float]] = [[] for _ in range(self.streams)]
        tasks = [
            asyncio.create_task(
                self._stream(target, f"{round_index} {index}", running[index], lambda i=index: count(i))
            )
            for index in range(self.streams)
        ]
        try:
            await first_done(is_quiet_over, tasks)
            beside, _ = await take_turn(target, self._prompt(f"{round_index} beside"), FEW_TOKENS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return figures_of_interference(alone, beside, running, self.quiet_pieces)

    def _prompt(self, seed: str) -> Messages:
        return [{"role": "user", "content": text_of(self.prompt_words, random.Random(seed))}]

    async def _stream(self, target: Target, seed: str, times: list[float], on_piece: Callable[[], None]) -> None:
        def on_text(_: str) -> None:
            times.append(time.perf_counter())
            on_piece()

        messages = [{"role": "user", "content": text_of(60, random.Random(seed))}]
        await target.ask(messages, self.answer_tokens, on_text)


async def first_done(event: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for an event; a task that ends before it has failed, or was too short."""
    waiting = asyncio.create_task(event.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        waiting.cancel()
        for task in done:
            await task
        raise RuntimeError("an answer ended before the long prompt came: ask for more tokens")


def figures_of_interference(alone: Turn, beside: Turn, running: list[list[float]], quiet_pieces: int) -> dict[str, Any]:
    """The first pieces of a stream stand for its pace undisturbed, but for the very first ones, which share prompts."""
    quiet, disturbed = [], []
    for times in running:
        pairs = list(pairwise(times))
        quiet += [after - before for before, after in pairs[quiet_pieces // 4 : quiet_pieces] if after <= beside.asked]
        disturbed += [after - before for before, after in pairs if beside.asked <= after <= beside.pieces[0]]
    return {
        "quiet_gap_p95_seconds": percentile_95(quiet),
        "disturbed_gap_p95_seconds": percentile_95(disturbed),
        "gap_ratio": percentile_95(disturbed) / percentile_95(quiet),
        "alone_prompt_tokens_per_second": alone.usage.prompt_tokens / alone.first_seconds,
        "beside_prompt_tokens_per_second": beside.usage.prompt_tokens / beside.first_seconds,
        "prompt_rate_share": alone.first_seconds / beside.first_seconds,
        "prompt_tokens": beside.usage.prompt_tokens,
        "disturbed_gaps": len(disturbed),
    }


def percentile_95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]

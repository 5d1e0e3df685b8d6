"""What serving.py asks of the memory: prompts known from before a restart, and many prompts that share nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_load import text_of

from treadle import LLM, SamplingParams

KNOWN_WORDS = 1950  # about 2,000 tokens with the template's
DISTINCT_WORDS = 400
DISK_CACHE = "4GiB"
FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def measure_restart(model: Path, threads: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """First token of a prompt that nobody knows, and of the same prompt in another process afterwards."""
    figures = []
    for round_index in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            cold, warm = (ask_in_process(model, threads, round_index, home) for _ in range(2))
        figures.append(
            {
                "cold_seconds": cold["seconds"],
                "warm_seconds": warm["seconds"],
                "share": warm["seconds"] / cold["seconds"],
                "prompt_tokens": warm["prompt_tokens"],
                "cached_tokens": warm["cached_tokens"],
            }
        )
        say(f"round {round_index + 1} of {rounds}: {figures[-1]}")
    return {"treadle": {"rounds": figures}}


def ask_in_process(model: Path, threads: int, round_index: int, home: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(model), str(threads), str(round_index)]
    run = subprocess.run(
        command, env={**os.environ, "TREADLE_HOME": home}, capture_output=True, text=True, check=False, timeout=600
    )
    if run.returncode:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    seconds, prompt_tokens, cached_tokens = map(float, run.stdout.split())
    return {"seconds": seconds, "prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}


def measure_distinct(
    model: Path, threads: int, num_prompts: int, memory: str | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """The most memory the process held while it answered prompts that share nothing, against what it was given."""
    most_bytes = 0
    with LLM(model, threads=threads, memory=memory, ram_cache="64MiB") as llm:
        budget = llm.report.memory_plan.available_bytes
        for begin in range(0, num_prompts, 50):
            batch = range(begin, min(begin + 50, num_prompts))
            prompts = [text_of(DISTINCT_WORDS, random.Random(f"distinct {index}")) for index in batch]
            completions = llm.generate(prompts, FEW)
            failed = [each.error for each in completions if each.error is not None]
            if failed:
                raise failed[0]
            resident_bytes = llm.stats().resident_bytes
            most_bytes = max(most_bytes, resident_bytes)
            say(f"{batch.stop} of {num_prompts} prompts: {resident_bytes / 1e6:.0f} MB")
        plan = llm.report.memory_plan
    figures = {
        "resident_bytes": most_bytes,
        "planned_bytes": plan.weight_bytes + plan.kv_bytes + plan.scratch_bytes + plan.ram_cache_bytes,
        "budget_bytes": budget,
        "share_of_budget": most_bytes / budget,
    }
    return {"treadle": {"rounds": [figures]}}


def main() -> None:
    """Ask the known prompt of a round once; print seconds to its first token, its length and what of it was known."""
    model, threads, round_index = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    prompt = text_of(KNOWN_WORDS, random.Random(f"known {round_index}"))
    with LLM(model, threads=threads, disk_cache=DISK_CACHE) as llm:
        llm.generate("Hello", FEW)  # what a first request pays for whatever it is
        completion = llm.generate(prompt, FEW)
    print(completion.timings.first_token_seconds, completion.prompt_tokens, completion.cached_tokens)


if __name__ == "__main__":
    main()

"""Shows what giving KV blocks of sliding windows back is worth: memory of a long sequence, and how many run at once.

The same requests run twice, each time in a process of its own: with blocks given back, and with all kept until the end
as if no layer had a window. Answers must be the same. Neither figure depends on the speed of the machine, so it need
not be quiet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

from treadle import LLM, SamplingParams
from treadle.engine import load
from treadle.engine.execution_plan import ExecutionPlan
from treadle.hardware.memory import resident_memory_bytes

NUM_ANSWER_TOKENS = 64
TOKEN_IDS = 300, 30_000  # of words, in every vocabulary
SECONDS_BETWEEN_LOOKS = 0.1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=8192, help="of each sequence, its answer of 64 tokens included")
    parser.add_argument("--sequences", type=int, default=16, help="that come at once")
    parser.add_argument("--memory", default="1GB", help="for weights and KV blocks while they run")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)  # of the process that runs one
    return parser.parse_args()


def prompts_of(num_sequences: int, num_tokens: int) -> list[list[int]]:
    """Return random prompts that have nothing in common."""
    rng = np.random.default_rng(0)
    ids = rng.integers(*TOKEN_IDS, (num_sequences, num_tokens - NUM_ANSWER_TOKENS))
    prompts: list[list[int]] = ids.tolist()
    return prompts


def keep_all() -> AbstractContextManager[object]:
    """Let models be loaded as if their engine gave nothing back."""
    plan_execution = load.plan_execution

    def planned(*arguments: Any, **options: Any) -> ExecutionPlan:
        return plan_execution(*arguments, **{**options, "frees_windows": False})

    return patch.object(load, "plan_execution", planned)


class Watch:
    """Looks at an engine now and then, for the most requests that ran at once."""

    def __init__(self, llm: LLM) -> None:
        self.most_running = 0
        self._llm = llm
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_done.wait(SECONDS_BETWEEN_LOOKS):
            self.most_running = max(self.most_running, self._llm.stats().scheduler.num_running)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one sequence with all the memory there is, then all of them within what was asked for."""
    params = SamplingParams(temperature=0, max_tokens=NUM_ANSWER_TOKENS, ignore_eos=True)
    options: dict[str, Any] = {"context": arguments.tokens, "huge_pages": False, "max_num_requests": 64}
    with LLM(arguments.model, **options) as llm:
        before = resident_memory_bytes()
        [prompt] = prompts_of(1, arguments.tokens)
        answers = [llm.generate(prompt, params).token_ids]
        one_bytes = resident_memory_bytes() - before
    with LLM(arguments.model, memory=arguments.memory, **options) as llm, Watch(llm) as watch:
        completions = llm.generate(prompts_of(arguments.sequences, arguments.tokens), params)
        answers += [completion.token_ids for completion in completions]
        counters = llm.stats().scheduler
    return {
        "one": one_bytes,
        "running": watch.most_running,
        "preemptions": counters.num_preemptions,
        "pools": [pool.num_blocks for pool in counters.pools],
        "answers": answers,
    }


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {"all kept": keep_all, "given back": nullcontext}


def run_apart(mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--mode", mode], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    print(
        f"{mode:<12}{result['one'] / 1e6:>14,.0f} MB{result['running']:>14}{result['preemptions']:>14}"
        f"{' + '.join(map(str, result['pools'])):>14}"
    )
    return result


def main() -> int:
    """Print a row for each mode; fail if answers differ."""
    arguments = parse_arguments()
    if arguments.mode:
        with MODES[arguments.mode]():
            print(json.dumps(run(arguments)))
        return 0
    print(f"{arguments.model}: one of {arguments.tokens} tokens, then {arguments.sequences} in {arguments.memory}")
    print(f"{'':<12}{'one takes':>17}{'run at once':>14}{'preempted':>14}{'blocks':>14}")
    kept, given_back = (run_apart(mode) for mode in MODES)
    if kept["answers"] != given_back["answers"]:
        print("the answers differ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

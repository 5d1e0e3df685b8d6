"""Runs one engine in its own process: a request per line of JSON on stdin, an answer per line on stdout.

The parent stops this process between requests, so an engine whose idle threads spin takes no core from the next.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

import numpy as np

PR_SET_PDEATHSIG = 1


class Worker:
    def __init__(self, module: str) -> None:
        self.module = module
        self.engine: Any = None

    def load(self, **settings: Any) -> dict[str, Any]:
        engine_class = importlib.import_module(f"peers.{self.module}").Engine
        self.engine = engine_class(**settings)
        return dict(self.engine.facts())

    def call(self, method: str, **arguments: Any) -> Any:
        return getattr(self.engine, method)(**arguments)

    def logits_to_file(self, tokens: list[int], out: str) -> None:
        np.save(out, self.engine.logits(tokens))

    def peak_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def end_with_parent() -> None:
    """A stopped process would outlive a parent that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    # Engines print to stdout as they like; the answers go to a copy of it that only this file knows.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"value": getattr(worker, request.pop("do"))(**request)}
        except Exception as error:  # whatever stops an engine is a result of the comparison
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

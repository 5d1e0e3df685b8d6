"""llama.cpp's own HTTP server, as the xllamacpp package embeds it.

`python llama_server.py MODEL THREADS SLOTS CONTEXT`, the context being that of each slot, prints its address as one
line of JSON and serves until its stdin closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The library prints to stdout as it likes; the address goes to a copy of it that only this file knows.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import xllamacpp  # noqa: PLC0415

    model, threads, slots, context = sys.argv[1], *map(int, sys.argv[2:])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    instructions = xllamacpp.get_system_info().strip(" |")
    facts = {
        "url": server.listening_address,
        "version": f"xllamacpp {xllamacpp.__version__}",
        "build": f"{xllamacpp.BUILD_INFO['compiler']}; {instructions}",
    }
    print(json.dumps(facts), file=answers, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

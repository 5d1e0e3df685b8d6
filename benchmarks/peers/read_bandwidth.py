"""Not an engine: reads memory as fast as this machine can, for the limit that decoding is measured against."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

BYTES_PER_THREAD = 1 << 29


class Engine:
    def __init__(self, path: str, threads: int, max_tokens: int, streams: int) -> None:
        del path, max_tokens, streams
        self.buffers = [np.ones(BYTES_PER_THREAD // 4, np.float32) for _ in range(threads)]

    def facts(self) -> dict[str, Any]:
        return {"version": f"numpy {np.__version__}, largest element of {BYTES_PER_THREAD >> 20} MiB per thread"}

    def read(self) -> float:
        """Bytes per second of all threads together."""
        # A reduction with one load and one instruction per vector; NumPy releases the lock of the interpreter in it.
        workers = [threading.Thread(target=np.max, args=(buffer,)) for buffer in self.buffers]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return len(self.buffers) * BYTES_PER_THREAD / (time.perf_counter() - start)

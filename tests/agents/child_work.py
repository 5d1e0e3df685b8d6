"""Work for a child process, good and bad."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from treadle.errors import ToolError


def work(request: Mapping[str, Any]) -> str:
    what = request["what"]
    if what == "refuse":
        raise ToolError("it is not there", hint="look elsewhere")
    if what == "eat":
        return str(len([bytearray(16 << 20) for _ in range(1000)]))
    if what == "crash":
        raise RuntimeError("broken")
    if what == "die":
        os.abort()
    if what == "wait":
        os.write(request["fd"], b"%d" % os.getpid())
        signal.pause()
    if what == "share":
        return f"{os.sched_getaffinity(0)} {os.nice(0)}"
    return f"did {what}"

"""Chooses the part that this process plays in a sandbox, from its command line.

Leaves to others: the parts (``nursery``, ``waiting``, ``program``).
"""

from __future__ import annotations

# So that a program's own import of them costs nothing.
import csv  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import functools  # noqa: F401
import importlib
import itertools  # noqa: F401
import json
import math  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import socket
import statistics  # noqa: F401
import string  # noqa: F401
import sys
from pathlib import Path
from typing import Any

from .nursery import breed, drop_rights, install_filter
from .program import confine, execute, run_code
from .waiting import adopt_orphans, serve


def shut_in(walls: dict[str, Any] | None) -> None:
    """Go behind the walls that a process can build around itself, if there are any to build."""
    if walls is not None:
        readable, writable = (list(map(Path, walls[name])) for name in ("readable", "writable"))
        importlib.import_module("landlock").restrict(readable, writable, allow_tcp=walls["allow_tcp"])
        drop_rights()
        if walls["filter"] is not None:
            install_filter(bytes.fromhex(walls["filter"]))


def main(folder: str) -> None:
    """Serve one request, and be the program of it in the child; ``folder`` is where this package was found."""
    role, descriptor, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    control = socket.socket(fileno=descriptor)
    walls = settings.get("walls")
    if walls is not None:
        importlib.import_module("landlock")  # once, not in each that is forked
    if role == "nursery":
        control = breed(control, settings)
    elif role == "alone":
        adopt_orphans()
    request, tell = serve(control, is_alone=role == "alone", enter=lambda: shut_in(walls))
    confine(request)
    if request["argv"] is not None:
        execute(request["argv"])
    sys.path.remove(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] in (__package__, "landlock")]:
        del sys.modules[name]
    run_code(request["code"], tell, packages=settings["packages"])

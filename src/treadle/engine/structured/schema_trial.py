"""Tries a grammar in a process of its own, which can be ended: to combine patterns may take time without bound.

Leaves to others: the grammar that is used (``structured.grammar`` compiles it again, once it is known to end).
"""

from __future__ import annotations

import re
import subprocess
import sys

from treadle.errors import UsageError

__all__ = ["try_grammar"]

_MAX_CPU_SECONDS = 5
_MAX_BYTES = 4 << 30
_MAX_SECONDS = 120.0  # for a machine that has no time for it; where processes have no limits, the only one
_FEW_PATTERNS = 6
_COMBINES = re.compile(r'"(?:allOf|anyOf|oneOf|patternProperties|\$ref)"')
_PROGRAM = f"""
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, ({_MAX_CPU_SECONDS}, {_MAX_CPU_SECONDS}))
    resource.setrlimit(resource.RLIMIT_AS, ({_MAX_BYTES}, {_MAX_BYTES}))
except ImportError:
    pass
from llguidance import LLMatcher
LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(sys.stdin.buffer.read().decode()))
"""


def try_grammar(rules: str) -> None:
    """Make sure that a grammar compiles in time, if it may combine many patterns; whether it is right is not told.

    Raises:
        UsageError: It does not.
    """
    if rules.count('"pattern') <= _FEW_PATTERNS or not _COMBINES.search(rules):
        return
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=rules.encode(),
            capture_output=True,
            timeout=_MAX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pass
    else:
        if tried.returncode == 0:
            return
    raise UsageError("the schema cannot be enforced: its patterns together are too complex", field="form")

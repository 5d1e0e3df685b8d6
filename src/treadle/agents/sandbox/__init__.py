"""A place to run a model's code in, from which it cannot reach the rest of the machine.

What a task needs run belongs to ``treadle.agents.tools``.
"""

from __future__ import annotations

from treadle.agents.sandbox.limits import SandboxLimits
from treadle.agents.sandbox.outcome import CappedText, EndStatus, Outcome
from treadle.agents.sandbox.sandbox import Sandbox

__all__ = ["CappedText", "EndStatus", "Outcome", "Sandbox", "SandboxLimits"]

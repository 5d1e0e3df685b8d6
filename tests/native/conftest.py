"""Says at the end of a run which kernel tables were tested."""

from __future__ import annotations

import pytest
from kernel_cases import RUNNABLE_ISAS, expected_isas


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(
        f"kernel tables tested: {', '.join(RUNNABLE_ISAS)} (expected on this CPU: {', '.join(expected_isas())})"
    )

"""How long a test waits for what must come: only what hangs may take longer, however busy the machine is."""

from __future__ import annotations

PATIENCE_SECONDS = 600.0

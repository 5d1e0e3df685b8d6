"""What the commands say about a stored model, as plain values ready for JSON.

Layout on the screen is left to the commands.
"""

from __future__ import annotations

from typing import Any

from treadle.models.manifest import StoredModel

__all__ = ["format_count", "stored_facts"]


def stored_facts(model: StoredModel) -> dict[str, Any]:
    """Return the facts that the store keeps about a model."""
    return {
        "name": model.name,
        "path": str(model.path),
        "bytes": model.bytes,
        "source": model.source,
        "licence": model.licence,
        "linked": model.linked,
        "problem": model.problem(),
        "files": [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in model.files],
    }


def format_count(count: int) -> str:
    """Return a number of parameters the way models are named, such as 135M or 1.54B."""
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"

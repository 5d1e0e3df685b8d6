"""Models under the names that clients use."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.cli.named_models import named_models
from treadle.errors import UsageError


def test_models_have_the_name_given_or_their_own(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.gguf"
    odd.touch()
    models = [
        "small=smollm2:135m",
        "org/big=/models/x=y.gguf",
        "/models/tiny.gguf",
        str(odd),
        "http://host:1/v1#far=1",
    ]
    assert named_models(models) == {
        "small": "smollm2:135m",
        "org/big": "/models/x=y.gguf",
        "tiny": "/models/tiny.gguf",
        "a=b": str(odd),
        "far=1": "http://host:1/v1#far=1",
    }
    assert named_models(["org/model"], are_elsewhere=True) == {"org/model": "org/model"}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["=x"], "'=x': expected MODEL or NAME=MODEL"),
        (["x="], "'x=': expected MODEL or NAME=MODEL"),
        (["a=x", "a=y"], "two models are called a\\nhint: give one of them another name"),
    ],
)
def test_names_that_say_nothing_are_refused(models: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named_models(models)

"""What an answer may look like, as data: JSON of a schema, text of a pattern, one of several texts.

Leaves to others: enforcing it, be it as a grammar (``structured.grammar``) or by another engine (``engine.remote``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.errors import UsageError

__all__ = ["AnswerForm", "ChoiceForm", "JsonForm", "RegexForm"]

MAX_CHOICES = 1024


@dataclass(frozen=True)
class JsonForm:
    """JSON that satisfies a schema; by default any object.

    Raises:
        UsageError: The schema is no object, as JSON schemas of forms are, or it is not JSON itself.
    """

    schema: Mapping[str, Any] | bool = field(default_factory=lambda: {"type": "object"})

    def __post_init__(self) -> None:
        if self.schema is True:
            object.__setattr__(self, "schema", {})
        if not isinstance(self.schema, Mapping):
            raise UsageError(f"JSON schema: expected an object, found {self.schema!r:.80}", field="form")
        try:
            json.dumps(self.schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"JSON schema: it is not JSON itself: {error}", field="form") from None


@dataclass(frozen=True)
class RegexForm:
    """Text that a regular expression matches from its beginning to its end."""

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise UsageError(f"form: expected a regular expression, found {self.pattern!r:.80}", field="form")


@dataclass(frozen=True)
class ChoiceForm:
    """One of up to 1024 texts, none of them empty."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        choices = self.choices
        is_list = isinstance(choices, Sequence) and not isinstance(choices, str)
        if not is_list or not choices or not all(isinstance(choice, str) and choice for choice in choices):
            problem = f"form: expected a list of texts to choose from, none empty, found {choices!r:.80}"
            raise UsageError(problem, field="form")
        if len(choices) > MAX_CHOICES:
            raise UsageError(f"form: {len(choices)} texts to choose from, at most {MAX_CHOICES} fit", field="form")


AnswerForm = JsonForm | RegexForm | ChoiceForm

"""What single operations of a chat template would build, reckoned before they run.

How much may be built is ``TemplateBudget``'s to say; where operations occur is ``template_sandbox``'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from treadle.models.template_budget import BudgetExceeded, TemplateBudget

__all__ = ["FILTER_LIMITS", "check_braces", "check_percent", "check_power", "check_product", "check_string_method"]

# Widths and precisions that are computed or have four digits; a key with parentheses could hide one.
_WIDE_PERCENT = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(?:\*|\d{4}|\d*\.(?:\*|\d{4}))|%\([^()]*\(")
_WIDE_BRACES = re.compile(r"\{[^{}:]*(?:\{|:[^{}]*(?:\{|\d{4}))")
_MAX_PRECISION = 30
_MAX_INDENT = 16


def check_percent(template: str, arguments: Any) -> None:
    """Check formatting by ``%``: each field may hold every argument, none may be padded far."""
    _check_fields(template, _WIDE_PERCENT, template.count("%"), arguments)


def check_braces(template: str, arguments: Any) -> None:
    """Check ``str.format`` in the same way."""
    fields = template.replace("{{", "").replace("}}", "")
    _check_fields(fields, _WIDE_BRACES, fields.count("{"), arguments)


def _check_fields(template: str, wide: re.Pattern[str], num_fields: int, arguments: Any) -> None:
    budget = TemplateBudget.current()
    if wide.search(template):
        raise BudgetExceeded("it pads text to a computed or four-digit width")
    budget.allow_text(len(template) + num_fields * budget.measure(arguments))


def check_product(left: Any, right: Any) -> None:
    """Check ``*``, which repeats text and lists."""
    budget = TemplateBudget.current()
    if isinstance(left, int) and isinstance(right, int):
        budget.allow_integer(left.bit_length() + right.bit_length())
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(sequence, (str, bytes)):
            budget.allow_text(len(sequence) * count)
        elif isinstance(count, int) and isinstance(sequence, (list, tuple)):
            budget.allow_elements(len(sequence) * count)


def check_power(left: Any, right: Any) -> None:
    """Check ``**``."""
    if isinstance(left, int) and isinstance(right, int):
        TemplateBudget.current().allow_integer(left.bit_length() * abs(right))


def check_string_method(text: str, method: str, arguments: Sequence[Any]) -> None:
    """Check the methods of strings that can make much out of little."""
    check = _METHOD_LIMITS.get(method)
    if check is not None and arguments:
        check(text, *arguments)


def _check_width(_value: Any, width: Any = 80, *_rest: Any) -> None:
    TemplateBudget.current().allow_text(_reach(width))


def _check_expandtabs(text: str, width: Any = 8) -> None:
    TemplateBudget.current().allow_text(len(text) + text.count("\t") * _reach(width))


def _check_join(separator: Any, items: Any) -> None:
    budget = TemplateBudget.current()
    budget.allow_text(budget.measure(items) + len(items) * len(str(separator)))


def _check_replace(text: Any, old: Any, new: Any, _count: Any = None) -> None:
    text, old = str(text), str(old)
    TemplateBudget.current().allow_text(len(text) + text.count(old) * len(str(new)))


def _check_filter_join(items: Any, d: Any = "", attribute: Any = None) -> None:
    del attribute  # picks a part of each item, which is no longer than the item
    _check_join(d, items)


def _check_indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> None:
    del first, blank
    TemplateBudget.current().allow_text(len(str(text)) + (str(text).count("\n") + 1) * _reach(width))


def _check_wordwrap(
    text: Any, width: Any = 79, break_long_words: bool = True, wrapstring: Any = None, break_on_hyphens: bool = True
) -> None:
    del break_long_words, break_on_hyphens
    num_lines = str(text).count("\n") + 1 + len(str(text)) // max(1, _reach(width))
    TemplateBudget.current().allow_text(len(str(text)) + num_lines * len(wrapstring or "\n"))


def _check_batch(_value: Any, linecount: Any, fill_with: Any = None) -> None:
    del fill_with
    TemplateBudget.current().allow_elements(_reach(linecount))


def _check_slice(value: Any, slices: Any, fill_with: Any = None) -> None:
    _check_batch(value, slices, fill_with)


def _check_filter_format(text: Any, *args: Any, **kwargs: Any) -> None:
    check_percent(str(text), (args, kwargs))


def _check_round(_value: Any, precision: Any = 0, method: str = "common") -> None:
    del method
    if _reach(precision) > _MAX_PRECISION:
        raise BudgetExceeded(f"it rounds to {precision} digits, more than {_MAX_PRECISION}")


def _check_sum(_value: Any, attribute: Any = None, start: Any = 0) -> None:
    del attribute
    if not isinstance(start, (int, float)):
        raise BudgetExceeded("it sums up something other than numbers")


def _check_to_json(
    _value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> None:
    del ensure_ascii, sort_keys
    if _reach(indent) > _MAX_INDENT or any(_reach(each) > _MAX_INDENT for each in separators or ()):
        raise BudgetExceeded(f"it spaces JSON out by more than {_MAX_INDENT} characters")


def _reach(value: Any) -> int:
    """The characters or elements that a width, given as a number or as the text itself, stands for."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return abs(int(value)) if isinstance(value, (int, float)) else 0


_METHOD_LIMITS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _check_width),
    "expandtabs": _check_expandtabs,
    "join": _check_join,
    "replace": _check_replace,
}

# Parameters are named as the filters name theirs, for templates may pass them by name.
FILTER_LIMITS: dict[str, Callable[..., None]] = {
    "batch": _check_batch,
    "center": lambda value, width=80: _check_width(value, width),
    "format": _check_filter_format,
    "indent": _check_indent,
    "join": _check_filter_join,
    "replace": lambda s, old, new, count=None: _check_replace(s, old, new, count),
    "round": _check_round,
    "slice": _check_slice,
    "sum": _check_sum,
    "tojson": _check_to_json,
    "wordwrap": _check_wordwrap,
}

"""Reads JSON schemas and spells them for the grammar engine; what that would accept and not enforce is refused.

Leaves to others: compiling (``structured.grammar``), and what keywords beside schemas may hold
(``structured.schema_values``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from treadle.engine.structured.patterns import portable_pattern
from treadle.engine.structured.schema_refs import child_path, find_target
from treadle.engine.structured.schema_values import plain_text, plain_value, read_count, read_number, read_step, refuse
from treadle.engine.structured.text_formats import text_format
from treadle.errors import UsageError

__all__ = ["enforceable"]

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_MAX_DEPTH = 120  # of the JSON a schema is written in; the grammar engine reads 128 levels, and a call has some
_MAX_ROUNDS = 100  # of looking for what ends; hardly any schema needs three
_MAX_KEY_PATTERNS = 100  # each is compared with each
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf")
_VALUES: Mapping[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "maxProperties"), read_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), read_number),
    "multipleOf": read_step,
    "const": plain_value,
}
# Keywords that cannot be enforced, and when they demand nothing.
_UNSUPPORTED: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "not": lambda schema: schema["not"] is False,
    "if": lambda schema: "then" not in schema and "else" not in schema,
    "contains": lambda schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "uniqueItems": lambda schema: schema["uniqueItems"] is False or schema.get("maxItems") in (0, 1),
    "dependentRequired": lambda schema: not schema["dependentRequired"],
    "dependentSchemas": lambda schema: not schema["dependentSchemas"],
    "dependencies": lambda schema: not schema["dependencies"],
    "$dynamicRef": lambda _: False,
    "$recursiveRef": lambda _: False,
}


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that means no more than ``schema``, in the keywords that the grammar engine enforces.

    All it refers to is in its ``$defs``, by the pointers of the places where it was.

    Raises:
        UsageError: It is no schema, or cannot be enforced; the text gives the place and the keyword.
    """
    return _Reader(schema).read()


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}
        self._unread: deque[str] = deque()

    def read(self) -> dict[str, Any]:
        body = self._schema(self._root, "#", 0)
        definitions = {}
        while self._unread:
            pointer = self._unread.popleft()
            definitions[pointer] = self._schema(self._targets[pointer], pointer, 0)
        assert isinstance(body, dict)
        if not _ends(body, _finite(definitions)):
            refuse("#", "no JSON value satisfies it, for it would have no end")
        return {**body, "$defs": definitions} if definitions else body

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            refuse(path, f"expected an object or a boolean, found {schema!r:.80}")
        if depth > _MAX_DEPTH:
            refuse(path, f"more than {_MAX_DEPTH} levels within each other")
        if path != "#" and isinstance(schema.get("$id"), str):
            refuse(path, "a schema with an $id of its own inside another cannot be enforced")
        for key, is_idle in _UNSUPPORTED.items():
            if key in schema and not is_idle(schema):
                refuse(child_path(path, key), f"the keyword {key!r} cannot be enforced")
        read: dict[str, Any] = {}
        if "$ref" in schema:
            read["$ref"] = self._reference(schema["$ref"], child_path(path, "$ref"))
        self._values(schema, path, read)
        for key in ("allOf", "anyOf", "oneOf"):
            if key in schema:
                read[key] = self._list(schema[key], child_path(path, key), depth)
        self._items(schema, path, depth, read)
        self._properties(schema, path, depth, read)
        return _with_text_rules(schema, path, read)

    def _reference(self, ref: Any, path: str) -> str:
        pointer, target = find_target(self._root, ref, path)
        if pointer not in self._targets:
            self._targets[pointer] = target
            self._unread.append(pointer)
        return _reference_to(pointer)

    def _values(self, schema: Mapping[str, Any], path: str, read: dict[str, Any]) -> None:
        if "type" in schema:
            read["type"] = _types(schema["type"], child_path(path, "type"))
        given = {key: schema[key] for key in _VALUES if key in schema}
        for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(given.get(exclusive), bool):  # as drafts before the sixth have it
                is_exclusive = given.pop(exclusive)
                if is_exclusive and inclusive in given:
                    given[exclusive] = given.pop(inclusive)
        for key, value in given.items():
            read[key] = _VALUES[key](value, child_path(path, key))
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list | tuple) or not values:
                refuse(child_path(path, "enum"), f"expected a list of values, found {values!r:.80}")
            read["enum"] = plain_value(values, child_path(path, "enum"))

    def _list(self, schemas: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(schemas, list | tuple) or not schemas:
            refuse(path, f"expected a list of schemas, found {schemas!r:.80}")
        return [self._schema(each, child_path(path, index), depth + 2) for index, each in enumerate(schemas)]

    def _items(self, schema: Mapping[str, Any], path: str, depth: int, read: dict[str, Any]) -> None:
        prefix, rest = "prefixItems", "items"
        if isinstance(schema.get("items"), list):  # as drafts before 2020-12 have it
            prefix, rest = "items", "additionalItems"
        elif "unevaluatedItems" in schema:
            rest = _evaluated(schema, path, "unevaluatedItems", "items")
        if prefix in schema:
            read["prefixItems"] = self._list(schema[prefix], child_path(path, prefix), depth)
        if rest in schema:
            read["items"] = self._schema(schema[rest], child_path(path, rest), depth + 1)

    def _properties(self, schema: Mapping[str, Any], path: str, depth: int, read: dict[str, Any]) -> None:
        for key in ("properties", "patternProperties"):
            if key in schema:
                read[key] = self._named(schema[key], child_path(path, key), depth, are_patterns=key != "properties")
        rest = "additionalProperties"
        if "unevaluatedProperties" in schema:
            rest = _evaluated(schema, path, "unevaluatedProperties", rest)
        if rest in schema:
            read["additionalProperties"] = self._schema(schema[rest], child_path(path, rest), depth + 1)
        if "required" in schema:
            names = schema["required"]
            if not isinstance(names, list | tuple):
                refuse(child_path(path, "required"), f"expected a list of names, found {names!r:.80}")
            read["required"] = plain_value([plain_text(name, child_path(path, "required")) for name in names], path)
        if "propertyNames" in schema:
            _restrict_names(schema["propertyNames"], child_path(path, "propertyNames"), read)
        if "minProperties" in schema:
            _require_some(schema["minProperties"], child_path(path, "minProperties"), read)

    def _named(self, schemas: Any, path: str, depth: int, *, are_patterns: bool) -> dict[str, Any]:
        if not isinstance(schemas, Mapping):
            refuse(path, f"expected an object of schemas, found {schemas!r:.80}")
        if are_patterns and len(schemas) > _MAX_KEY_PATTERNS:
            refuse(path, f"expected at most {_MAX_KEY_PATTERNS} patterns, found {len(schemas)}")
        read_name = _pattern if are_patterns else plain_text
        return {
            read_name(name, child_path(path, name)): self._schema(each, child_path(path, name), depth + 2)
            for name, each in schemas.items()
        }


def _types(types: Any, path: str) -> Any:
    for name in types if isinstance(types, list | tuple) and types else (types,):
        if not isinstance(name, str) or name not in _TYPES:
            refuse(path, f"expected {', '.join(sorted(_TYPES))} or a list of these, found {name!r:.80}")
    return types


def _pattern(pattern: Any, path: str) -> str:
    try:
        return portable_pattern(plain_text(pattern, path))
    except UsageError as error:
        text = error.args[0]
        if text.startswith("the schema"):
            raise
        refuse(path, text)


def _with_text_rules(schema: Mapping[str, Any], path: str, read: dict[str, Any]) -> dict[str, Any]:
    """Add the pattern and the format of a text."""
    types = read.get("type", "string")
    if "format" in schema and "string" in ([types] if isinstance(types, str) else types):
        try:
            rules = text_format(schema["format"])
        except UsageError as error:
            refuse(child_path(path, "format"), error.args[0])
        if rules:
            read["allOf"] = [*read.get("allOf", ()), dict(rules)]
    if "pattern" in schema:
        read["pattern"] = _pattern(schema["pattern"], child_path(path, "pattern"))
    return read


def _evaluated(schema: Mapping[str, Any], path: str, keyword: str, same: str) -> str:
    """Return the keyword that holds what applies to the rest, as far as ``keyword`` means nothing else here."""
    if same in schema or schema[keyword] in (True, {}):
        return same
    if any(key in schema for key in _IN_PLACE):
        refuse(child_path(path, keyword), f"the keyword {keyword!r} beside others cannot be enforced")
    return keyword


def _restrict_names(names: Any, path: str, read: dict[str, Any]) -> None:
    """Say ``propertyNames`` in other keywords, where that can be."""
    wanted = {} if names is True else names
    if not isinstance(wanted, Mapping):
        refuse(path, "the keyword 'propertyNames' cannot be enforced")
    rules = {key: value for key, value in wanted.items() if key not in ("title", "description")}
    if rules.get("type") == "string":
        del rules["type"]
    if not rules:
        return
    rest = read.get("additionalProperties", True)
    known = read.get("properties", {})
    has_patterns = "patternProperties" in read
    if rules.keys() == {"pattern"} and not known and not has_patterns:
        read["patternProperties"] = {_pattern(rules["pattern"], child_path(path, "pattern")): rest}
    elif rules.keys() in ({"enum"}, {"const"}) and not has_patterns:
        allowed = [rules["const"]] if "const" in rules else rules["enum"]
        if not isinstance(allowed, list | tuple):
            refuse(path, f"expected a list of names, found {allowed!r:.80}")
        texts = [plain_text(name, path) for name in allowed if isinstance(name, str)]
        read["properties"] = {name: known.get(name, rest) for name in texts}
    else:
        refuse(path, "the keyword 'propertyNames' can be enforced with a pattern or an enum alone")
    read["additionalProperties"] = False


def _require_some(least: Any, path: str, read: dict[str, Any]) -> None:
    """Add ``minProperties``, unless the required ones are as many anyway."""
    num_missing = read_count(least, path) - len(set(read.get("required", ())))
    is_open = read.get("additionalProperties", True) is not False or "patternProperties" in read
    if num_missing > 1 and is_open:  # for nothing keeps a name from coming twice
        refuse(path, "'minProperties' can be enforced for one name more than the required ones")
    if num_missing > 0:
        read["minProperties"] = read_count(least, path)


def _reference_to(pointer: str) -> str:
    return f"#/$defs/{quote(pointer.replace('~', '~0').replace('/', '~1'), safe='~')}"


def _finite(definitions: Mapping[str, Any]) -> set[str]:
    """Return the references to what some finite value satisfies, as far as references alone decide that."""
    finite: set[str] = set()
    unknown = {_reference_to(pointer): schema for pointer, schema in reversed(list(definitions.items()))}
    for _ in range(_MAX_ROUNDS):
        found = [reference for reference, schema in unknown.items() if _ends(schema, finite)]
        if not found:
            return finite
        finite.update(found)
        for reference in found:
            del unknown[reference]
    return finite | unknown.keys()


def _ends(schema: Any, finite: set[str]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"] not in finite:
        return False
    if not all(_ends(each, finite) for each in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_ends(each, finite) for each in schema[key]):
            return False
    if "const" in schema or "enum" in schema or "type" not in schema:
        return True
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return any(_ends_as(kind, schema, finite) for kind in types)


def _ends_as(kind: str, schema: Mapping[str, Any], finite: set[str]) -> bool:
    if kind == "object":
        known = schema.get("properties", {})
        return all(_ends(known.get(name, True), finite) for name in schema.get("required", ()))
    if kind == "array":
        first = schema.get("prefixItems", ())
        least = schema.get("minItems", 0)
        is_short = len(first) >= least or _ends(schema.get("items", True), finite)
        return is_short and all(_ends(each, finite) for each in first[:least])
    return True

"""SentencePiece's Unigram in the plainest form: tables of characters as files have them, and the search for tokens."""

from __future__ import annotations

from collections.abc import Mapping

LABEL, LEAF, VALUE = 0xFF, 1 << 8, 1 << 31


def pack_char_map(table: Mapping[str, str]) -> list[int]:
    """The bytes of a table: a double array in the units of Darts-clone, then the replacements."""
    replacements = b""
    places: dict[bytes, int] = {}
    for text, replacement in table.items():
        places[text.encode()] = len(replacements)
        replacements += replacement.encode() + b"\0"
    array = b"".join(unit.to_bytes(4, "little") for unit in _double_array(places))
    return list(len(array).to_bytes(4, "little") + array + replacements)


def _double_array(values: Mapping[bytes, int]) -> list[int]:
    units, bases = {0: 0}, set[int]()
    queue = [(b"", 0)]
    for prefix, place in queue:
        labels = sorted({key[len(prefix)] for key in values if key.startswith(prefix) and len(key) > len(prefix)})
        # The value of a key that ends here is where a child with the label 0 would be.
        wanted = [0, *labels] if prefix in values else labels
        free = (base for base in range(1, 1 << 20) if base not in bases)  # or nodes would have each other's children
        base = next(base for base in free if all(base ^ label not in units for label in wanted))
        bases.add(base)
        units[place] |= (place ^ base) << 10
        if prefix in values:
            units[place] |= LEAF
            units[base] = VALUE | values[prefix]
        for label in labels:
            units[base ^ label] = label
            queue.append((prefix + bytes([label]), base ^ label))
    # A unit nobody uses has a label that no byte is.
    return [units.get(place, VALUE) for place in range(max(units) + 256)]


def replace(text: str, table: Mapping[str, str]) -> str:
    """The text with the longest sequence of the table replaced at every place."""
    found, at = "", 0
    while at < len(text):
        length = max((length for length in range(1, 5) if text[at : at + length] in table), default=0)
        found += table[text[at : at + length]] if length else text[at]
        at += max(1, length)
    return found


def mark_spaces(text: str, *, merges: bool) -> str:
    """The text with a space before it, and all spaces, or each run of them, as the mark that tokens have."""
    return "".join("▁" + word for word in text.split(" ") if word) if merges else ("▁" + text.replace(" ", "▁"))


def encode(text: str, pieces: Mapping[str, tuple[int, float]], unknown_id: int) -> list[int]:
    """The ids of the likeliest cut of a text; ``pieces`` gives id and score of each ordinary token."""
    penalty = min(score for _, score in pieces.values()) - 10.0
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        options = []
        for begin in range(end):
            if (entry := pieces.get(text[begin:end])) is not None:
                options.append((best[begin][0] + entry[1], [*best[begin][1], entry[0]]))
        if text[end - 1] not in pieces:
            options.append((best[end - 1][0] + penalty, [*best[end - 1][1], unknown_id]))
        best.append(max(options, key=lambda option: option[0]))
    ids = best[-1][1]
    return [each for index, each in enumerate(ids) if each != unknown_id or index == 0 or ids[index - 1] != unknown_id]

"""SentencePiece merging in the plainest form: look at every pair, take the best, begin again."""

from __future__ import annotations

from collections.abc import Mapping


def encode(text: str, pieces: Mapping[str, tuple[int, float]], byte_ids: Mapping[int, int]) -> list[int]:
    """The ids of text, spaces already marked; ``pieces`` gives the id and score of each ordinary token."""
    symbols = list(text)
    while True:
        best: tuple[float, int] | None = None
        for index in range(len(symbols) - 1):
            entry = pieces.get(symbols[index] + symbols[index + 1])
            if entry is not None and (best is None or entry[1] > best[0]):
                best = (entry[1], index)
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = [symbols[best[1]] + symbols[best[1] + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [pieces[symbol][0]] if symbol in pieces else [byte_ids[byte] for byte in symbol.encode()]
    return ids

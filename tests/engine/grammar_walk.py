"""Answers that a grammar allows, without a model: walks over the tokens of a small vocabulary of bytes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from tiny_vocabularies import chat_markup
from treadle.engine.structured.form import JsonForm
from treadle.engine.structured.grammar import GrammarConstraint, Grammars
from treadle.models.tokenizer import Tokenizer

_CLOSING = b'"}],'


@cache
def byte_grammars() -> tuple[Tokenizer, Grammars]:
    tokenizer = Tokenizer.from_metadata(chat_markup())
    return tokenizer, Grammars(tokenizer)


def begin(schema: Mapping[str, Any] | bool) -> GrammarConstraint:
    return byte_grammars()[1].form(JsonForm(schema)).constraint()


def allowed(constraint: GrammarConstraint, vocab_size: int) -> list[int]:
    bits = np.unpackbits(constraint.allowed_tokens().view(np.uint8), bitorder="little")[:vocab_size]
    return [int(token) for token in np.flatnonzero(bits)]


def walk(schema: Mapping[str, Any] | bool, seed: int, max_tokens: int = 400) -> str | None:
    """Any text that the grammar of a schema allows, or None if it did not end in time."""
    tokenizer, _ = byte_grammars()
    constraint, draw = begin(schema), random.Random(seed)
    text = bytearray()
    for _ in range(max_tokens):
        tokens = allowed(constraint, tokenizer.vocab_size)
        if draw.random() < 0.3:
            closing = [token for token in tokens if tokenizer.token_bytes(token) in (b"", *map(bytes, zip(_CLOSING)))]
            tokens = closing or tokens
        if (token := draw.choice(tokens)) in tokenizer.eog_ids:
            return text.decode()
        constraint.accept(token)
        text += tokenizer.token_bytes(token)
    return None


def accepts(schema: Mapping[str, Any] | bool, text: str) -> bool:
    """Whether the grammar of a schema allows a text, from its beginning to its end."""
    tokenizer, _ = byte_grammars()
    constraint = begin(schema)
    for byte in text.encode():
        [token] = [token for token in range(256) if tokenizer.token_bytes(token) == bytes([byte])]
        if token not in allowed(constraint, tokenizer.vocab_size):
            return False
        constraint.accept(token)
    return not tokenizer.eog_ids.isdisjoint(allowed(constraint, tokenizer.vocab_size))

"""Small vocabularies as GGUF metadata, for tests that need a tokenizer but no model."""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def gpt2_alphabet() -> list[str]:
    """The character GPT-2's byte-pair vocabularies spell each byte with, by byte value."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def byte_pair(
    *special: tuple[str, int], merges: tuple[str, ...] = ("h e", "l l", "he ll", "hell o"), **keys: Any
) -> dict[str, Any]:
    """Metadata with the 256 bytes as tokens 0 to 255, then what the merges make, then the special tokens."""
    tokens = gpt2_alphabet() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + [kind for _, kind in special]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens + [text for text, _ in special],
        "token_type": types,
        "merges": list(merges),
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def chat_markup(**keys: Any) -> dict[str, Any]:
    """A byte-pair vocabulary with ChatML's control tokens and a thinking tag that counts as text."""
    special = (("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL))
    tags = (("<think>", USER_DEFINED), ("</think>", USER_DEFINED), ("<tool_call>", USER_DEFINED))
    return byte_pair(*special, *tags, **{"bos_token_id": 260, "eos_token_id": 262, **keys})


def sentence_pieces(pieces: dict[str, float], *special: tuple[str, int], **keys: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: unknown, BOS and EOS, the 256 bytes, the special tokens, the pieces."""
    head = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    head += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    head += special
    metadata = {
        "model": "llama",
        "tokens": [text for text, _ in head] + list(pieces),
        "token_type": [kind for _, kind in head] + [NORMAL] * len(pieces),
        "scores": [0.0] * len(head) + list(pieces.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}

"""The vocabulary a GGUF file carries: its tokens, what kind each is, and the ids with a meaning, all checked.

Turning text into tokens and back is left to the encoders and to ``tokenizer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from treadle.errors import ModelFileError

__all__ = ["ID_NAMES", "Vocabulary", "read_flag", "read_list", "read_scores"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# Tokens with a role, and what the file calls them.
ID_NAMES = {role: role for role in ("bos", "eos", "eot", "eom", "unknown", "padding")} | {"sep": "seperator"}

# Spellings that end an answer in the model families of the field; the file names only one or two of them.
_END_SPELLINGS = frozenset(
    {
        "</s>", "<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<end_of_utterance>", "<EOT>", "_<EOT>",
        "[EOT]", "[EOS]", "[e~[", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>",
        "<|end_of_text|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<｜end▁of▁sentence｜>",
        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    }
)  # fmt: skip
# Spellings that open a turn. Converters sometimes file these, and the ends above, as user-defined text tokens;
# taking their word for it would let a user's text open or close turns.
_TURN_SPELLINGS = frozenset(
    {"<s>", "<bos>", "<|im_start|>", "<start_of_turn>", "<|turn>", "<|start_header_id|>", "<|end_header_id|>"}
    | {"<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"}
)


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id, and which ids are more than text."""

    tokens: list[str]
    control: Mapping[str, int]
    """Tokens only a template may place, by spelling; unknown-token placeholders are among them."""
    user_defined: Mapping[str, int]
    """Tokens matched in any text before everything else, by spelling."""
    byte_ids: Mapping[int, int]
    """Byte value to the id of the token that stands for it, where the vocabulary has such tokens."""
    special_ids: Mapping[str, int]
    """The ids the file names, by role: bos, eos, eot, eom, unknown, padding, sep."""
    unused_ids: frozenset[int] = frozenset()
    """Places in the vocabulary that are there to be filled later."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Read and check the token lists of a GGUF file.

        Raises:
            ModelFileError: A key is missing, has the wrong type, or contradicts another; the text names it.
        """
        tokens = read_list(metadata, "tokenizer.ggml.tokens", str)
        if not tokens:
            raise ModelFileError("tokenizer.ggml.tokens: expected at least one token, found none")
        _check_no_duplicates(tokens)
        types = _read_types(metadata, tokens)
        special_ids = _read_special_ids(metadata, len(tokens))
        control, user_defined, byte_ids = {}, {}, {}
        for token_id, kind in enumerate(types):
            text = tokens[token_id]
            if kind == _BYTE:
                byte_ids[_parse_byte(token_id, text)] = token_id
            elif not text or kind in (_NORMAL, _UNUSED):
                continue
            elif kind == _USER_DEFINED and text not in _END_SPELLINGS | _TURN_SPELLINGS:
                user_defined[text] = token_id
            else:
                control[text] = token_id
        unused_ids = frozenset(token_id for token_id, kind in enumerate(types) if kind == _UNUSED)
        return cls(tokens, control, user_defined, byte_ids, special_ids, unused_ids)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """The ids no text may turn into."""
        return frozenset(self.control.values())

    @cached_property
    def literal_ids(self) -> frozenset[int]:
        """The ids whose text is spelled plainly, not in the vocabulary's own encoding."""
        return self.control_ids | frozenset(self.user_defined.values())

    @cached_property
    def byte_values(self) -> Mapping[int, int]:
        """Id of a byte token to the byte it stands for."""
        return {token_id: byte for byte, token_id in self.byte_ids.items()}

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends an answer: those the file names and the well-known ones among its control tokens."""
        known = {token_id for text, token_id in self.control.items() if text in _END_SPELLINGS}
        # In the harmony and solar dialects <|end|> closes a message, after which the answer goes on.
        if {"<|return|>", "<|call|>"} <= self.control.keys() or {"<|calls|>", "<|flush|>"} <= self.control.keys():
            known.discard(self.control.get("<|end|>", -1))
        # Where <eos> ends a text, as in Gemma, </s> is the tag of HTML.
        if "<eos>" in self.control:
            known.discard(self.control.get("</s>", -1))
        return frozenset(known | {self.special_ids[role] for role in ("eos", "eot", "eom") if role in self.special_ids})


def read_list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """The list under a key, its elements all of one type.

    Raises:
        ModelFileError: The key is missing, or holds something else.
    """
    found = metadata.get(key)
    if not isinstance(found, list):
        problem = "is missing" if found is None else f"expected a list, found {type(found).__name__}"
        raise ModelFileError(f"{key}: {problem}")
    wrong = set(map(type, found)) - {kind}
    if wrong:
        names = ", ".join(sorted(each.__name__ for each in wrong))
        raise ModelFileError(f"{key}: expected a list of {kind.__name__}, found elements of type {names}")
    return found


def read_flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """The yes or no under a key.

    Raises:
        ModelFileError: The key holds something else.
    """
    found = metadata.get(key, default)
    if not isinstance(found, bool):
        raise ModelFileError(f"{key}: expected true or false, found {found!r:.80}")
    return found


def _check_no_duplicates(tokens: list[str]) -> None:
    seen: dict[str, int] = {}
    if len(set(tokens)) == len(tokens):
        return
    for token_id, text in enumerate(tokens):
        if text and text in seen:
            raise ModelFileError(f"tokenizer.ggml.tokens: {text!r:.80} has two ids, {seen[text]} and {token_id}")
        seen[text] = token_id


def _read_types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return [_NORMAL] * len(tokens)
    types = read_list(metadata, key, int)
    if len(types) != len(tokens):
        raise ModelFileError(f"{key}: expected one for each of {len(tokens)} tokens, found {len(types)}")
    unknown = set(types) - {_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE}
    if unknown:
        raise ModelFileError(f"{key}: expected token types 1 to 6, found {min(unknown)}")
    return types


def _read_special_ids(metadata: Mapping[str, Any], num_tokens: int) -> dict[str, int]:
    ids = {}
    for role, name in ID_NAMES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        found = metadata.get(key)
        if found is None:
            continue
        if not _is_int(found) or not 0 <= found < num_tokens:
            raise ModelFileError(f"{key}: expected an id below {num_tokens}, found {found!r:.80}")
        ids[role] = found
    return ids


def _parse_byte(token_id: int, text: str) -> int:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            pass
    raise ModelFileError(f"tokenizer.ggml.tokens: byte token {token_id} expected like <0x0A>, found {text!r:.80}")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def read_scores(metadata: Mapping[str, Any], num_tokens: int) -> list[float]:
    """The merge priority of each token of a SentencePiece vocabulary.

    Raises:
        ModelFileError: There is not one finite number for each token.
    """
    key = "tokenizer.ggml.scores"
    scores = read_list(metadata, key, float)
    if len(scores) != num_tokens:
        raise ModelFileError(f"{key}: expected one for each of {num_tokens} tokens, found {len(scores)}")
    if not all(map(math.isfinite, scores)):
        raise ModelFileError(f"{key}: expected finite numbers, found infinity or NaN")
    return scores

"""How text is cut into words before byte-pair merges run, by the name a GGUF file gives.

The merges themselves are the business of ``byte_pair``; SentencePiece vocabularies need no such cut.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from treadle.errors import UnsupportedModelError

__all__ = ["WordCut", "word_cut"]


@dataclass(frozen=True)
class WordCut:
    """One way to cut text: each pattern in turn splits every piece into its matches and what lies between."""

    patterns: tuple[str, ...]
    whole_words_first: bool = False
    """A word that is a token is that token, whatever the merges say."""
    add_bos: bool = False
    """What holds when the file does not say ``add_bos_token``."""


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MIXED_CASE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER_CASE = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS_THEN = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS_THEN}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS_THEN}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_MIXED_CASE}*{_LOWER_CASE}+|[^\r\n\p{{L}}\p{{N}}]?{_MIXED_CASE}+{_LOWER_CASE}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_MIXED_CASE}*{_LOWER_CASE}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_MIXED_CASE}+{_LOWER_CASE}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SEED_CODER = rf"{_CONTRACTIONS}|{_LETTERS_THEN}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_CJK_OF_DEEPSEEK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The cased letters the DeepSeek LLM tokenizer was trained with: fewer than any Unicode property holds today.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ"
    "Ἐ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤ"
    "Ⳬ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_SENTENCE_END = " ?[^(\\s|.,!?…。，、।۔،)]+"
_PUNCTUATION_RUN = r"[\p{P}\$\+<=>\^~\|]+"

_GPT2_WORDS = WordCut((_GPT2,))
_SINGLE_DIGITS = WordCut((r"\p{N}", _GPT2))
_LLAMA3_WORDS = WordCut((_LLAMA3,), whole_words_first=True, add_bos=True)
_LLAMA3_MERGES = WordCut((_LLAMA3,))
_QWEN2_WORDS = WordCut((_QWEN2,))
_GPT4O_WORDS = WordCut((_GPT4O,))
_DEEPSEEK_V3_WORDS = WordCut((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3))
_BAILING_WORDS = WordCut((_BAILING,))
_SENTENCES = WordCut((_SENTENCE_END,))
_DEFAULT = WordCut((_PUNCTUATION_RUN, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_WORD_CUTS: dict[str, WordCut] = {
    "default": _DEFAULT,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_WORDS
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA3_MERGES),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2", "kormo"), _QWEN2_WORDS),
    "solar-open": _QWEN2_WORDS,
    "qwen35": WordCut((_QWEN35,)),
    "tekken": WordCut((_TEKKEN,), whole_words_first=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2"), _GPT4O_WORDS),
    "tiny_aya": WordCut((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "deepseek-llm": WordCut(
        (
            "[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _CJK_OF_DEEPSEEK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": WordCut(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_OF_DEEPSEEK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK_V3_WORDS),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _SINGLE_DIGITS
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "gigachat", "granite-docling", "exaone4", "a.x-4.0"),
        _GPT2_WORDS,
    ),
    **dict.fromkeys(("mellum", "modern-bert"), _GPT2_WORDS),
    "falcon": WordCut((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _SENTENCES),
    "viking": WordCut((_SENTENCE_END, r"\p{N}")),
    "seed-coder": WordCut((_SEED_CODER,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_WORDS),
    "minicpm5": WordCut(
        (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_LETTERS_THEN}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), whole_words_first=True
    ),
}


def word_cut(name: str | None) -> WordCut:
    """The cut that ``tokenizer.ggml.pre`` names.

    ``None`` stands for a file without that key, as converters wrote before May 2024: it gets ``default`` and a
    warning, for its tokens may differ from those the model was trained on.

    Raises:
        UnsupportedModelError: Nobody here knows the name; guessing would degrade answers without a sign.
    """
    if name is None:
        warnings.warn(
            "the model file has no tokenizer.ggml.pre, so words are cut in the default way and answers may suffer; "
            "convert the model again with a current converter",
            stacklevel=2,
        )
        return _DEFAULT
    if name not in _WORD_CUTS:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre: expected a known pre-tokenizer, found {name!r}",
            hint=f"known: {', '.join(sorted(_WORD_CUTS))}",
        )
    return _WORD_CUTS[name]

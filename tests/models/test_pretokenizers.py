"""How each family's word cut splits text, written out by hand from the rules the families publish."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from treadle.errors import ModelFileError
from treadle.models.pretokenizers import WordCut, word_cut


def split(cut: WordCut, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll see 1234!!  you", ["I", "'ll", " see", " 1234", "!!", " ", " you"]),
        ("gpt-2", "WE'LL\n\n x", ["WE", "'", "LL", "\n\n", " x"]),
        ("llama-bpe", "WE'LL pay 12345!\n", ["WE", "'LL", " pay", " ", "123", "45", "!\n"]),
        ("llama-bpe", "#tag\n\n\n  x", ["#tag", "\n\n\n", " ", " x"]),
        ("qwen2", "WE'LL pay 123", ["WE", "'LL", " pay", " ", "1", "2", "3"]),
        ("qwen35", "e\u0301tude", ["e\u0301tude"]),
        ("qwen2", "e\u0301tude", ["e", "\u0301tude"]),
        ("smollm", "a 12b", ["a", " ", "1", "2", "b"]),
        ("tekken", "HelloWorld ABCdef 123/\n", ["Hello", "World", " ABCdef", " ", "1", "2", "3", "/\n"]),
        ("gpt-4o", "HelloWorld it's 1234", ["Hello", "World", " it's", " ", "123", "4"]),
        ("tiny_aya", "HelloWorld it's 1234567 12", ["Hello", "World", " it's", " ", "1", "234", "567", " ", "12"]),
        ("deepseek-llm", "a\n\n1234", ["a", "\n", "\n", "1234"]),
        ("deepseek-llm", " Hi, 漢字ab", [" Hi", ",", " ", "漢字", "ab"]),
        ("deepseek-coder", "x1=22", ["x", "1", "=", "2", "2"]),
        ("deepseek-v3", "501 1234", ["501", " ", "123", "4"]),
        ("deepseek-v3", ".foo 漢字です!\n", [".foo", " ", "漢字です", "!\n"]),
        ("falcon", "1234==x", ["123", "4", "==", "x"]),
        ("seed-coder", "a!\n1", ["a", "!", "\n", "1"]),
        ("bailingmoe", "it's!\n\n", ["it", "'s", "!\n\n"]),
        ("viking", "Hei, 12", ["Hei", ",", " ", "1", "2"]),
        ("minicpm5", "x 1234", ["x", " ", "123", "4"]),
        ("default", "it's $5, 1234", ["it", "'", "s", " ", "$", "5", ",", " ", "123", "4"]),
    ],
)
def test_text_is_cut_as_the_family_does(name: str, text: str, words: list[str]) -> None:
    assert split(word_cut(name), text) == words


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama3", "llama-bpe"),
        ("llama-v3", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("starcoder", "smollm"),
        ("refact", "smollm"),
        ("command-r", "smollm"),
        ("solar-open", "qwen2"),
        ("olmo", "gpt-2"),
        ("llama4", "gpt-4o"),
        ("bloom", "poro-chat"),
    ],
)
def test_families_that_share_a_cut(alias: str, name: str) -> None:
    assert word_cut(alias) == word_cut(name)


def test_llama_3_takes_whole_words_and_begins_with_bos() -> None:
    assert word_cut("llama-bpe").whole_words_first
    assert word_cut("llama-bpe").add_bos
    assert not word_cut("smaug-bpe").whole_words_first
    assert word_cut("smaug-bpe").patterns == word_cut("llama-bpe").patterns


def test_a_name_nobody_knows_is_an_error_that_says_it() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.pre.*'qwen99'"):
        word_cut("qwen99")


def test_a_file_that_names_none_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"no tokenizer\.ggml\.pre"):
        assert word_cut(None) == word_cut("default")

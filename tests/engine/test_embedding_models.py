"""Embeddings of encoders, which do nothing else, on both engines; and through llama.cpp of models that answer as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Format
from gguf import PoolingType
from numpy.typing import NDArray

from command import treadle
from oracles.foreign_model import ForeignModel
from oracles.numpy_encoder import ENCODERS, NumpyEncoder
from oracles.tiny_encoder import UNIGRAM_VOCABULARY, VOCABULARY, TinyEncoder
from oracles.tiny_model import TinyModel
from patience import PATIENCE_SECONDS
from running_server import RunningServer
from treadle import LLM, SamplingParams, UnsupportedModelError, UsageError
from treadle.errors import ContextError
from treadle.server.settings import ServerSettings

TEXT = "The inns, cat sat."
TEXTS = [f"{'the river ' * (index % 23)}cat" for index in range(60)]
REFUSAL = "tiny bert turns texts into vectors and gives no answers"


@pytest.fixture(scope="module")
def bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyEncoder().write(tmp_path_factory.mktemp("bert") / "bert.gguf")


@pytest.fixture(scope="module", params=["native", "llamacpp"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def bert(bert_path: Path, engine: str) -> Iterator[LLM]:
    with LLM(bert_path, engine=engine, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(ForeignModel().write(tmp_path_factory.mktemp("foreign") / "foreign.gguf"), threads=1) as llm:
        yield llm


def unit(vector: NDArray[Any]) -> NDArray[Any]:
    return vector / np.linalg.norm(vector)


def test_words_are_cut_into_pieces_between_the_tokens_of_a_text(bert: LLM) -> None:
    assert [VOCABULARY[token_id] for token_id in bert.tokenize(TEXT)] == [
        *("[CLS]", "▁the", "▁inn", "s", "▁,", "▁cat", "▁sat", "▁.", "[SEP]")
    ]
    cls, sep = (VOCABULARY.index(text) for text in ("[CLS]", "[SEP]"))
    written = bert.tokenize("[CLS] the [SEP]")
    assert (written.count(cls), written.count(sep)) == (1, 1)
    assert bert.tokenize("") == []
    assert bert.detokenize(bert.tokenize("the cat")).strip() == "the cat"


def test_a_multilingual_encoder_reads_texts_as_llama_cpp_does(tmp_path: Path) -> None:
    """As XLM-RoBERTa: the converter took away the rows of positions that no text has, so the first one is the first."""
    path = TinyEncoder(vocabulary=UNIGRAM_VOCABULARY).write(tmp_path / "roberta.gguf")
    texts = [
        "the cat",
        "  The\tcats,  sitting ",
        "北京ﬁ北京 e\u0301\u0301",
        "Ａ☃☃ ☃\u00ad\u3000the",
        "</s><unk>▁▁ <s>",
        "\u0300",
    ]
    with LLM(path, engine="native", threads=1) as own, LLM(path, engine="llamacpp", threads=1) as other:
        for text in texts:
            assert own.tokenize(text) == other.tokenize(text), text
        assert [UNIGRAM_VOCABULARY[each] for each in own.tokenize("the cats")] == ["<s>", "▁the", "▁cat", "s", "</s>"]
        assert np.min(np.sum(own.embed(texts) * other.embed(texts), axis=1)) > 0.999


@pytest.mark.parametrize(
    ("in_file", "pooling"),
    [(PoolingType.MEAN, "mean"), (PoolingType.CLS, "cls"), (PoolingType.LAST, "last"), (None, "mean")],
)
def test_an_encoder_gives_the_vectors_of_the_paper(
    tmp_path: Path, engine: str, in_file: PoolingType | None, pooling: str
) -> None:
    path = TinyEncoder(pooling=in_file).write(tmp_path / "bert.gguf")
    model = NumpyEncoder(path, exact_gelu=True)
    with LLM(path, engine=engine, threads=1) as llm:
        assert llm.report.pooling == pooling
        for text in (TEXT, "a", TEXTS[22]):
            states = model.states(llm.tokenize(text))
            expected = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}
            assert llm.embed(text) @ unit(expected[pooling]) > 0.9999
            for name, vector in expected.items():
                found = llm.embed(text, pooling=name, normalize=False)  # type: ignore[call-overload]
                np.testing.assert_allclose(found, vector, atol=0.02)


def test_texts_share_the_calls_and_keep_their_vectors(bert: LLM) -> None:
    before = bert.stats().scheduler.num_steps
    together = bert.embed(TEXTS)
    assert bert.stats().scheduler.num_steps - before <= 8
    assert together.shape == (60, 32)
    np.testing.assert_allclose(together, [bert.embed(text) for text in TEXTS], atol=0.002)


def test_a_text_longer_than_a_usual_step_is_read_in_one_piece(tmp_path: Path, engine: str) -> None:
    path = TinyEncoder(context_length=700).write(tmp_path / "long.gguf")
    model = NumpyEncoder(path)
    with LLM(path, engine=engine, threads=1) as llm:
        texts = ["cat", "the river " * 340, "the inn"]
        for text, vector in zip(texts, llm.embed(texts), strict=True):
            assert vector @ unit(model.states(llm.tokenize(text)).mean(axis=0)) > 0.9999


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("the " * 63, ContextError, "65 tokens; a context of 64 has room for 64"),
        ("the " * 9999, ContextError, "far more than 64 tokens"),
        ("", UsageError, "is empty"),
    ],
)
def test_texts_that_do_not_fit_are_refused(bert: LLM, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bert.embed(text)
    assert bert.embed("the " * 62).shape == (32,)


def test_an_encoder_gives_no_answers(bert: LLM, bert_path: Path) -> None:
    messages = [{"role": "user", "content": "the"}]
    for ask in (lambda: bert.generate("the"), lambda: bert.chat(messages), lambda: list(bert.stream("the"))):
        with pytest.raises(UsageError, match=REFUSAL):
            ask()
    refused = treadle("run", "the", "-m", bert_path)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"error: {REFUSAL}\nhint: use `LLM.embed`, or `treadle serve`")


def test_models_that_rank_without_a_head_are_refused(tmp_path: Path) -> None:
    path = TinyEncoder(pooling=PoolingType.RANK).write(tmp_path / "rank.gguf")
    for engine, problem in (("", "ranks documents, which is not run"), ("native", "but without its head")):
        with pytest.raises(UnsupportedModelError, match=problem):
            LLM(path, engine=engine)


def test_what_the_core_does_not_know_runs_through_llama_cpp(tmp_path: Path) -> None:
    path = TinyEncoder().write(tmp_path / "other.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.bias", b"blk.1.ffn_up.mias"))
    with pytest.raises(UnsupportedModelError, match=r"mias' is not part of a bert model"):
        LLM(path, engine="native")


def test_a_server_embeds_and_says_that_it_does_nothing_else(bert: LLM, bert_path: Path, engine: str) -> None:
    server = RunningServer(bert_path, ServerSettings(), context=64, engine=engine)
    try:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["smollm2"]
            answer = http.post("/v1/embeddings", json={"model": "smollm2", "input": TEXTS[:20]}).json()
            found = [item["embedding"] for item in answer["data"]]
            np.testing.assert_allclose(found, bert.embed(TEXTS[:20]), atol=0.002)
            refused = http.post("/v1/embeddings", json={"input": ["cat", "the " * 63]})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
            chat = {"model": "smollm2", "messages": [{"role": "user", "content": "the"}], "max_tokens": 4}
            for path, body in (
                ("/v1/chat/completions", chat),
                ("/v1/chat/completions", {**chat, "stream": True}),
                ("/v1/completions", {"prompt": "the"}),
                ("/v1/responses", {"input": "the"}),
                ("/v1/messages", chat),
            ):
                refused = http.post(path, json=body)
                assert refused.status_code == 400, path
                assert REFUSAL in refused.text
    finally:
        server.close()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_model_that_answers_embeds_as_the_core_does(tmp_path: Path, pooling: Any) -> None:
    path = TinyModel(format=Format.F32).write(tmp_path / "exact.gguf")
    texts = ["the inn", "the inn in the " * 60, "in"]
    found = []
    for engine in ("native", "llamacpp"):
        with LLM(path, engine=engine, threads=1) as llm:
            found.append(llm.embed(texts, pooling=pooling))
    assert np.min(np.sum(found[0] * found[1], axis=1)) > 0.999
    assert found[0][0] @ found[0][1] < 0.999


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_model_of_unknown_architecture_embeds_between_answers(foreign: LLM, pooling: Any) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    expected = foreign.generate("the inn", greedy).token_ids
    together = foreign.embed(TEXTS, pooling=pooling)
    for text, vector in list(zip(TEXTS, together, strict=True))[::9]:
        np.testing.assert_allclose(foreign.embed(text, pooling=pooling), vector, atol=0.01)
    with foreign.stream("the inn", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)) as stream:
        first = [token_id for _ in range(3) for token_id in next(stream).token_ids]
        foreign.embed(TEXTS[:6], pooling=pooling)
    assert first == expected[: len(first)]
    assert foreign.generate("the inn", greedy).token_ids == expected
    with pytest.raises(UsageError, match="'cls' is for models that read in both directions"):
        foreign.embed("the", pooling="cls")


@pytest.mark.parametrize("architecture", sorted(ENCODERS))
def test_the_core_gives_the_vectors_of_llama_cpp(tmp_path: Path, architecture: str) -> None:
    """Of EmbeddingGemma without the products behind its states, which that engine leaves out."""
    fused = architecture == "modern-bert"  # that engine knows no others
    path = TinyEncoder(architecture=architecture, num_layers=7, dense=False, fused=fused).write(tmp_path / "tiny.gguf")
    texts = [TEXT, "a", *TEXTS[:23:6]]
    found = []
    for engine in ("native", "llamacpp"):
        with LLM(path, engine=engine, threads=1) as llm:
            found.append(llm.embed(texts))
            tokens = [llm.tokenize(text) for text in texts]
    exact = np.array([NumpyEncoder(path).embed(ids) for ids in tokens])
    cosines = np.sum(found[0] * found[1], axis=1)
    assert 1 - cosines.min() <= 2 * (1 - np.sum(found[1] * exact, axis=1).min()) + 1e-5


def test_products_behind_the_states_are_the_cores_alone(tmp_path: Path) -> None:
    path = TinyEncoder(architecture="gemma-embedding").write(tmp_path / "tiny.gguf")
    with LLM(path, threads=1) as llm:
        expected = NumpyEncoder(path).embed(llm.tokenize(TEXT))
        assert llm.embed(TEXT) @ expected > 0.9999
    with pytest.raises(
        UnsupportedModelError, match="products behind the states of gemma-embedding are not run through"
    ):
        LLM(path, engine="llamacpp")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("plan",), "KV cache        none"),
        (("plan", "--json"), '"kv_bytes": 0'),
        (("show",), "architecture   bert"),
        (("profile",), "turns texts into vectors; a profile is for models that answer"),
        (("tune",), "turns texts into vectors; tuning is for models that answer"),
        (("run", "hi", "-m"), REFUSAL),
        (("chat", "-m"), REFUSAL),
    ],
)
def test_commands_say_what_an_encoder_is(bert_path: Path, command: tuple[str, ...], text: str) -> None:
    done = treadle(command[0], bert_path, *command[1:]) if "-m" not in command else treadle(*command, bert_path)
    assert text in done.out + done.err
    assert done.code == (text[:4] not in ("KV c", '"kv_', "arch"))


def test_last_pooling_of_a_model_that_answers_is_the_files_word(tmp_path: Path) -> None:
    """As Qwen3-Embedding asks for it."""
    path = TinyModel(architecture="qwen3", keys={"pooling_type": 3}).write(tmp_path / "tiny.gguf")
    with LLM(path, threads=1) as llm:
        assert llm.report.pooling == "last"
        np.testing.assert_array_equal(llm.embed("the inn"), llm.embed("the inn", pooling="last"))

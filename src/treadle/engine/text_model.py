"""What models make of whole texts, in the calls that wait for it: vectors, scores, tokens.

Leaves to others: answers (``LLM``) and computing (``EmbeddingBatch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from treadle.engine.answer import Mailbox
from treadle.engine.embedding import EmbeddingOptions, Pooling
from treadle.engine.embedding_batch import EmbeddingBatch
from treadle.engine.hosted_model import HostedModel
from treadle.engine.prompt import EncodedPrompt, Prompt, PromptList, is_prompt
from treadle.engine.ranking import SCORES, RankedDocument, RankingOptions, rank
from treadle.engine.service import Service

if TYPE_CHECKING:
    from treadle.engine.embedding import Embedding
    from treadle.engine.request import Priority

__all__ = ["TextModel"]


class TextModel(HostedModel):
    """A model in memory that reads whole texts."""

    def embed(
        self,
        inputs: Prompt | PromptList,
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        priority: Priority | None = None,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """Return the vector of an input, [dimensions], or those of a list of inputs, [inputs, dimensions].

        The vectors of the native core are the same bits whatever else is computed beside them.

        Args:
            inputs: Text, whose control tokens are plain text, a list of token ids, or a list of either.
            pooling: "mean" of the last layer's states of all tokens, or the state of the "last" token or, of a model
                that reads in both directions, of the first one ("cls"); by default what the model file asks for, or
                else "mean".
            normalize: Whether to give every vector the length 1, so that products of two are their cosine.
            dimensions: How many of the leading numbers to keep, for models trained to be cut; by default all.
            truncate_prompt_tokens: Longer inputs lose their end, so that so many tokens are left; -1 stands for the
                context. By default an input that is too long is an error.
            priority: "interactive", the default for one input, goes before "batch", the default for a list.
            timeout: Seconds from now in which all of them must be done.

        Raises:
            UsageError: An input is empty or too long for the context, an argument is wrong, or the model was closed.
            CapacityError: An input could never fit in the KV blocks.
            DeadlineError: The time was up.
            ModelFileError: The model gave numbers that are none.
        """
        is_one = is_prompt(inputs)
        listed = [inputs] if is_one or not isinstance(inputs, list) else inputs
        prompts = self._host.prompts.read_all(listed, truncate_prompt_tokens)
        options = EmbeddingOptions(pooling, normalize, dimensions)
        found = self._read(prompts, options, Service(priority or ("interactive" if is_one else "batch"), timeout))
        vectors = [embedding.vector for embedding in found]
        return vectors[0] if is_one else np.array(vectors, dtype=np.float32)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        priority: Priority = "interactive",
        timeout: float | None = None,
    ) -> list[RankedDocument]:
        """Return how well documents answer a query, the best first; for models that were trained to tell (rerankers).

        The scores of the native core are the same bits whatever else is computed beside them.

        Args:
            query: What is asked; control tokens in it and in documents are plain text.
            documents: What may answer it; each is read together with the query.
            top_n: How many to return; by default all.
            normalize: Whether scores are probabilities, from 0 to 1; otherwise they are the logits behind them.
            truncate_prompt_tokens: Documents lose their end where they and the query together have more tokens; -1
                stands for the context. By default a pair that is too long is an error.
            priority: As in ``embed``.
            timeout: Seconds from now in which all of them must be done.

        Raises:
            UsageError: The model does not rank, a text is wrong or too long, an argument is out of range, or the model
                was closed.
            CapacityError: A pair could never fit in the KV blocks.
            DeadlineError: The time was up.
            ModelFileError: The model gave numbers that are none.
        """
        options = RankingOptions(top_n, normalize)
        pairs = self._host.prompts.read_pairs(query, documents, truncate_prompt_tokens)
        return rank(self._read(pairs, SCORES, Service(priority, timeout)), options)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text``, as ``generate`` takes them; control tokens in it are plain text."""
        return self._host.tokenizer.encode(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``; control tokens have none."""
        return self._host.tokenizer.decode(list(token_ids))

    def _read(self, prompts: Sequence[EncodedPrompt], options: EmbeddingOptions, service: Service) -> list[Embedding]:
        mailbox = Mailbox(wakes_for_each=True)
        with EmbeddingBatch(self._host, prompts, options, service, mailbox.deliver) as batch:
            while batch.advance():
                batch.take([mailbox.get()])
        return batch.results

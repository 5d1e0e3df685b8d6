"""Grammars that answers must follow: forms and framed tool calls, compiled once and kept.

Leaves to others: applying masks to logits (the native sampler) and running forced tokens (the scheduler). The grammar
engine is llguidance; what it cannot enforce is refused here, never dropped.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.engine.structured.form import ChoiceForm, JsonForm
from treadle.engine.structured.json_schema import enforceable
from treadle.engine.structured.number_limit import DigitTokens, NumberLimit
from treadle.engine.structured.schema_fault import explain
from treadle.engine.structured.schema_trial import try_grammar
from treadle.errors import UsageError

if TYPE_CHECKING:
    import llguidance

    from treadle.engine.structured.form import AnswerForm
    from treadle.models.tokenizer import Tokenizer

__all__ = ["Grammar", "GrammarConstraint", "Grammars", "Rules", "form_rule", "json_rule", "literal"]

MAX_GRAMMAR_BYTES = 256 << 10
_MAX_KEPT = 64
# White space is fixed to what JSON in the wild mostly has, so that a model can neither pad without end nor be forced
# into a spacing it rarely saw.
# Every character has one spelling, so that no name of an object can be written as if it were another.
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'bfnrt"\\',
}
# As many names of an object as a schema of the largest size can have need more than the grammar engine's 2000.
_MAX_ALTERNATIVES = 20_000
_UNSATISFIABLE = "NoExtensionBias"

Mask = np.ndarray[tuple[int], np.dtype[np.uint32]]


def literal(text: str) -> str:
    """Return ``text`` as a term of a grammar."""
    return json.dumps(text, ensure_ascii=False)


class Rules(NamedTuple):
    """A grammar in llguidance's dialect of Lark; ``is_json`` says that answers are JSON, be it in a frame."""

    text: str
    is_json: bool = True


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the term for JSON that satisfies ``schema``, which is one that ``enforceable`` has made."""
    return "%json " + json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=False)


def form_rule(form: AnswerForm) -> str:
    """Return the term for text of that form."""
    if isinstance(form, JsonForm):
        assert isinstance(form.schema, Mapping)
        return json_rule(enforceable(form.schema))
    if isinstance(form, ChoiceForm):
        return "(" + " | ".join(map(literal, form.choices)) + ")"
    return f"/{_slashes_escaped(form.pattern)}/"


def _slashes_escaped(pattern: str) -> str:
    """Return a regular expression as the grammar takes it between slashes."""
    escaped = re.sub(r"(\\.)|/", lambda match: match[1] or "\\/", pattern, flags=re.DOTALL)
    return escaped.replace("\n", "\\n")


class Grammars:
    """Compiles grammars for the vocabulary of one model; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: _Vocabulary | None = None
        self._kept: OrderedDict[Rules, Grammar] = OrderedDict()

    def form(self, form: AnswerForm) -> Grammar:
        """Return the grammar of text of that form; raises as ``compile`` does."""
        return self.compile(Rules(f"start: {form_rule(form)}", isinstance(form, JsonForm)))

    def compile(self, rules: Rules) -> Grammar:
        """Return the compiled grammar.

        The first call for a model takes about a second for a vocabulary of 150,000 tokens; run it in a thread.

        Raises:
            UsageError: The grammar is too large, uses what cannot be enforced, or nothing satisfies it.
        """
        if len(rules.text) > MAX_GRAMMAR_BYTES:
            raise UsageError(
                f"the schemas of this request have {len(rules.text)} characters in all, "
                f"at most {MAX_GRAMMAR_BYTES} fit",
                hint="send fewer tools or smaller schemas",
                field="form",
            )
        with self._lock:
            if (grammar := self._kept.get(rules)) is not None:
                self._kept.move_to_end(rules)
                return grammar
            vocabulary = self._vocabulary = self._vocabulary or _Vocabulary(self._tokenizer)
        grammar = _compile(rules, vocabulary)
        with self._lock:
            self._kept[rules] = grammar
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return grammar


class Grammar:
    """A compiled grammar, to begin any number of answers with."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: _Vocabulary, *, is_json: bool) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._is_json = is_json

    def constraint(self) -> GrammarConstraint:
        """Return the state of a new answer."""
        numbers = NumberLimit(self._vocabulary.digits) if self._is_json else None
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary.lookup, numbers)


class GrammarConstraint:
    """What one answer may go on with; every method raises UsageError once the grammar has become too complex."""

    def __init__(
        self, matcher: llguidance.LLMatcher, lookup: llguidance.LLTokenizer, numbers: NumberLimit | None
    ) -> None:
        self._matcher = matcher
        self._end_ids = frozenset(lookup.eos_tokens)
        self._numbers = numbers
        self._mask: Mask = np.zeros((lookup.vocab_size + 31) // 32, dtype=np.uint32)

    def allowed_tokens(self) -> Mask:
        """Return one bit for each token of the vocabulary, set where the token may come next."""
        if not self._matcher.is_stopped():
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            if self._numbers is not None:
                self._numbers.restrict(self._mask)
        self._check()
        if self._matcher.is_stopped():  # the root is closed: only the end may follow
            self._mask[:] = 0
            for token_id in self._end_ids:
                self._mask[token_id // 32] |= np.uint32(1 << (token_id % 32))
        return self._mask

    def allows_text(self) -> bool:
        """Tell whether the answer may go on with anything but its end."""
        mask = self.allowed_tokens().copy()
        for token_id in self._end_ids:
            mask[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
        return bool(mask.any())

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next, as the tokenizer would cut their text; often none."""
        tokens = [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()
        self._check()
        return tokens

    def accept(self, token_id: int) -> None:
        """Go on by one token that the mask allowed."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token_id)
            if self._numbers is not None:
                self._numbers.accept(token_id)
        self._check()

    def _check(self) -> None:
        """A matcher that gave up looks like one whose root is closed, but its answer is not whole."""
        if self._matcher.is_error():
            cause = self._matcher.get_error().partition("\n")[0][:200]
            if cause == _UNSATISFIABLE:
                raise UsageError("the schema cannot be enforced: no JSON value satisfies it", field="form")
            raise UsageError(
                f"the schema is too complex to be enforced: {cause}",
                hint="use simpler patterns and fewer nested or optional parts",
                field="form",
            )


class _Vocabulary:
    """The tokens of one model, in the form llguidance reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance  # noqa: PLC0415  only structured answers need it

        if not tokenizer.eog_ids:
            raise UsageError(
                "this model's vocabulary has no token that ends an answer, so answers cannot be given a form"
            )
        self._tokenizer = tokenizer
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else min(tokenizer.eog_ids)
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.vocabulary.control_ids)
        self.digits = DigitTokens(self.tokens)
        wrapper = llguidance.TokenizerWrapper(self)
        self.lookup = llguidance.LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eog_ids))

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(), add_bos=False)


def _compile(rules: Rules, vocabulary: _Vocabulary) -> Grammar:
    import llguidance  # noqa: PLC0415

    try_grammar(rules.text)
    matcher = llguidance.LLMatcher(
        vocabulary.lookup,
        llguidance.LLMatcher.grammar_from_lark(rules.text),
        log_level=0,
        limits=llguidance.LLParserLimits(max_items_in_row=_MAX_ALTERNATIVES),
    )
    if matcher.is_error():
        problem = f"the schema cannot be enforced: {explain(rules.text, matcher.get_error())}"
        raise UsageError(problem, field="form")
    grammar = Grammar(matcher, vocabulary, is_json=rules.is_json)
    begin = grammar.constraint()
    if not begin.forced_tokens() and not begin.allows_text():
        raise UsageError("the schema cannot be enforced: no JSON value satisfies it", field="form")
    return grammar

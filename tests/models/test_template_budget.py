"""Hostile chat templates: refused, or stopped within their budget of steps, time and memory."""

from __future__ import annotations

import threading
import time
import tracemalloc
from contextlib import suppress

import pytest

from tiny_vocabularies import byte_pair
from treadle.errors import TemplateError
from treadle.models.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
MAX_SECONDS = 5.0
MAX_BYTES = 500_000_000

NESTED = (
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}"
)
DOUBLED = "{% set n = namespace(x='abcdefgh', y='abcdefgh') %}{% for i in range(60) %}BODY{% endfor %}"
GROWING = "{% set s = 'a' * 900000 %}{% set n = namespace(x=[]) %}{% for i in range(99999) %}BODY{% endfor %}"

REFUSED = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "mutation": "{{ messages.append(1) }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format('') }}",
    "attr filter": "{{ (''|attr('__class__')).__mro__ }}",
    "integer bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "striptags": "{{ ('a'|escape).striptags() }}",
    "translate": "{{ 'a'.translate({97: 'b' * 900000}) }}",
}
STOPPED = {
    "nested loops": NESTED,
    "loops that skip": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops in filters": "{% for a in range(99999) %}{{ range(99999)|select('odd')|list|length }}{% endfor %}",
    "doubling macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "repeated text": "{{ 'a' * 1000000000 }}",
    "repeated list": "{{ [1] * 1000000000 }}",
    "power": "{{ 10 ** 1000000000 }}",
    "huge integer": "{{ ('f' * 900000)|int(0, 16) // 3 }}",
    "doubled by +": DOUBLED.replace("BODY", "{% set n.x = n.x + n.x %}"),
    "doubled by ~": DOUBLED.replace("BODY", "{% set n.x = n.x ~ n.x %}"),
    "doubled list shown": DOUBLED.replace("BODY", "{% set n.x = [n.x, n.x] %}") + "{{ n.x }}",
    "doubled list to json": DOUBLED.replace("BODY", "{% set n.x = [n.x, n.x] %}") + "{{ n.x|tojson }}",
    "doubled list joined": DOUBLED.replace("BODY", "{% set n.x = [n.x, n.x] %}") + "{{ n.x|join }}",
    "doubled lists compared": DOUBLED.replace("BODY", "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}")
    + "{{ n.x == n.y }}",
    "comparisons chained": DOUBLED.replace("BODY", "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}")
    + "{{ 1 != n.x == n.y }}",
    "doubled namespace": DOUBLED.replace("BODY", "{% set n.x = namespace(a=n.x, b=n.x) %}") + "{{ n.x }}",
    "namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "kept copies": GROWING.replace("BODY", "{% set n.x = n.x + [s.upper()] %}"),
    "kept slices": GROWING.replace("BODY", "{% set n.x = n.x + [s[1:]] %}"),
    "kept lists": GROWING.replace("BODY", "{% set n.x = n.x + [range(99999)|list] %}"),
    "long literals": GROWING.replace("BODY", "{% set x = [" + "1," * 20000 + "] %}"),
    "kept arguments": GROWING.replace("BODY", "{% set n.x = n.x + [cycler(*range(99999))] %}"),
    "output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "plain output": "{% for i in range(99999) %}" + "y" * 100_000 + "{% endfor %}",
    "block output": "{% set x %}{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}",
    "percent width": "{{ '%1000000000d' % 5 }}",
    "percent precision": "{{ '%.1000000000f' % 5 }}",
    "percent key": "{{ '%((a))1000000000d' % {'(a)': 5} }}",
    "percent zeros": "{{ '%0001000000000d' % 5 }}",
    "percent star": "{{ '%*d' % (1000000000, 5) }}",
    "format width": "{{ '{:1000000000}'.format(5) }}",
    "format nested": "{{ '{:{}}'.format(5, 1000000000) }}",
    "format filter": "{{ '%1000000000d'|format(5) }}",
    "center": "{{ 'x'|center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'x'|indent(1000000000) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "round": "{{ 2.5|round(1000000000, 'ceil') }}",
    "replace": "{{ ('a' * 90000).replace('a', 'b' * 90000) }}",
    "replace filter": "{{ ('a' * 90000)|replace('', 'b' * 90000) }}",
    "join": "{{ ('x' * 900000).join(['a'] * 90000) }}",
    "join filter": "{{ (['a' * 900000] * 90000)|join }}",
    "wordwrap": "{{ ('a ' * 90000)|wordwrap(1, true, 'b' * 90000) }}",
    "sum of lists": "{{ ([[1]] * 90000)|sum(start=[]) }}",
    "json indent": "{{ [1]|tojson(indent=1000000000) }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "inputs repeated": "{{ [messages] * 90000 }}",
}
FAILING = {
    "range": "{{ range(1000000000)|list|length }}",
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "block without end": "{% block a %}{{ self.a() }}{% endblock %}",
    "no lipsum": "{{ lipsum(100000) }}",
}


def render(source: str) -> str:
    template = ChatTemplate.from_metadata({**byte_pair(), "tokenizer.chat_template": source})
    assert template is not None
    return str(template.render(MESSAGES))


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_sandbox_forbids_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match=r"chat template, line 1: .*unsafe"):
        render(source)


@pytest.mark.parametrize("source", STOPPED.values(), ids=STOPPED.keys())
def test_bombs_are_stopped_by_the_budget(source: str) -> None:
    began = time.thread_time()
    with pytest.raises(TemplateError, match=r"chat template, line 1: stopped, for it "):
        render(source)
    assert time.thread_time() - began < MAX_SECONDS


@pytest.mark.parametrize("name", [name for name in STOPPED if name.startswith(("kept ", "long "))])
def test_what_is_built_counts_towards_one_total(name: str) -> None:
    with pytest.raises(TemplateError, match="it builds more than"):
        render(STOPPED[name])


@pytest.mark.parametrize("source", FAILING.values(), ids=FAILING.keys())
def test_other_bombs_fail_by_themselves(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template, line 1: "):
        render(source)


def test_memory_stays_bounded() -> None:
    tracemalloc.start()
    try:
        for name in ("kept slices", "kept lists"):
            with pytest.raises(TemplateError):
                render(STOPPED[name])
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_an_attribute_that_is_only_printed_shows_nothing() -> None:
    assert render("[{{ ''.__class__ }}]") == "[]"


def test_budgets_hold_off_the_main_thread_and_are_each_renderings_own() -> None:
    template = ChatTemplate.from_metadata({**byte_pair(), "tokenizer.chat_template": NESTED})
    honest = ChatTemplate.from_metadata({**byte_pair(), "tokenizer.chat_template": "{{ messages[0].content }}"})
    assert template is not None
    assert honest is not None
    outcomes: list[str] = []

    def work() -> None:
        try:
            template.render(MESSAGES)
        except TemplateError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert [str(honest.render(MESSAGES)) for _ in range(100)] == ["hi"] * 100
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    assert all("stopped" in outcome for outcome in outcomes)


def test_honest_formats_are_left_alone() -> None:
    assert render("{{ '%-5d|%05.2f|%%' % (5, 2.5) }}{{ '%(k)s' % {'k': 1} }}") == "5    |02.50|%1"
    assert render("""{{ '{{"name": "{}", "n": {n:>4}}}'.format('f', n=2) }}""") == '{"name": "f", "n":    2}'


@pytest.mark.parametrize("text", ["%(", "%-", "%.", "{", "{:", "{{:", "{1:1"])
def test_formats_are_checked_in_linear_time(text: str) -> None:
    began = time.thread_time()
    for use in ("s % 1", "s.format(1)"):
        with suppress(TemplateError):
            render(f"{{% set s = '{text}' * 300000 %}}{{{{ {use} }}}}")
    assert time.thread_time() - began < MAX_SECONDS


def test_long_honest_chats_fit_in_the_budget() -> None:
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    template = ChatTemplate.from_metadata({**byte_pair(), "tokenizer.chat_template": source})
    assert template is not None
    messages = [{"role": "user", "content": "words and more words " * 20}] * 3000
    assert len(str(template.render(messages))) > 3000 * 400

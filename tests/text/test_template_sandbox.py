"""Templates that nobody has vetted: no way out of the sandbox, an end in time and memory."""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.limits import MAX_BYTES, MAX_SECONDS
from tinyllm.errors import ChatTemplateError
from tinyllm.text.chat_template import ChatTemplates
from tinyllm.text.template_process import TemplateProcess

USER = {"role": "user", "content": "hi"}
ROOT = Path(__file__).parents[2]
HASTY = TemplateProcess(seconds=0.2)
GROW = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s }}"


def grow(step: str, start: str = "'aaaaaaaaaa'") -> str:
    return GROW.replace("STEP", step).replace("'aaaaaaaaaa'", start)


BOMBS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loop of lists": "{% for a in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "loop of sorts": "{% for a in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}",
    "loop of searches": "{% for a in range(99999) %}{{ 1 in range(99999) | list }}{% endfor %}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro for ever": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop for ever": "{% for i in range(9) recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "block for ever": "{% block a %}{{ self.a() }}{% endblock %}",
    "times": "{{ 'a' * 200000000 }}",
    "times from the left": "{{ 200000000 * 'a' }}",
    "list times": "{{ [1] * 100000000 }}",
    "tuple times": "{{ (1,) * 100000000 }}",
    "power": "{{ 9 ** 99999999 }}",
    "product": "{{ (10 ** 4000) * (10 ** 4000) }}",
    "center": "{{ 'a' | center(300000000) }}",
    "center method": "{{ 'a'.center(300000000) }}",
    "safe center method": "{{ ('a' | safe).center(300000000) }}",
    "zfill": "{{ 'a'.zfill(300000000) }}",
    "ljust": "{{ 'a'.ljust(width=300000000) }}{{ 'a'.ljust(300000000) }}",
    "indent": "{{ ('a\n' * 99999) | indent(9999) }}",
    "indent by text": "{{ ('a\n' * 99999) | indent('x' * 9999) }}",
    "wide %": "{{ '%300000000d' % 1 }}",
    "wide % by argument": "{{ '%*d' % (300000000, 1) }}",
    "precise %": "{{ '%.300000000f' % 1 }}",
    "wide format": "{{ '{:>300000000}'.format(1) }}",
    "wide format by argument": "{{ '{:>{}}'.format(1, 300000000) }}",
    "wide format by name": "{{ '{:>{w}}'.format(1, w=300000000) }}",
    "wide format filter": "{{ '%300000000d' | format(1) }}",
    "wide format by attr": "{{ ('{:>300000000}' | attr('format'))(1) }}",
    "format_map": "{{ '{a:>300000000}'.format_map({'a': 1}) }}",
    "repeated fields": "{% set a = 'a' * 4000000 %}{{ ('{0}' * 1000).format(a) }}",
    "repeated %": "{% set a = 'a' * 4000000 %}{{ ('%(a)s' * 1000) % {'a': a} }}",
    "replace": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "replace method": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "join": "{{ (['a'] * 100000) | join('b' * 100000) }}",
    "join method": "{{ ('b' * 100000).join(['a'] * 100000) }}",
    "round": "{{ 5 | round(-1000000000) }}",
    "sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) }}",
    "bytes": "{{ (1).to_bytes(300000000, 'big') }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "expandtabs": "{{ '\t'.expandtabs(300000000) }}",
    "slices in a row": "{% set a = 'a' * 4000000 %}" + "{% set x = a[1:] %}" * 100,
    "date": "{{ strftime_now('%300000000d') }}",
    "long date": "{{ strftime_now('%c' * 10000) }}",
    "macro of text": "{% macro f() %}"
    + "y" * 90000
    + "{% endmacro %}{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
    "text in a loop": "{% for i in range(99999) %}" + "y" * 90000 + "{% endfor %}",
    "grow ~": grow("ns.s ~ ns.s"),
    "grow +": grow("ns.s + ns.s"),
    "grow join": grow("[ns.s, ns.s] | join"),
    "grow replace": grow("ns.s | replace('a', 'aaaaaaaa')"),
    "grow list": grow("ns.s + ns.s", "[1]"),
    "grow nested list": grow("[ns.s, ns.s]", "[1]"),
    "grow nested tuple": grow("(ns.s, ns.s)", "[1]"),
    "grow nested mapping": grow("{'a': ns.s, 'b': ns.s}", "[1]"),
    "grow dict": grow("dict(a=ns.s, b=ns.s)", "[1]"),
    "grow set block": "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}"
    "{% endset %}{% endfor %}",
    "deep parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep not": "{{ " + "not " * 20000 + "x }}",
    "deep minus": "{{ " + "-" * 90000 + "1 }}",
    "deep sum": "{{ " + "x + " * 5000 + "x }}",
    "deep dots": "{{ x" + ".y" * 5000 + " }}",
    "deep if": "{% if x %}" * 500 + "{% endif %}" * 500,
    "loop in test": "{% set b = range(100000) | list %}{{ range(100000) | select('in', b) | list | length }}",
    "loop in by name": "{% set b = range(100000) | list %}{{ range(100000) | select('in', seq=b) | list | length }}",
    "loop cheap filter of for": "{% for x in range(100000) if "
    + " or ".join(["x in [-1]"] * 20)
    + " %}{% endfor %}",
    "loop selectattr": "{% set b = range(99999) | list %}{{ ([{'a': -1}] * 99999) | selectattr('a', 'in', b) | list }}",
    "loop filter of for": "{% set b = range(100000) | list %}{% for x in range(100000) if x not in b %}{% endfor %}",
    "loop comparison": "{% set a = 'a' * 4000000 %}{% set b = a + 'b' %}{% set c = a + 'c' %}"
    "{% for x in range(100000) if b == c %}{% endfor %}",
    "loop select eq": "{% set a = 'a' * 2000000 %}{% set b = a + 'b' %}{% set c = a + 'c' %}"
    "{{ ([b] * 100000) | select('eq', c) | list }}",
    "loop lower": "{% set a = 'a' * 2000000 %}{{ ([a] * 100000) | select('lower') | list | length }}",
    "loop sort": "{% set a = 'a' * 2000000 %}{% set l = [a + 'b'] * 20000 %}{{ l | sort | length }}",
    "loop sort of a generator": "{% set a = 'a' * 2000000 %}{{ ([a] * 20000) | map('string') | sort | length }}",
    "loop max": "{% set a = 'a' * 2000000 %}{{ ([a + 'a', a + 'b'] * 50000) | max | length }}",
    "loop min": "{% set a = 'a' * 2000000 %}{{ ([a + 'a', a + 'b'] * 50000) | min | length }}",
    "loop unique": "{% set a = 'a' * 2000000 %}{{ ([a] * 10000) | unique | list | length }}",
    "loop groupby": "{% set a = 'a' * 2000000 %}{{ ([{'k': a}] * 10000) | groupby('k') | length }}",
    "loop chained comparison": "{% set a = 'a' * 2000000 %}{% set b = a + '' %}"
    "{% for x in range(100000) if 0 < x and b >= a >= b %}{% endfor %}",
    "deep for": "{% for x in [1] %}" * 50 + "{% endfor %}" * 50,
    "long source": "x" * 100_001,
    "dense source": "{{ x + y }}" * 9000,
    "dense list": "{{ [" + "1, " * 30000 + "] }}",
    "equal hashes": "{{ range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) | unique | list | length }}",
    "equal hashes in a mapping": "{% set p = 2 ** 61 - 1 %}{% set ns = namespace(d={}) %}{% for i in range(99999) %}"
    "{% set ns.d = dict(ns.d, **{'a' ~ i: i * p}) %}{% endfor %}",
    "long attribute": "{{ range(100) | sort(attribute='real,' * 1000000) | list }}",
    "lazy chain": "{% set ns = namespace(s=range(2)) %}{% for i in range(2000) %}{% set ns.s = ns.s | map('string') %}"
    "{% endfor %}{{ ns.s | list }}",
    "many colons": "{{ (':' * 200000).format() }}{{ ('{:' * 100000).format() }}",
    "long division": "{{ (10 ** 9999999) // 7 }}",
    "divisible": "{{ (10 ** 9999999) is divisibleby(7 ** 999999) }}",
    "strip of many": "{{ ('a' * 4000000).strip('b' * 4000000 + 'a') }}",
    "indent by name": "{{ ('a\n' * 3000) | indent(first=true, width='x' * 1000000) }}",
    "wordwrap by name": "{{ ('a ' * 300000) | wordwrap(width=1, wrapstring='x' * 1000000) }}",
    "tojson by name": "{{ [[1] * 1000] * 1000 | tojson(indent='x' * 1000000) }}",
    "characters sorted": "{{ ('\u0100' * 8000000) | sort | length }}",
    "characters listed": "{{ ('\u0100' * 90000000) | list | length }}",
    "words counted": "{{ ('\u0100 ' * 90000000) | wordcount }}",
    "words in capitals": "{{ ('a ' * 90000000) | title | length }}",
    "nested namespaces": "{% set ns = namespace(s=[1]) %}{% for i in range(99999) %}"
    "{% set ns.s = namespace(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s }}",
    "lorem ipsum": "{{ lipsum(n=100000) }}",
    "wide loops to compile": "{% for a in b %}" * 18 + "{{ x }}" * 3000 + "{% endfor %}" * 18,
    "macros to compile": "{% macro a() %}" * 90 + "{% endmacro %}" * 90,
    "much text": "{% for i in range(99999) %}" + "y" * 9000 + "{% endfor %}",
}


HARMLESS = {
    *("slices in a row", "date", "long date", "macro of text", "loop cheap filter of for"),
    *("loop chained comparison", "long source", "dense list", "wide loops to compile", "macros to compile"),
}
"""What Jinja may well do within the limits: it need not be refused, only end."""


def burst(process: TemplateProcess, source: str) -> str | None:
    """Render a template, and return what it is refused with; a neighbour's renders then as before."""
    templates = ChatTemplates({"default": source, "good": "{{ messages[0].content }}"}, process=process)
    refused = None
    try:
        templates.render([USER])
    except ChatTemplateError as error:
        refused = str(error)
    assert templates.render([USER], name="good") == "hi"
    return refused


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end(name: str) -> None:
    refused = burst(HASTY, BOMBS[name])
    assert name in HARMLESS or refused is not None


BURST = """
import resource, sys, time
from tests.text.test_template_sandbox import BOMBS, burst
from tinyllm.text.template_process import TemplateProcess

began, process = time.process_time(), TemplateProcess()
burst(process, BOMBS[sys.argv[1]])
del process
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.process_time() - began + used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""


@pytest.mark.parametrize(
    "name",
    [
        *("nested loops", "equal hashes", "characters listed", "words in capitals", "tojson by name"),
        *("grow nested list", "repeated fields", "loop sort", "wide loops to compile", "dense source"),
    ],
)
def test_bombs_end_within_limits(name: str) -> None:
    """Processor time and memory of the program and of the processes that it starts, their start too."""
    command = [sys.executable, "-c", BURST, name]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, resident = result.stdout.split()
    assert float(seconds) < MAX_SECONDS
    assert int(resident) < MAX_BYTES


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].clear() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__.values() }}",
    "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ (namespace | attr('__init__')).x }}",
    "{{ lipsum.__globals__.os }}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ joiner.__init__.__builtins__ }}",
    "{{ messages | map(attribute='__class__') | map('string') | join | length + nothing.x }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str) -> None:
    templates = ChatTemplates({"default": source})
    with pytest.raises(ChatTemplateError):
        templates.render([USER])


def test_nothing_inside_shows_in_what_is_written() -> None:
    shown = ChatTemplates({"default": "{{ namespace(a=1) }}{{ messages.__class__ }}{{ ''.__doc__ }}"}).render(
        [USER]
    )
    assert shown == "<Namespace {'a': 1}>"


def test_limits_grow_with_the_messages() -> None:
    """What stops a bomb must not stop a long conversation."""
    content = "word " * 1_000_000
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    prompt = ChatTemplates({"default": source}).render([{"role": "user", "content": content}])
    assert prompt == f"<user>{content.strip()}\n"


def test_limits_do_not_grow_with_the_template() -> None:
    """Nor do errors, which show parts of it."""
    process = TemplateProcess()  # which has seen no long messages
    long = "{#" + "x" * 1_000_000 + "#}"
    with pytest.raises(ChatTemplateError, match="too much text"):
        ChatTemplates({"default": long + "{{ 'a' * 2000000 }}"}, process=process).render([USER])
    with pytest.raises(ChatTemplateError, match="too much memory"):
        ChatTemplates(
            {"default": long + "{{ (messages[0].content * 10000000) | list }}"}, process=process
        ).render([USER])
    for fault in (
        "{{ x | NAME }}",
        "{{ NAME() }}",
        "{{ x.NAME.y }}",
        "{{ 1 NAME }}",
        "{{ raise_exception('NAME') }}",
    ):
        with pytest.raises(ChatTemplateError) as caught:
            ChatTemplates({"default": fault.replace("NAME", "a" * 100_000)}, process=process).render([USER])
        assert len(str(caught.value)) < 1100


def test_many_messages_render_in_time() -> None:
    source = "{% for m in messages %}{{ messages[loop.index:] | length }}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 500}] * 300
    assert ChatTemplates({"default": source}).render(messages).endswith("x" * 500)


FRAGMENTS = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    " for x in ",
    " if ",
    " else ",
    " endfor ",
    " endif ",
    "messages",
    "x",
]
FRAGMENTS += [
    ".",
    "[",
    "]",
    "(",
    ")",
    "|",
    "~",
    "+",
    "*",
    "**",
    "%",
    "'a'",
    "99999",
    "range",
    "join",
    "set ",
    "=",
    ",",
]
FRAGMENTS += [
    "macro f()",
    " endmacro ",
    "f()",
    "{{ f() }}",
    "{% for x in range(99999) %}",
    "{% endfor %}",
    "-",
    "\n",
]


@settings(max_examples=200, deadline=None)
@given(source=st.lists(st.sampled_from(FRAGMENTS), max_size=15).map("".join))
def test_any_source_renders_or_gives_the_typed_error(source: str) -> None:
    with contextlib.suppress(ChatTemplateError):
        assert isinstance(ChatTemplates({"default": source}, process=HASTY).render([USER]), str)

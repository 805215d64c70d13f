"""Templates that nobody has vetted: no way out of the sandbox, an end in time and memory."""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.limits import MAX_BYTES, MAX_SECONDS
from tinyllm.errors import ChatTemplateError
from tinyllm.text import template_frames, template_process, template_worker
from tinyllm.text.chat_template import ChatTemplates
from tinyllm.text.template_environment import template_environment
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


def test_the_process_can_open_nothing_and_keeps_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a template leave Jinja's sandbox after all."""
    monkeypatch.setenv("TINYLLM_API_KEY", "secret")
    process = TemplateProcess()
    assert ChatTemplates({"default": "x"}, process=process).render([USER]) == "x"
    worker = process._worker
    assert worker is not None
    place = Path("/proc") / str(worker._process.pid)
    if not place.exists():
        pytest.skip("this system does not show processes as files")
    assert b"secret" not in (place / "environ").read_bytes()
    assert {file.name for file in (place / "fd").iterdir()} == {"0", "1", "2"}
    limits = {
        line[:26].strip(): line[26:].split()[:2] for line in (place / "limits").read_text().splitlines()
    }
    for what in ("Max open files", "Max file size", "Max processes", "Max core file size"):
        assert limits[what] == ["0", "0"]
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
    assert int(status["CapEff"], 16) == 0, "a right to lift its limits"
    assert "0" not in status["Uid"].split()


ESCAPED = """
import os, resource, socket, sys
from tinyllm.text import template_worker
template_worker._shut_the_doors()
os.close(2)
attempts = {
    "open": lambda: os.open("/dev/null", os.O_RDONLY),
    "connect": socket.socket,
    "copy": lambda: os.dup(0),
    "start": os.fork,
    "lift": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except (OSError, ValueError):
        continue
    print(name)
"""


def test_nothing_can_be_opened_or_started_also_where_streams_are_closed_before() -> None:
    result = subprocess.run([sys.executable, "-c", ESCAPED], capture_output=True, text=True, check=True)
    assert result.stdout == ""


JINJA = template_environment()
NEEDS = [
    *("{{ 'aa' | " + name + " }}" for name in JINJA.filters),
    *("{{ 'aa' is " + name + " }}" for name in JINJA.tests),
    *("{{ " + name + "() }}" for name in JINJA.globals if name != "lipsum"),
    *("{{ " + name + "('aa') }}" for name in JINJA.globals if name != "lipsum"),
    *(
        "{{ lipsum(1) is string }}",
        "{{ ('<' | e).unescape() }}",
        "{{ '\\N{BULLET}' }}",
        "{{ '{:n}'.format(1) }}",
    ),
    *("{{ 'é'.encode('" + name + "') }}" for name in ("utf-8", "utf-16", "utf-32", "latin-1", "ascii")),
]


@pytest.mark.parametrize("source", NEEDS)
def test_all_that_jinja_needs_is_there_before_files_are_out_of_reach(source: str) -> None:
    here = template_worker.answer(source.encode(), b"{}")
    try:
        there = template_process.shared_process().ask(source, {})
    except ChatTemplateError as error:
        there = {"error": str(error)}
    assert re.sub("0x[0-9a-f]+", "", str(there)) == re.sub("0x[0-9a-f]+", "", str(here))


def test_what_is_not_there_names_no_file_of_this_machine() -> None:
    with pytest.raises(ChatTemplateError, match=r"needs a file, and none can be opened\.$"):
        ChatTemplates({"default": "{{ 'x'.encode('cp1252') }}"}).render([USER])


RENDER = """
from tinyllm.text.chat_template import ChatTemplates
print(ChatTemplates({"default": "{{ messages[0].content }}"}).render([{"role": "user", "content": "hi"}]))
"""
PROGRAMS = {
    "plain": "",
    "a path among its folders": "import pathlib, sys; sys.path.insert(0, pathlib.Path('x'))",
    "in another folder": "import os; os.chdir('/')",
    "in a folder that is gone": "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('../x')",
    "without standard streams": "import os; os.close(0); os.close(2)",
    "that leaves children alone": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "that hears no timers": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})",
}


@pytest.mark.parametrize("start", PROGRAMS)
def test_the_process_starts_from_any_program(start: str, tmp_path: Path) -> None:
    """Beside a program may be files that are named as modules which it has no need of, or has already."""
    for name in ("encodings", "html", "resource", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    program = tmp_path / "program.py"
    program.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{PROGRAMS[start]}\n{RENDER}")
    command = [sys.executable, "-W", "error", str(program)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr, result.returncode) == ("hi\n", "", 0)


def test_the_limit_is_of_processor_time() -> None:
    """Waiting for a busy machine, or for the next question, does not count against a template."""
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=TemplateProcess(seconds=0.3))
    assert templates.render([USER]) == "hi"
    process = templates._process._worker._process  # type: ignore[union-attr]
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (process.pid, signal.SIGCONT)).start()
    began = time.perf_counter()
    assert templates.render([USER]) == "hi"
    assert time.perf_counter() - began > 0.3


def test_a_process_that_was_killed_is_replaced() -> None:
    process = TemplateProcess()
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    assert templates.render([USER]) == "hi"
    worker = process._worker
    assert worker is not None
    worker._process.kill()
    worker._process.wait()
    assert templates.render([USER]) == "hi"


def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "_PATIENCE", 0.2)
    process = TemplateProcess()
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    while True:  # it may need longer than this patience to start
        with contextlib.suppress(ChatTemplateError):
            templates.render([USER])
            break
    os.kill(process._worker._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
    with pytest.raises(ChatTemplateError, match="its process ended"):
        templates.render([USER])


def test_an_answer_that_nobody_waited_for_goes_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or whatever else a signal handler raises, between a question and its answer."""
    process = TemplateProcess()
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    assert templates.render([USER]) == "hi"

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    for function in ("read_frame", "write_frame"):
        with monkeypatch.context() as patch:
            patch.setattr(template_process, function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                templates.render([{**USER, "content": "secret"}])
        assert templates.render([USER]) == "hi"
        assert templates.render([USER]) == "hi"


def test_the_process_ends_with_its_object() -> None:
    process = TemplateProcess()
    ChatTemplates({"default": "x"}, process=process).render([USER])
    worker = process._worker
    assert worker is not None
    popen = worker._process
    assert popen.poll() is None
    del process, worker
    assert popen.poll() is not None


def test_a_process_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChatTemplateError, match="could not be started"):
        TemplateProcess().ask("x")
    monkeypatch.undo()

    def no_more_files() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("socket.socketpair", no_more_files)
    with pytest.raises(ChatTemplateError, match="could not be started: Too many open files"):
        TemplateProcess().ask("x")


def test_a_fork_has_a_process_of_its_own() -> None:
    """Two programs that ask the same one would get each other's prompts."""
    script = """
import os
from tinyllm.text.chat_template import ChatTemplates
templates = ChatTemplates({"default": "{{ messages[0].content }}"})
def render(word):
    return templates.render([{"role": "user", "content": word}])
assert render("before") == "before"
pid = os.fork()
if pid == 0:
    words = [render(f"child{number}") for number in range(200)]
    os._exit(words != [f"child{number}" for number in range(200)])
assert [render(f"parent{number}") for number in range(200)] == [f"parent{number}" for number in range(200)]
assert os.waitpid(pid, 0)[1] == 0
"""
    command = [sys.executable, "-W", "error", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_an_answer_is_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On either side: the asking one does not rely on the other."""
    for source in ("{{ 'a' * 10000000 }}", "{{ '🦙' * 300000 }}", "{{ '\0' * 200000 }}"):
        with pytest.raises(ChatTemplateError, match="too much text"):
            ChatTemplates({"default": source}).render([USER])
    monkeypatch.setattr(template_process, "text_limit", lambda size: 10)
    with pytest.raises(ChatTemplateError, match="its process ended"):
        TemplateProcess().ask("x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_questions_arrive_as_they_were(value: object) -> None:
    assert template_frames.decoded(template_frames.encoded(value)) == value


def test_lone_surrogates_arrive_as_they_were() -> None:
    for text in ("\ud800", "\ud83d\ude00", "a\udfff"):
        assert template_frames.decoded(template_frames.encoded(text)) == text


def test_compiled_templates_are_kept() -> None:
    question = b"{{ 'kept' }}", b"{}"
    template_worker.answer(*question)
    hits = template_worker._compiled.cache_info().hits
    assert template_worker.answer(*question) == {"text": "kept"}
    assert template_worker._compiled.cache_info().hits == hits + 1


def test_templates_on_several_threads_have_budgets_of_their_own() -> None:
    templates = ChatTemplates({"default": "{% for i in range(2000) %}{{ messages[0].content }}{% endfor %}"})
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(templates.render([{**USER, "content": str(n)}])))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [str(n) * 2000 for n in range(8)]


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

"""The process that templates run in: what it may do, how it starts, and that it ends and is replaced."""

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
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import ChatTemplateError
from tinyllm.text import template_frames, template_process, template_worker
from tinyllm.text.chat_template import ChatTemplates
from tinyllm.text.template_environment import template_environment
from tinyllm.text.template_process import TemplateProcess

USER = {"role": "user", "content": "hi"}
ROOT = Path(__file__).parents[2]


def running(process: TemplateProcess) -> subprocess.Popen[bytes]:
    """Return the process that answers now."""
    assert process._worker is not None
    return process._worker._process


def test_the_process_can_open_nothing_and_keeps_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a template leave Jinja's sandbox after all."""
    monkeypatch.setenv("TINYLLM_API_KEY", "secret")
    process = TemplateProcess()
    assert ChatTemplates({"default": "x"}, process=process).render([USER]) == "x"
    place = Path("/proc") / str(running(process).pid)
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
    process = TemplateProcess(seconds=0.3)
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    assert templates.render([USER]) == "hi"
    pid = running(process).pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()
    began = time.perf_counter()
    assert templates.render([USER]) == "hi"
    assert time.perf_counter() - began > 0.3


def test_a_process_that_was_killed_is_replaced() -> None:
    process = TemplateProcess()
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    assert templates.render([USER]) == "hi"
    running(process).kill()
    running(process).wait()
    assert templates.render([USER]) == "hi"


def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "_PATIENCE", 1.0)
    process = TemplateProcess()
    templates = ChatTemplates({"default": "{{ messages[0].content }}"}, process=process)
    for _ in range(20):  # it may need longer than this patience to start
        with contextlib.suppress(ChatTemplateError):
            templates.render([USER])
            break
    os.kill(running(process).pid, signal.SIGSTOP)
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
    popen = running(process)
    assert popen.poll() is None
    del process
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

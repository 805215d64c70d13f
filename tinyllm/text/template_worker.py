"""The process that compiles and runs chat templates, which `tinyllm.text.template_process` starts.

Jinja's sandbox keeps a template from Python's internals, but lets it run and grow for ever, in more ways than
could be counted from inside. So the system does: it ends this process when one question has taken its seconds
of processor time, and gives it no more memory than `_MEMORY` and what the messages may ask for. Should a
template leave the sandbox, it finds a process that can open no file and no connection and start no other.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from jinja2 import Template, TemplateSyntaxError, meta, nodes

from tinyllm.text.template_environment import RefusedError, template_environment
from tinyllm.text.template_frames import decoded, encoded, read_frame, text_limit, write_frame

__all__ = ["answer", "main"]

_MEMORY: Final = 128 << 20
_MEMORY_PER_BYTE: Final = 64
_MAX_SOURCES: Final = 16
_NOBODY: Final = 65534

_REHEARSED: Final = (
    "{{ 'a' | tojson }}{{ strftime_now('%c') }}{{ '\\N{DASH}' }}",
    "{{ 'a' | striptags }}{{ 'a' | wordwrap }}{{ 'a' | pprint }}{{ lipsum(1) }}",
    "{{ messages.x.y }}",
    "{% fault",
)
"""Templates that make Python and Jinja read what they read at first use, while files can be opened."""

_environment: Final = template_environment()


def main() -> None:
    """Answer questions from standard input, until it ends."""
    seconds = float(sys.argv[1])
    _shut_the_doors()
    memory = 0
    while (source := read_frame(sys.stdin.buffer)) is not None:
        if (variables := read_frame(sys.stdin.buffer)) is None:
            return
        memory = max(memory, _MEMORY + _MEMORY_PER_BYTE * len(variables))
        _limit(resource.RLIMIT_DATA, memory)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal ends the process
        reply = encoded(answer(source, variables))
        if len(reply) > text_limit(len(variables)):
            reply = encoded({"error": "The chat template was stopped: it makes too much text."})
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(sys.stdout.buffer, reply)


def answer(source: bytes, variables: bytes) -> dict[str, Any]:
    """Return what a template reads if ``variables`` are null, else its ``text`` with them, which are JSON.

    Where the template is at fault, the answer is an ``error``: a sentence for whoever asked.
    """
    try:
        template, given = source.decode("utf-8", "surrogatepass"), decoded(variables)
        return _described(template) if given is None else {"text": _compiled(template).render(given)}
    except RefusedError as error:
        return {"error": f"The chat template refused the messages: {error}"}
    except TemplateSyntaxError as error:
        return {"error": f"The chat template has a fault in line {error.lineno}: {str(error.message)[:300]}"}
    except RecursionError:
        return {"error": "The chat template was stopped: it is nested too deep."}
    except MemoryError:
        return {"error": "The chat template was stopped: it uses too much memory."}
    except OSError:  # whose words would tell what lies where on this machine
        return {"error": "The chat template failed: it needs a file, and none can be opened."}
    except Exception as error:
        return {"error": f"The chat template failed: {str(error)[:300]}"}


def _described(source: str) -> dict[str, Any]:
    tree = _environment.parse(source)
    return {
        "variables": sorted(meta.find_undeclared_variables(tree)),
        "helpers": sorted(_environment.globals),
        "takes_parts": any(_names_content(loop.iter) for loop in tree.find_all(nodes.For)),
        "takes_argument_text": re.search(r"arguments\s+is\s+(not\s+)?string", source) is not None,
    }


@functools.lru_cache(_MAX_SOURCES)
def _compiled(source: str) -> Template:
    return _environment.from_string(source)


def _names_content(expression: nodes.Node) -> bool:
    """Return whether ``content``, ``message.content`` or ``message['content']`` is the thing looped over."""
    match expression:
        case nodes.Name(name="content") | nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Filter(node=nodes.Node() as inner):
            return inner is not None and _names_content(inner)
    return False


def _shut_the_doors() -> None:
    for source in _REHEARSED:
        answer(source.encode(), b"{}")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # What is open stays so.
    for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        _limit(what, 0, for_good=True)
    _be_nobody()


def _be_nobody() -> None:
    """Stop being root, whom limits do not hold; a root that may not do this could not lift them either."""
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)


def _limit(what: int, most: int, *, for_good: bool = False) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(what, (most, most if for_good else hard))

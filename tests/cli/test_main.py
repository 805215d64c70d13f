"""The commands' common behaviour, and the two that generate, on a small model."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinyllm.cli import chat
from tinyllm.cli import main as main_module
from tinyllm.cli.main import COMMANDS, main
from tinyllm.cli.parser import ELSEWHERE
from tinyllm.params import SamplingParams
from tinyllm.server.settings import ServerConfig

SMALL = ["--max-model-len", "128", "--dtype", "float32"]


@pytest.fixture
def model(tiny_llama: Path) -> list[str]:
    return ["--model", str(tiny_llama), *SMALL]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert command in capsys.readouterr().out


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from tinyllm.cli.main import main
try:
    main(["chat", "--help"])
except SystemExit:
    sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="reads the processor time of children")
def test_help_takes_no_longer_than_0_3_seconds() -> None:
    """In processor time, which other work on the machine does not add to; there is nothing to wait for."""
    import resource

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "tinyllm", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.3


def test_an_interrupt_is_one_word_wherever_it_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_parser", interrupted)
    assert main(["chat"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_wrong_option_is_told_by_its_flag(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "Hi", *model, "--max-num-seqs", "0"]) == 2
    assert capsys.readouterr().err.startswith("tinyllm generate: --max-num-seqs: ")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["serve", "--max-model-length", "5"], "--max-model-len"),
        (["serve", "--allowed-origins", "*"], "--cors-origins"),
        (["serve", "--api-key=abc"], "--api-key-file"),
        (["serve", "-c", "4096"], "--max-model-len"),
        (["generate", "-p", "Hi", "--temp", "0"], "--temperature"),
        (["generate", "-p", "Hi", "-a", "name"], None),
        (["serve", "--enforce-everything"], None),
    ],
)
def test_unknown_flags_get_a_guess(
    arguments: list[str], meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "unrecognized arguments: " in message
    assert (f"(did you mean {meant}?)" in message) if meant else ("did you mean" not in message)


def test_every_flag_of_other_programs_has_one_here() -> None:
    known = {
        f"--{name.replace('_', '-')}" for name in (*ServerConfig.model_fields, *SamplingParams.model_fields)
    }
    assert {flag.replace("--no-", "--") for flag in ELSEWHERE.values()} <= known
    assert not ELSEWHERE.keys() & known


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "Hi", "--model", "/nowhere/at/all"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def generate(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert main(["generate", *arguments]) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_text_and_json_are_the_same_answer(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text, timing = generate(["-p", "Once upon", "--max-tokens", "6", *model], capsys)
    assert "tokens/s" in timing
    assert "float32 on cpu" in timing
    report: dict[str, Any] = json.loads(
        generate(["-p", "Once upon", "--max-tokens", "6", "--json", *model], capsys)[0]
    )
    (choice,) = report["choices"]
    assert choice["text"] + "\n" == text
    assert len(choice["token_ids"]) == 6
    assert choice["finish_reason"] == "length"
    assert report["prompt_token_ids"]
    assert report["params"]["temperature"] == 0
    assert report["timing"]["load_seconds"] > 0


def test_several_answers_stand_apart(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = generate(["-p", "Hi", "--n", "2", "--max-tokens", "4", "-q", *model], capsys)
    assert text.count("--- answer 2") == 1


def test_the_prompt_may_be_piped_in(
    model: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, _ = generate(["-p", "Once upon", "--max-tokens", "4", "-q", *model], capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon"))
    piped, timing = generate(["--max-tokens", "4", "-q", *model], capsys)
    assert (piped, timing) == (given, "")


def test_logprobs_without_json_are_refused(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "Hi", "--logprobs", "2", *model]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.fixture
def type_lines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have ``input`` give these lines, raise those that are errors, and then end."""

    def setup(*lines: str | type[BaseException]) -> None:
        left = iter(lines)

        def typed(prompt: str) -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", typed)

    return setup


@pytest.fixture
def chat_model(model: list[str]) -> list[str]:
    template = "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}"
    return [*model, "--chat-template", template, "--temperature", "0", "--max-tokens", "5"]


def test_chat_answers_once(chat_model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "Hi", *chat_model]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert "cut at --max-tokens" in shown.err


def test_a_conversation_keeps_its_history(
    chat_model: list[str],
    type_lines: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    histories: list[list[str]] = []
    answer = chat._answer

    async def noted(engine: Any, messages: Any, *rest: Any) -> None:
        histories.append([f"{message['role']}: {message['content']}" for message in messages])
        await answer(engine, messages, *rest)

    monkeypatch.setattr(chat, "_answer", noted)
    type_lines(
        "one", "two", "/nonsense", "/new", "three", "/system Be brief", "four", KeyboardInterrupt, "/exit"
    )
    assert main(["chat", *chat_model]) == 0
    first, second, third, fourth = histories
    assert first == ["user: one"]
    assert second[0] == "user: one"
    assert second[1].startswith("assistant: ")
    assert second[2] == "user: two"
    assert third == ["user: three"]
    assert fourth == ["system: Be brief", "user: four"]
    assert "Ctrl-C again" in capsys.readouterr().err


def test_a_conversation_that_outgrew_the_context_goes_on(
    chat_model: list[str], type_lines: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines("one", "word " * 200, "/new", "two")
    assert main(["chat", *chat_model]) == 0
    out, err = capsys.readouterr()
    assert err.count("the conversation is too long") == 1
    assert "/new starts over" in err
    assert len([line for line in out.splitlines() if line.strip()]) >= 2  # both others were answered


def test_an_answer_may_fill_a_context_shorter_than_the_usual_answer(
    chat_model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = chat_model.index("--max-tokens")
    model = chat_model[:limit] + chat_model[limit + 2 :]
    assert main(["chat", "Hi", *model]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["chat", "Hi", *model, "--max-tokens", "1000"]) == 2
    assert "maximum context length" in capsys.readouterr().err


def test_a_second_interrupt_at_the_prompt_ends(chat_model: list[str], type_lines: Any) -> None:
    type_lines(KeyboardInterrupt, KeyboardInterrupt, "never asked")
    assert main(["chat", *chat_model]) == 0


def test_serve_leaves_signals_as_they_were_when_it_does_not_start() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert main(["serve", "--config", "no-such-file.toml"]) == 2
    assert [signal.getsignal(number) for number in numbers] == before

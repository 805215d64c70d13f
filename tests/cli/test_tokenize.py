"""``tinyllm tokenize``."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinyllm.cli.main import main

TEXT = "Hi <|im_end|> 🫠 é\n"


def ids_of(text: str, model: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[int]:
    assert main(["tokenize", text, "--model", str(model), "--json", *options]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["count"] == len(shown["token_ids"]) == len(shown["tokens"])
    ids: list[int] = shown["token_ids"]
    return ids


def test_tokens_are_shown_with_their_ids(tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", TEXT, "--model", str(tiny_qwen3)]) == 0
    out, err = capsys.readouterr()
    lines = [line.split(None, 1) for line in out.splitlines()]
    assert ["151645", "'<|im_end|>'"] in lines
    assert any(shown.startswith("b'") for _, shown in lines)  # part of a character
    assert err == f"{len(lines)} tokens\n"
    assert [int(token_id) for token_id, _ in lines] == ids_of(TEXT, tiny_qwen3, capsys)


@pytest.mark.parametrize("spelling", ["{}", "[{}]"])
def test_decode_is_the_way_back(spelling: str, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = spelling.format(", ".join(map(str, ids_of(TEXT, tiny_qwen3, capsys))))
    assert main(["tokenize", ids, "--decode", "--model", str(tiny_qwen3)]) == 0
    assert capsys.readouterr().out == TEXT + "\n"
    assert main(["tokenize", ids, "--decode", "--no-special-tokens", "--model", str(tiny_qwen3)]) == 0
    assert capsys.readouterr().out == TEXT.replace("<|im_end|>", "") + "\n"


def test_standard_input(
    tiny_qwen3: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    assert ids_of("-", tiny_qwen3, capsys) == ids_of(TEXT, tiny_qwen3, capsys)


def test_special_tokens_can_be_left_out(
    tiny_qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "adds-bos"
    shutil.copytree(tiny_qwen3, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [151643], "tokens": ["<|endoftext|>"]}
        },
    }
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    plain = ids_of("Hi", model, capsys, "--no-special-tokens")
    assert ids_of("Hi", model, capsys) == [151643, *plain]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1 x", "--decode"], "'x'"),
        (["-1", "--decode"], "'-1'"),
        (["99999999999", "--decode"], "not a token id"),
    ],
)
def test_wrong_use_is_told(
    arguments: list[str], message: str, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenize", *arguments, "--model", str(tiny_qwen3)]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_a_tokenizer(
    tiny_qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "bare"
    shutil.copytree(tiny_qwen3, model, ignore=shutil.ignore_patterns("tokenizer*"))
    assert main(["tokenize", "x", "--model", str(model)]) == 1
    assert "bare has no tokenizer" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_transformers(tiny_qwen3: Path) -> None:
    program = (
        "import sys; from tinyllm.cli.main import main; main(['tokenize', 'Hi', '--model', sys.argv[1]]);"
        "sys.exit(bool({'torch', 'transformers', 'sentencepiece'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program, str(tiny_qwen3)], check=True, capture_output=True)

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models.support import CONFIG, CPU, RandomWeights, load, qwen3_config, random_model
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.errors import EngineClosedError, UnsupportedModelError
from tinyllm.models.linear import can_pack
from tinyllm.models.loader import load_model
from tinyllm.models.registry import MODELS
from tinyllm.models.weights import WeightReader


def test_unknown_architecture_is_refused_by_name(tiny_llama: Path) -> None:
    artifacts = open_directory(tiny_llama)
    artifacts = replace(artifacts, config=replace(artifacts.config, architecture="MambaForCausalLM"))
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*LlamaForCausalLM"):
        load_model(artifacts, dtype=torch.float32, device=CPU, backend=ReferenceBackend())


@pytest.mark.parametrize("config", [CONFIG, qwen3_config()], ids=lambda config: config.architecture)
def test_every_tensor_is_read_once_and_nothing_else(config: ModelConfig) -> None:
    read: list[str] = []

    class Recording(RandomWeights):
        def read_into(self, name: str, out: torch.Tensor) -> None:
            read.append(name)
            super().read_into(name, out)

    source = Recording(config)
    model = MODELS[config.architecture](config, ReferenceBackend(), dtype=torch.float32, device=CPU)
    model.load(WeightReader(source, dtype=torch.float32, device=CPU))
    assert sorted(read) == sorted(source.tensors)


def test_what_a_check_raises_ends_the_loading(tiny_llama: Path) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise EngineClosedError("closed")

    artifacts = open_directory(tiny_llama)
    with pytest.raises(EngineClosedError):
        load_model(artifacts, dtype=torch.float32, device=CPU, backend=ReferenceBackend(), check=check)
    assert calls == 3


def test_a_tied_head_is_the_table_itself_where_nothing_is_packed() -> None:
    assert not can_pack(torch.float16, CPU)
    model = random_model(qwen3_config(), torch.float16)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_progress_goes_to_standard_error_if_that_is_a_terminal(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = open_directory(tiny_llama)
    load_model(artifacts, dtype=torch.float32, device=CPU, backend=ReferenceBackend(), progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load_model(artifacts, dtype=torch.float32, device=CPU, backend=ReferenceBackend(), progress=True)
    captured = capsys.readouterr()
    assert "Loading weights: 100%" in captured.err
    assert captured.out == ""
    load(tiny_llama)
    assert capsys.readouterr().err == ""


MEASURE = r"""
import json, re, sys
from pathlib import Path
from tinyllm import Engine
with Engine(model=sys.argv[1], dtype=sys.argv[2]) as engine:
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    print(json.dumps({"peak": peak, "weights": engine.info.weight_bytes}))
"""


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("source", ["smollm2", "smollm2_gguf"])
def test_peak_memory(source: str, dtype: str, request: pytest.FixtureRequest) -> None:
    """An engine: at most 1.3 times the weights in their final dtype, and 300 MB for Python and PyTorch."""
    command = [sys.executable, "-c", MEASURE, str(request.getfixturevalue(source)), dtype]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured = json.loads(output)
    assert measured["peak"] <= 1.3 * measured["weights"] + 300e6

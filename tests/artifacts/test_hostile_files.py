"""Damaged and hostile model files: always one typed error, soon, and without much memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.artifacts.small import (
    CONFIG,
    INDEX,
    SHARDS,
    SINGLE,
    edit_json,
    join_file,
    split_file,
    write_json,
    write_model,
)
from tests.limits import refused_within_limits
from tinyllm.artifacts.resolve import open_model
from tinyllm.errors import (
    ArtifactError,
    CheckpointError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
)

EMBED: Final = "model.embed_tokens.weight"

Damage = Callable[[Path], object]


def config(**changes: Any) -> Damage:
    return lambda model: edit_json(model / "config.json", **changes)


def without(file: str, *names: str) -> Damage:
    def damage(model: Path) -> None:
        values = json.loads((model / file).read_text())
        write_json(model / file, {name: value for name, value in values.items() if name not in names})

    return damage


def content(file: str, data: bytes) -> Damage:
    def damage(model: Path) -> None:
        (model / file).parent.mkdir(exist_ok=True)
        (model / file).write_bytes(data)

    return damage


def fields(file: str, **changes: Any) -> Damage:
    return lambda model: edit_json(model / file, **changes)


def entry(name: str = EMBED, **changes: Any) -> Damage:
    """Change a tensor's entry in the header."""

    def damage(model: Path) -> None:
        header, data = split_file(model / SINGLE)
        header[name] = header[name] | changes
        join_file(model / SINGLE, header, data)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(model: Path) -> None:
        values, data = split_file(model / SINGLE)
        join_file(model / SINGLE, change(values), data)

    return damage


def resized(file: str, change: int) -> Damage:
    def damage(model: Path) -> None:
        os.truncate(model / file, (model / file).stat().st_size + change)

    return damage


def header_length(length: int) -> Damage:
    def damage(model: Path) -> None:
        values, data = split_file(model / SINGLE)
        join_file(model / SINGLE, values, data, length=length)

    return damage


def sparse(file: str, size: int) -> Damage:
    def damage(model: Path) -> None:
        (model / file).write_bytes(b"{")
        os.truncate(model / file, size)

    return damage


def sharded(damage: Damage) -> Damage:
    """Damage the same model in two shards with an index."""

    def all_damage(model: Path) -> None:
        (model / SINGLE).unlink()
        write_model(model, sharded=True)
        damage(model)

    return all_damage


def weight_map(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(model: Path) -> None:
        index = json.loads((model / INDEX).read_text())
        write_json(model / INDEX, index | {"weight_map": change(index["weight_map"])})

    return sharded(damage)


def replaced(file: str, make: Callable[[Path], object]) -> Damage:
    def damage(model: Path) -> None:
        (model / file).unlink(missing_ok=True)
        make(model / file)

    return damage


def link_to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def outside(model: Path) -> None:
    (model.parent / "secret.json").write_text(json.dumps(CONFIG))
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("../secret.json")


def pickles_only(model: Path) -> None:
    (model / SINGLE).rename(model / "pytorch_model.bin")


def both_in_first_shard(model: Path) -> None:
    """Put a tensor of the second shard into the first as well."""
    first, data = split_file(model / SHARDS[0])
    second, more = split_file(model / SHARDS[1])
    name = next(name for name in second if name != "__metadata__")
    begin, end = second[name]["data_offsets"]
    first[name] = second[name] | {"data_offsets": [len(data), len(data) + end - begin]}
    join_file(model / SHARDS[0], first, data + more[begin:end])


def repeated_tensor(values: dict[str, Any]) -> bytes:
    text = json.dumps(values)
    return (text[:-1] + "," + json.dumps({EMBED: values[EMBED]})[1:]).encode()


DEEP: Final = b"[" * 100_000
BROAD: Final = b'{"a":[' + b"[]," * 1_000_000 + b"[]]}"


def full(size: int) -> bytes:
    """Return JSON just within the limits, and as costly to parse as can be."""
    values = b'{"a": [' + b",".join(b'{"%d":[]}' % number for number in range(min(66_000, size // 16)))
    return (values + b'], "b": "\xf0\x9f\x98\x80').ljust(size - 2, b"x") + b'"}'


def all_full(model: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = (model / name).read_bytes()
        (model / name).write_bytes(values.rstrip(b"}") + b", " + full((4 << 20) - len(values) - 2)[1:])
    header(lambda _: full(10 << 20))(model)


BIG_NUMBER: Final = 10**40
QWEN: Final = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}

CASES: Final[dict[str, tuple[Damage, type[ArtifactError], str]]] = {
    # config.json: the file
    "config missing": (lambda model: (model / "config.json").unlink(), ModelNotFoundError, "config.json"),
    "config empty": (content("config.json", b""), CheckpointError, "config.json: is not valid JSON"),
    "config a list": (content("config.json", b"[]"), CheckpointError, "object, not a list"),
    "config cut": (content("config.json", b'{"vocab_size": 3'), CheckpointError, "not valid JSON"),
    "config not UTF-8": (content("config.json", b'{"a": "\xff"}'), CheckpointError, "not UTF-8"),
    "config UTF-16": (content("config.json", "{}".encode("utf-16")), CheckpointError, "not UTF-8"),
    "config with BOM": (content("config.json", b"\xef\xbb\xbf{}"), CheckpointError, "not valid JSON"),
    "config of NULs": (content("config.json", bytes(1000)), CheckpointError, "not valid JSON"),
    "config deep lists": (content("config.json", DEEP), CheckpointError, "nested too deeply"),
    "config deep objects": (content("config.json", b'{"a":' * 100_000), CheckpointError, "nested too deeply"),
    "config broad": (content("config.json", BROAD), CheckpointError, "more than 200,000 values"),
    "config full": (content("config.json", full(4 << 20)), CheckpointError, "model_type is missing"),
    "config too long": (content("config.json", full((4 << 20) + 1)), CheckpointError, "bytes, more than"),
    "all full": (all_full, CheckpointError, "must have dtype"),
    "config huge": (sparse("config.json", 1 << 40), CheckpointError, "bytes, more than"),
    "config repeated field": (
        content("config.json", b'{"a": 1, "a": 2}'),
        CheckpointError,
        "'a' is there twice",
    ),
    "config endless number": (
        content("config.json", b'{"a": ' + b"9" * 10_000 + b"}"),
        CheckpointError,
        "too long",
    ),
    "config a pipe": (
        replaced("config.json", os.mkfifo),
        CheckpointError,
        "config.json: is not a regular file",
    ),
    "config a socket": (replaced("config.json", unix_socket), CheckpointError, "not a regular file"),
    "config a directory": (replaced("config.json", Path.mkdir), CheckpointError, "not a regular file"),
    "config a device": (replaced("config.json", link_to("/dev/zero")), CheckpointError, "leads out of"),
    "config leads out": (outside, CheckpointError, "config.json: leads out of the model's directory"),
    "config a loop": (replaced("config.json", link_to("config.json")), CheckpointError, "config.json"),
    "config a dead link": (
        replaced("config.json", link_to("nothing")),
        CheckpointError,
        "is a link to a file",
    ),
    # config.json: its values
    "no architecture": (
        without("config.json", "architectures", "model_type"),
        CheckpointError,
        "config.json: model_type is missing",
    ),
    "architectures a string": (
        config(architectures="Llama"),
        CheckpointError,
        "architectures must be a list",
    ),
    "architectures of numbers": (config(architectures=[1]), CheckpointError, "architectures must be a list"),
    "architecture unknown": (
        config(architectures=["FooForCausalLM"]),
        UnsupportedModelError,
        "'FooForCausalLM'",
    ),
    "architecture endless": (config(architectures=["A" * 10**6]), UnsupportedModelError, "AAA..."),
    "no hidden_size": (without("config.json", "hidden_size"), CheckpointError, "hidden_size is missing"),
    "hidden_size null": (config(hidden_size=None), CheckpointError, "hidden_size is missing"),
    "hidden_size zero": (config(hidden_size=0), CheckpointError, "hidden_size must be from 1"),
    "hidden_size negative": (config(hidden_size=-16), CheckpointError, "hidden_size must be from 1"),
    "hidden_size a string": (config(hidden_size="16"), CheckpointError, "hidden_size must be an integer"),
    "hidden_size true": (
        config(hidden_size=True),
        CheckpointError,
        "hidden_size must be an integer, not True",
    ),
    "hidden_size a float": (config(hidden_size=16.0), CheckpointError, "hidden_size must be an integer"),
    "hidden_size NaN": (config(hidden_size=float("nan")), CheckpointError, "hidden_size must be an integer"),
    "hidden_size a list": (config(hidden_size=[[16]]), CheckpointError, "not a list"),
    "hidden_size overflows": (
        config(hidden_size=BIG_NUMBER),
        CheckpointError,
        "not a number with over 30 digits",
    ),
    "vocab_size 2**63": (config(vocab_size=2**63), CheckpointError, "vocab_size must be from 1"),
    "layers 10**9": (config(num_hidden_layers=10**9), CheckpointError, "num_hidden_layers must be from 1"),
    "heads do not divide": (
        config(num_attention_heads=3, num_key_value_heads=3),
        CheckpointError,
        "num_attention_heads must divide",
    ),
    "KV heads do not divide": (
        config(num_key_value_heads=3),
        CheckpointError,
        "num_key_value_heads must divide",
    ),
    "KV heads zero": (config(num_key_value_heads=0), CheckpointError, "num_key_value_heads must be from 1"),
    "head_dim odd": (config(head_dim=3), CheckpointError, "head_dim must be even"),
    "eps NaN": (
        config(rms_norm_eps=float("nan")),
        CheckpointError,
        "rms_norm_eps must be from 0 to 1, not nan",
    ),
    "eps infinite": (config(rms_norm_eps=float("inf")), CheckpointError, "rms_norm_eps must be from 0 to 1"),
    "tie a number": (
        config(tie_word_embeddings=1),
        CheckpointError,
        "tie_word_embeddings must be true or false",
    ),
    "theta zero": (config(rope_theta=0), CheckpointError, "rope_theta must be from 2"),
    "theta overflows": (config(rope_theta=BIG_NUMBER), CheckpointError, "rope_theta must be from 2"),
    "rope a string": (config(rope_scaling="yarn"), CheckpointError, "rope_scaling must be an object"),
    "rope without factor": (
        config(rope_scaling={"type": "linear"}),
        CheckpointError,
        "rope_scaling.factor is missing",
    ),
    "rope factor zero": (
        config(rope_parameters={"rope_type": "linear", "factor": 0}),
        CheckpointError,
        "rope_parameters.factor must be from 1",
    ),
    "rope llama3 equal factors": (
        config(
            rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 2, "high_freq_factor": 2}
        ),
        CheckpointError,
        "high_freq_factor must be more than",
    ),
    "rope dynamic": (
        config(rope_scaling={"type": "dynamic", "factor": 2.0}),
        UnsupportedModelError,
        "rope type 'dynamic'",
    ),
    "rope longrope": (config(rope_parameters={"rope_type": "longrope"}), UnsupportedModelError, "'longrope'"),
    "rope by layer": (
        config(rope_parameters={"full_attention": {"rope_type": "default"}}),
        UnsupportedModelError,
        "differ by layer",
    ),
    "rope partial": (config(partial_rotary_factor=0.5), UnsupportedModelError, "partial_rotary_factor"),
    "sliding window": (
        config(**QWEN, use_sliding_window=True, sliding_window=64, max_window_layers=1),
        UnsupportedModelError,
        "sliding window",
    ),
    "sliding layers": (
        config(layer_types=["full_attention", "sliding_attention"]),
        UnsupportedModelError,
        "sliding window",
    ),
    "layer_types too few": (config(layer_types=["full_attention"]), CheckpointError, "entry for each layer"),
    "quantised": (
        config(quantization_config={"quant_method": "gptq"}),
        UnsupportedModelError,
        "quantised ('gptq')",
    ),
    "gelu": (config(hidden_act="gelu"), UnsupportedModelError, "hidden_act 'gelu'"),
    "dtype int8": (config(torch_dtype="int8"), UnsupportedModelError, "torch_dtype 'int8'"),
    "dtype a number": (config(dtype=16), CheckpointError, "dtype must be a string"),
    "eos a string": (config(eos_token_id="2"), CheckpointError, "eos_token_id must be a token id"),
    "eos negative": (config(eos_token_id=[2, -1]), CheckpointError, "not -1"),
    # config.json against the weights
    "another vocab_size": (
        config(vocab_size=33),
        CheckpointError,
        "has shape [32, 16], but the config asks for [33, 16]",
    ),
    "another width": (config(hidden_size=32), CheckpointError, f"tensor {EMBED!r}"),
    "more layers": (config(num_hidden_layers=3), CheckpointError, "are missing in all"),
    "fewer layers": (config(num_hidden_layers=1), CheckpointError, "has no place in a LlamaForCausalLM"),
    "no head": (config(tie_word_embeddings=False), CheckpointError, "tensor 'lm_head.weight'"),
    "another architecture": (config(**QWEN), CheckpointError, "q_proj.bias"),
    # safetensors: the file
    "weights missing": (lambda model: (model / SINGLE).unlink(), ModelNotFoundError, SINGLE),
    "weights empty": (content(SINGLE, b""), CheckpointError, "has 0 bytes, too few"),
    "weights of 7 bytes": (content(SINGLE, b"1234567"), CheckpointError, "too few"),
    "weights of zeros": (content(SINGLE, bytes(4096)), CheckpointError, "not valid JSON"),
    "weights are HTML": (
        content(SINGLE, b"<!DOCTYPE html><html>"),
        CheckpointError,
        "this is not a safetensors file",
    ),
    "weights a Git LFS pointer": (
        content(SINGLE, b"version https://git-lfs.github.com/spec/v1\n"),
        CheckpointError,
        "this is not a safetensors file",
    ),
    "weights a pipe": (replaced(SINGLE, os.mkfifo), CheckpointError, "not a regular file"),
    "weights a device": (replaced(SINGLE, link_to("/dev/zero")), CheckpointError, "leads out of"),
    "weights cut in the data": (resized(SINGLE, -1), CheckpointError, "cut short"),
    "weights cut in the header": (
        lambda model: os.truncate(model / SINGLE, 500),
        CheckpointError,
        "cut short",
    ),
    "weights with a tail": (resized(SINGLE, 8), CheckpointError, "8 bytes that belong to no tensor"),
    "header length 2**64": (header_length(2**64 - 1), CheckpointError, "over the limit"),
    "header length too long": (header_length(10**6), CheckpointError, "the file only"),
    "header length too short": (header_length(10), CheckpointError, "not valid JSON"),
    "header length zero": (header_length(0), CheckpointError, "not valid JSON"),
    "header huge": (sparse(SINGLE, 1 << 40), CheckpointError, "is not valid JSON"),
    "header broad": (header(lambda _: BROAD), CheckpointError, "more than 200,000 values"),
    "header deep": (header(lambda _: b'{"a":' * 100_000), CheckpointError, "nested too deeply"),
    "header a list": (header(lambda _: []), CheckpointError, "object, not a list"),
    "header empty": (header(lambda _: {}), CheckpointError, "belong to no tensor"),
    "header not UTF-8": (header(lambda _: b'{"\xff": 1}'), CheckpointError, "not UTF-8"),
    "tensor twice": (header(repeated_tensor), CheckpointError, f"{EMBED!r} is there twice"),
    "metadata of numbers": (
        header(lambda h: h | {"__metadata__": {"a": 1}}),
        CheckpointError,
        "__metadata__",
    ),
    "metadata a list": (header(lambda h: h | {"__metadata__": []}), CheckpointError, "__metadata__"),
    # safetensors: one tensor
    "entry a list": (header(lambda h: h | {EMBED: []}), CheckpointError, "must have dtype, shape"),
    "entry with more": (entry(extra=1), CheckpointError, "must have dtype, shape"),
    "dtype unknown": (entry(dtype="F31"), CheckpointError, "unknown dtype 'F31'"),
    "dtype null": (entry(dtype=None), CheckpointError, "unknown dtype None"),
    "dtype a list": (entry(dtype=["F32"]), CheckpointError, "unknown dtype a list"),
    "dtype of another size": (entry(dtype="F16"), CheckpointError, "takes 1024 bytes"),
    "dtype integer": (entry(dtype="I32"), UnsupportedModelError, "stored as I32"),
    "shape negative": (entry(shape=[-32, -16]), CheckpointError, "shape must be"),
    "shape overflows": (entry(shape=[2**62, 2**62, 4]), CheckpointError, "a number with over 30 digits"),
    "shape huge": (entry(shape=[2**70]), CheckpointError, "shape must be"),
    "shape of floats": (entry(shape=[32.0, 16.0]), CheckpointError, "shape must be"),
    "shape of booleans": (entry(shape=[True, 512]), CheckpointError, "shape must be"),
    "shape of many": (entry(shape=[1] * 100_000), CheckpointError, "shape must be"),
    "shape turned": (entry(shape=[16, 32]), CheckpointError, "has shape [16, 32]"),
    "offsets swapped": (entry(data_offsets=[2048, 0]), CheckpointError, "begin and an end"),
    "offsets three": (entry(data_offsets=[0, 1, 2]), CheckpointError, "begin and an end"),
    "offsets negative": (entry(data_offsets=[-2048, 0]), CheckpointError, "begin and an end"),
    "offsets outside": (entry(data_offsets=[2**40, 2**40 + 2048]), CheckpointError, "gap of"),
    "offsets overflow": (entry(data_offsets=[2**63, 2**63 + 2048]), CheckpointError, "begin and an end"),
    "offsets overlap": (entry("model.norm.weight", data_offsets=[0, 64]), CheckpointError, "overlaps"),
    "tensor removed": (
        header(lambda h: {name: value for name, value in h.items() if name != EMBED}),
        CheckpointError,
        "gap of",
    ),
    "tensor renamed": (
        header(lambda h: {("\x1b[31m" + name if name == EMBED else name): v for name, v in h.items()}),
        CheckpointError,
        f"tensor {EMBED!r}",
    ),
    # the index and its shards
    "index missing": (
        sharded(lambda model: (model / INDEX).unlink()),
        CheckpointError,
        f"{INDEX}: is missing",
    ),
    "index empty": (sharded(content(INDEX, b"")), CheckpointError, "not valid JSON"),
    "index without a map": (sharded(content(INDEX, b"{}")), CheckpointError, "weight_map is missing"),
    "index map empty": (weight_map(lambda _: {}), CheckpointError, "weight_map is empty"),
    "index map a list": (weight_map(list), CheckpointError, "weight_map must be an object"),
    "index names a number": (
        weight_map(lambda m: m | {EMBED: 1}),
        CheckpointError,
        "1 is not the name of a shard",
    ),
    "index leads up": (
        weight_map(lambda m: m | {EMBED: "../model.safetensors"}),
        CheckpointError,
        "not the name",
    ),
    "index absolute": (
        weight_map(lambda m: m | {EMBED: "/etc/a.safetensors"}),
        CheckpointError,
        "not the name",
    ),
    "index into a folder": (
        weight_map(lambda m: m | {EMBED: "a/b.safetensors"}),
        CheckpointError,
        "not the name",
    ),
    "index with NUL": (weight_map(lambda m: m | {EMBED: "a\0.safetensors"}), CheckpointError, "not the name"),
    "index names a pickle": (weight_map(lambda m: m | {EMBED: "model.bin"}), CheckpointError, "not the name"),
    "index wrong shard": (
        weight_map(lambda m: m | {EMBED: SHARDS[1]}),
        CheckpointError,
        "another shard has it",
    ),
    "index without a tensor": (
        weight_map(lambda m: {name: shard for name, shard in m.items() if name != EMBED}),
        CheckpointError,
        "no shard has it",
    ),
    "index with another tensor": (
        weight_map(lambda m: m | {"extra": SHARDS[0]}),
        CheckpointError,
        f"{SHARDS[0]} does not have it",
    ),
    "shard missing": (
        sharded(lambda m: (m / SHARDS[1]).unlink()),
        CheckpointError,
        "1 of 2 shards are missing",
    ),
    "shard cut": (sharded(resized(SHARDS[1], -1)), CheckpointError, f"{SHARDS[1]}: the header describes"),
    "shard a pipe": (sharded(replaced(SHARDS[0], os.mkfifo)), CheckpointError, "not a regular file"),
    "shard leads out": (
        sharded(replaced(SHARDS[0], link_to("../secret.safetensors"))),
        CheckpointError,
        SHARDS[0],
    ),
    "shard of another series": (
        sharded(content("model-00003-of-00003.safetensors", b"")),
        CheckpointError,
        "model-00003-of-00003.safetensors: is not in the index",
    ),
    "tensor in two shards": (sharded(both_in_first_shard), CheckpointError, "another shard has it"),
    "pickles only": (pickles_only, UnsupportedModelError, "pytorch_model.bin"),
    # generation_config.json
    "generation config cut": (
        content("generation_config.json", b"{"),
        CheckpointError,
        "generation_config.json",
    ),
    "generation config deep": (content("generation_config.json", DEEP), CheckpointError, "nested too deeply"),
    "temperature negative": (
        fields("generation_config.json", temperature=-1),
        CheckpointError,
        "temperature must be from 0",
    ),
    "temperature NaN": (
        fields("generation_config.json", temperature=float("nan")),
        CheckpointError,
        "temperature",
    ),
    "temperature a string": (
        fields("generation_config.json", temperature="hot"),
        CheckpointError,
        "temperature",
    ),
    "top_p above one": (fields("generation_config.json", top_p=1.5), CheckpointError, "top_p must be from"),
    "top_k a float": (
        fields("generation_config.json", top_k=1.5),
        CheckpointError,
        "top_k must be an integer",
    ),
    "penalty zero": (
        fields("generation_config.json", repetition_penalty=0),
        CheckpointError,
        "repetition_penalty",
    ),
    "do_sample a string": (fields("generation_config.json", do_sample="no"), CheckpointError, "do_sample"),
    "generation eos nested": (
        fields("generation_config.json", eos_token_id=[[2]]),
        CheckpointError,
        "eos_token_id",
    ),
    "generation config a pipe": (
        replaced("generation_config.json", os.mkfifo),
        CheckpointError,
        "regular file",
    ),
    # the tokenizer's files and the templates
    "tokenizer config cut": (content("tokenizer_config.json", b"{"), TokenizerError, "tokenizer_config.json"),
    "tokenizer config a list": (content("tokenizer_config.json", b"[]"), TokenizerError, "not a list"),
    "tokenizer config deep": (content("tokenizer_config.json", DEEP), TokenizerError, "nested too deeply"),
    "tokenizer a pipe": (replaced("tokenizer.json", os.mkfifo), CheckpointError, "not a regular file"),
    "tokenizer huge": (sparse("tokenizer.json", 1 << 40), TokenizerError, "over the limit"),
    "template a number": (fields("tokenizer_config.json", chat_template=1), CheckpointError, "chat_template"),
    "template list of strings": (
        fields("tokenizer_config.json", chat_template=["a"]),
        CheckpointError,
        "must list objects",
    ),
    "template without a name": (
        fields("tokenizer_config.json", chat_template=[{"template": "a"}]),
        CheckpointError,
        "need a name and a template",
    ),
    "template named twice": (
        fields("tokenizer_config.json", chat_template=[{"name": "a", "template": "b"}] * 2),
        CheckpointError,
        "'a' is there twice",
    ),
    "templates too many": (
        fields(
            "tokenizer_config.json",
            chat_template=[{"name": str(number), "template": ""} for number in range(1000)],
        ),
        CheckpointError,
        "more than 32",
    ),
    "template half a pair": (
        content("tokenizer_config.json", b'{"chat_template": "\\ud800"}'),
        CheckpointError,
        "surrogate",
    ),
    "template long": (
        fields("tokenizer_config.json", chat_template="a" * 2**21),
        CheckpointError,
        "characters",
    ),
    "template file not UTF-8": (
        content("chat_template.jinja", b"\xff"),
        CheckpointError,
        "chat_template.jinja",
    ),
    "template file huge": (
        sparse("chat_template.jinja", 1 << 40),
        CheckpointError,
        "chat_template.jinja: has",
    ),
    "template file a pipe": (
        replaced("chat_template.jinja", os.mkfifo),
        CheckpointError,
        "not a regular file",
    ),
    "template file leads out": (
        replaced("chat_template.jinja", link_to("/etc/passwd")),
        CheckpointError,
        "leads out of",
    ),
    "named template not UTF-8": (
        content("additional_chat_templates/rag.jinja", b"\xff"),
        CheckpointError,
        "additional_chat_templates/rag.jinja",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_model_gives_one_typed_error(case: str, tmp_path: Path) -> None:
    damage, expected, message = CASES[case]
    model = write_model(tmp_path / "model")
    damage(model)

    text = str(refused_within_limits(lambda: open_model(str(model)), expected))

    assert message in text
    assert str(tmp_path) not in text
    assert "/dev/" not in text
    assert "/etc/passwd" not in text
    assert len(text) < 500
    assert text.isprintable()


def test_the_undamaged_model_opens(tmp_path: Path) -> None:
    assert open_model(str(write_model(tmp_path / "single"))).config.hidden_size == 16
    assert open_model(str(write_model(tmp_path / "sharded", sharded=True))).config.hidden_size == 16


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(CASES) >= 60

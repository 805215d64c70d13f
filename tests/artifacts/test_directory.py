from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.small import CONFIG, SINGLE, edit_json, write_json, write_model
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from tinyllm.params import SamplingDefaults


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("checkpoint", "eos", "dtype"),
    [
        ("smollm2", (2,), "bfloat16"),
        ("tiny_llama", (2, 0), "float32"),
        ("tiny_qwen2", (2,), "float32"),
        ("tiny_qwen3", (151645,), "float32"),
    ],
)
def test_good_checkpoints_open(
    checkpoint: str, eos: tuple[int, ...], dtype: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(checkpoint)
    artifacts = open_directory(path)
    assert artifacts.name == path.name
    assert (artifacts.kind, artifacts.revision) == ("directory", None)
    assert artifacts.eos_token_ids == eos
    assert artifacts.config.dtype == dtype
    assert artifacts.tokenizer is not None
    assert artifacts.tokenizer.kind == "tokenizer.json"
    assert artifacts.tokenizer.path == path.resolve() / "tokenizer.json"
    assert list(artifacts.chat_templates) == ["default"]


def test_opening_does_not_import_torch(model: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from tinyllm.artifacts.directory import open_directory; "
        "open_directory(Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(model)], check=True)


# end-of-sequence ids


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        (None, None, ()),
        (None, 3, (3,)),
        (2, [2, 3], (2, 3)),
        ([5, 4], [3, 4], (5, 4, 3)),
        (2, [2, 31, 32, 99], (2, 31)),  # the vocabulary has 32
    ],
)
def test_eos_is_the_union(model: Path, config: Any, generation: Any, expected: tuple[int, ...]) -> None:
    edit_json(model / "config.json", eos_token_id=config)
    write_json(model / "generation_config.json", {"eos_token_id": generation})
    assert open_directory(model).eos_token_ids == expected


# generation_config.json


def test_generation_config_is_optional(model: Path) -> None:
    (model / "generation_config.json").unlink()
    artifacts = open_directory(model)
    assert artifacts.sampling_defaults == SamplingDefaults()
    assert artifacts.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, SamplingDefaults()),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, SamplingDefaults(temperature=0.6, top_k=20)),
        ({"temperature": 0.6}, SamplingDefaults(temperature=0.6)),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
        ({"do_sample": None, "top_p": None}, SamplingDefaults()),
        ({"top_p": 1, "min_p": 0, "typical_p": 1.0}, SamplingDefaults(top_p=1.0, min_p=0.0, typical_p=1.0)),
        ({"repetition_penalty": 1.05, "num_beams": 4}, SamplingDefaults(repetition_penalty=1.05)),
    ],
)
def test_sampling_defaults(model: Path, values: dict[str, Any], expected: SamplingDefaults) -> None:
    write_json(model / "generation_config.json", values)
    assert open_directory(model).sampling_defaults == expected


# dtype


def test_a_config_without_dtype_takes_the_dtype_of_the_weights(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    edit_json(model / "config.json", torch_dtype=None)
    assert open_directory(model).config.dtype == "float32"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(model / SINGLE).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    save_file(tensors, model / SINGLE)
    assert open_directory(model).config.dtype == "bfloat16"
    edit_json(model / "config.json", dtype="float16")
    assert open_directory(model).config.dtype == "float16"


# tokenizer and chat templates


def test_tokenizer_json_comes_before_sentencepiece(model: Path) -> None:
    (model / "tokenizer.model").write_bytes(b"pieces")
    assert kind_of_tokenizer(open_directory(model)) == "tokenizer.json"
    (model / "tokenizer.json").unlink()
    assert kind_of_tokenizer(open_directory(model)) == "sentencepiece"
    (model / "tokenizer.model").unlink()
    assert kind_of_tokenizer(open_directory(model)) is None


def kind_of_tokenizer(artifacts: ModelArtifacts) -> str | None:
    return artifacts.tokenizer.kind if artifacts.tokenizer else None


def test_tokenizer_config_comes_along(model: Path) -> None:
    edit_json(model / "tokenizer_config.json", add_bos_token=True)
    tokenizer = open_directory(model).tokenizer
    assert tokenizer is not None
    assert tokenizer.config["add_bos_token"] is True


def test_no_template_is_no_fault(model: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    assert open_directory(model).chat_templates == {}


def test_named_templates_in_the_tokenizer_config(model: Path) -> None:
    entries = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write_json(model / "tokenizer_config.json", {"chat_template": entries})
    assert open_directory(model).chat_templates == {"default": "plain", "tool_use": "tools"}


@pytest.mark.parametrize("folder", ["additional_chat_templates", "chat_templates"])
def test_template_files_win(model: Path, folder: str) -> None:
    entries = [{"name": "default", "template": "old"}, {"name": "rag", "template": "old"}]
    write_json(model / "tokenizer_config.json", {"chat_template": entries})
    (model / "chat_template.jinja").write_text("new é")
    (model / folder).mkdir()
    (model / folder / "rag.jinja").write_text("new rag")
    (model / folder / "README.md").write_text("not a template")
    assert open_directory(model).chat_templates == {"default": "new é", "rag": "new rag"}


# links


def test_links_inside_the_directory_are_followed(model: Path) -> None:
    (model / SINGLE).rename(model / "weights.safetensors")
    (model / SINGLE).symlink_to("weights.safetensors")
    open_directory(model)


def test_a_link_to_the_directory_itself_is_fine(model: Path) -> None:
    link = model.parent / "link"
    link.symlink_to(model.name)
    assert open_directory(link).config.vocab_size == 32


def snapshot(root: Path) -> Path:
    """Lay a model out as the Hub's cache does: a snapshot of links into blobs."""
    model = write_model(root / "plain")
    repository = root / "models--org--name"
    directory = repository / "snapshots" / "abc"
    directory.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(model.iterdir()):
        file.rename(repository / "blobs" / str(number))
        (directory / file.name).symlink_to(f"../../blobs/{number}")
    return directory


def test_a_hub_snapshot_may_link_into_its_blobs(tmp_path: Path) -> None:
    artifacts = open_directory(snapshot(tmp_path), name="org/name", kind="hub", revision="abc")
    assert (artifacts.name, artifacts.kind, artifacts.revision) == ("org/name", "hub", "abc")


def test_a_hub_snapshot_may_link_nowhere_else(tmp_path: Path) -> None:
    directory = snapshot(tmp_path)
    other = tmp_path / "models--org--other" / "blobs"
    other.mkdir(parents=True)
    (directory / "config.json").unlink()
    write_json(other / "config.json", CONFIG)
    (directory / "config.json").symlink_to(other / "config.json")
    with pytest.raises(CheckpointError, match="leads out of the model's directory"):
        open_directory(directory)


def test_blobs_that_are_a_link_themselves_lead_out(tmp_path: Path) -> None:
    directory = snapshot(tmp_path)
    blobs = directory.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of the model's directory"):
        open_directory(directory)


# weights in another form


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused_with_a_way_out(model: Path, name: str) -> None:
    (model / SINGLE).rename(model / name)
    with pytest.raises(UnsupportedModelError, match=rf"{name}.*can run code.*safetensors"):
        open_directory(model)


def test_a_directory_of_gguf_files_says_what_to_give(model: Path) -> None:
    (model / SINGLE).rename(model / "model.gguf")
    with pytest.raises(ModelNotFoundError, match="give the path of the file"):
        open_directory(model)

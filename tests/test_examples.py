"""What users copy runs: every example, the notebook, and the README's code."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = load(path).main
    if inspect.iscoroutinefunction(main):
        asyncio.run(main(str(tiny_llama)))
    else:
        main(str(tiny_llama))
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_notebook(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own machinery
        import nbformat
        from nbclient import NotebookClient

        monkeypatch.setenv("TINYLLM_EXAMPLE_MODEL", str(smollm2))
        notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    ]
    assert "Paris" in printed[0]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [(page, i, code) for page in PAGES for i, code in enumerate(python_blocks(page))]


@pytest.mark.weights
@pytest.mark.parametrize(
    ("page", "code"),
    [pytest.param(page, code, id=f"{page.stem}-{i}") for page, i, code in BLOCKS],
)
def test_code_in_the_docs_runs(page: Path, code: str, demo_model: Path) -> None:
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"

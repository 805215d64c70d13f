"""What is installed from a wheel is all of tinyllm, the web page too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(place),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    [path] = place.glob("*.whl")
    return path


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", folder], check=True, capture_output=True, text=True
    )
    return set(listed.stdout.split())


@pytest.mark.slow
def test_the_wheel_has_the_package_and_the_page_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in tracked("tinyllm") if name not in names} == set()
    assert {name for name in tracked("web") if f"tinyllm/{name}" not in names} == set()
    assert "tinyllm/web/index.html" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tinyllm"}


@pytest.mark.slow
def test_the_page_is_served_from_what_is_installed(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import tinyllm.server.page as page; print(page.WEB)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,  # in front of the checkout
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(run.stdout.strip()) == tmp_path / "tinyllm" / "web"
    assert (tmp_path / "tinyllm" / "web" / "index.html").is_file()

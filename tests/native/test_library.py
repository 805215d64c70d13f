"""Building and loading the C kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tinyllm.native import library
from tinyllm.native.library import NativeUnavailableError, build_library, load_library


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TINYLLM_CACHE_DIR", str(tmp_path))
    load_library.cache_clear()
    yield
    load_library.cache_clear()


def test_the_second_load_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_library()
    (built,) = (tmp_path / "native").glob("kernels-*")
    assert (built / library.LIBRARY).is_file()

    load_library.cache_clear()
    monkeypatch.setattr(library, "_build", lambda *_: pytest.fail("built again"))
    assert load_library().tinyllm_attend


def test_building_shows_nothing_where_no_progress_is_wanted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    build_library(progress=False)
    assert capsys.readouterr().err == ""
    assert len(list((tmp_path / "native").glob("kernels-*"))) == 1


def test_on_a_terminal_building_is_seen_once(tmp_path: Path) -> None:
    code = "from tinyllm.native.library import build_library as build; build(progress=True); print('done')"
    environment = os.environ | {"TINYLLM_CACHE_DIR": str(tmp_path)}
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    for is_new in (True, False):
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=slave) as process:
            os.close(slave)
            shown = b""
            with suppress(OSError):  # how a terminal's end is told
                while data := os.read(master, 1024):
                    shown += data
        os.close(master)
        assert process.returncode == 0
        assert (b"Compiling kernels" in shown) == is_new


def test_what_cannot_be_built_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_NATIVE", "0")
    build_library(progress=True)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NativeUnavailableError, match="no C compiler"):
        load_library()


def test_a_compiler_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "bad-cc"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'no such flag' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(NativeUnavailableError, match="no such flag"):
        load_library()
    assert list((tmp_path / "native").glob("*kernels-*/*")) == []


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_NATIVE", "0")
    with pytest.raises(NativeUnavailableError, match="TINYLLM_NATIVE=0"):
        load_library()


def test_another_compiler_is_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_library()
    wrapper = tmp_path / "other-cc"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo other && exit 0\nexec cc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    load_library.cache_clear()
    load_library()
    assert len(list((tmp_path / "native").glob("kernels-*"))) == 2


def test_the_sources_compile_without_warnings(tmp_path: Path) -> None:
    sources = [str(Path(library.__file__).parent / name) for name in library.SOURCES]
    command = [
        library._compiler(),
        *library.FLAGS,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(tmp_path / "k.so"),
        *sources,
    ]
    subprocess.run(command, check=True, timeout=120)

"""Models of the Hugging Face Hub: one revision, pinned to a commit, and only the files that tinyllm reads."""

from __future__ import annotations

import errno
import glob
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from tinyllm.artifacts.directory import (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    read_json,
)
from tinyllm.artifacts.files import ModelDirectory
from tinyllm.artifacts.json_file import Fields
from tinyllm.artifacts.safetensors import INDEX_FILE, SINGLE_FILE
from tinyllm.artifacts.templates import TEMPLATE_FILE, TEMPLATE_FOLDERS
from tinyllm.errors import ArtifactError, ModelDownloadError, ModelNotFoundError, UnsupportedModelError

__all__ = ["fetch_snapshot"]

T = TypeVar("T")

SIGNAL_SECONDS: Final = 0.2
"""In which an interrupt is noticed at the latest."""
_SMALL_FILES: Final = (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    "tokenizer.json",
    "tokenizer.model",
    TEMPLATE_FILE,
    *(f"{folder}/*.jinja" for folder in TEMPLATE_FOLDERS),
)


def fetch_snapshot(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
    endpoint: str | None = None,
) -> tuple[Path, str]:
    """Return the directory with the files of a model of the Hub, and the commit they are of.

    ``revision`` (a branch, tag or commit; default: the main branch) is looked up once, and every file is of
    the commit that it then is. What is in the cache already is not fetched again, and a broken transfer goes
    on where it stopped. ``token``, ``cache_dir`` and ``endpoint`` default to what ``huggingface_hub`` takes
    from the environment. With ``offline``, also set by ``HF_HUB_OFFLINE=1``, only the cache is looked at.

    Raises `ModelNotFoundError`, `ModelDownloadError`, or `UnsupportedModelError` for a repository without
    safetensors files.
    """
    from huggingface_hub import constants

    offline = offline or constants.HF_HUB_OFFLINE
    source: dict[str, Any] = {"cache_dir": cache_dir, "token": token, "endpoint": endpoint}
    with _typed_errors(repo_id, revision, offline), _progress_bars(progress):
        snapshot = _interruptible(lambda: _fetch(repo_id, revision, offline, source))
    return snapshot, snapshot.name


def _interruptible(function: Callable[[], T]) -> T:
    """Call a function on a thread that an interrupted caller can leave behind.

    The library, interrupted itself, would first wait for all of its threads, to the last byte.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="tinyllm-fetch", daemon=True).start()
    # In slices: Python's handler runs when this thread does, and the system may give a signal to another one.
    while not future.done():
        wait([future], timeout=SIGNAL_SECONDS)
    return future.result()


def _fetch(repo_id: str, revision: str | None, offline: bool, source: dict[str, Any]) -> Path:
    from huggingface_hub import constants, snapshot_download

    revision = revision or constants.DEFAULT_REVISION
    commit = revision if offline else _pinned(repo_id, revision, source)
    small: dict[str, Any] = {"allow_patterns": list(_SMALL_FILES), "local_files_only": offline}
    snapshot = Path(snapshot_download(repo_id, revision=commit, **small, **source))
    if not (snapshot / CONFIG_FILE).exists():
        raise ModelNotFoundError(f"{repo_id} has no {CONFIG_FILE}, so it is not a model that tinyllm reads")
    if offline:
        _refuse_partial(snapshot, repo_id)
    else:
        _remember(snapshot, revision)
        _fetch_weights(repo_id, snapshot, source)
    return snapshot


def _pinned(repo_id: str, revision: str, source: dict[str, Any]) -> str | None:
    """Return the commit that a revision is. The library, asked for a snapshot of it, would wait for ever."""
    from huggingface_hub import HfApi, constants

    api = HfApi(endpoint=source["endpoint"], token=source["token"])
    return api.repo_info(repo_id, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT).sha


def _remember(snapshot: Path, revision: str) -> None:
    """Note in the library's cache which commit a revision is, as the library does for offline mode."""
    reference = snapshot.parents[1] / "refs" / revision
    if revision == snapshot.name or (reference.exists() and reference.read_text() == snapshot.name):
        return  # the cache may be one that only others write to
    reference.parent.mkdir(parents=True, exist_ok=True)
    partial = reference.with_name(f"{reference.name}.{uuid4().hex}.partial")
    partial.write_text(snapshot.name)
    partial.replace(reference)


def _fetch_weights(repo_id: str, snapshot: Path, source: dict[str, Any]) -> None:
    """Fetch the one file with the weights, or the index and its shards, of the snapshot's commit."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    commit = snapshot.name
    api = HfApi(endpoint=source["endpoint"], token=source["token"])
    names = api.list_repo_files(repo_id, revision=commit)
    if SINGLE_FILE in names:
        wanted = {SINGLE_FILE}
    elif INDEX_FILE in names:
        hf_hub_download(repo_id, INDEX_FILE, revision=commit, **source)
        wanted = _shards(snapshot)
    else:
        raise _no_safetensors(repo_id, names)
    patterns = [glob.escape(name) for name in wanted]
    snapshot_download(repo_id, revision=commit, allow_patterns=patterns, **source)


def _shards(snapshot: Path) -> set[str]:
    """Return the names in the index; whether they make sense is checked when the model is opened."""
    index = Fields(read_json(ModelDirectory(snapshot), INDEX_FILE) or {}, INDEX_FILE)
    return {name for name in index.mapping("weight_map", {}).values() if isinstance(name, str)}


def _refuse_partial(snapshot: Path, repo_id: str) -> None:
    weights = {SINGLE_FILE}
    if not (snapshot / SINGLE_FILE).exists() and (snapshot / INDEX_FILE).exists():
        weights = _shards(snapshot)
    missing = sorted(name for name in weights if not (snapshot / name).exists())
    if missing:
        raise ModelDownloadError(
            f"{repo_id}: only a part of it is in the cache ({missing[0][:100]} is missing); "
            "fetch the rest once without offline mode"
        )


def _no_safetensors(repo_id: str, names: Collection[str]) -> UnsupportedModelError:
    if any(name.endswith(".gguf") for name in names):
        hint = "it has GGUF files: fetch one and give its path"
    else:
        hint = "tinyllm opens no pickles; look for a revision or a copy with safetensors files"
    return UnsupportedModelError(f"{repo_id} has neither {SINGLE_FILE} nor {INDEX_FILE}; {hint}")


@contextmanager
def _progress_bars(progress: bool) -> Iterator[None]:
    """Switch the library's progress bars off for a while, unless ``progress``."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if progress or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _typed_errors(repo_id: str, revision: str | None, offline: bool) -> Iterator[None]:
    """Turn whatever the library, or the HTTP library under it, raises into one of our errors."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        raise _typed(error, repo_id, revision or "main", offline) from error


def _typed(error: Exception, repo_id: str, revision: str, offline: bool) -> ArtifactError:
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return ModelNotFoundError(
                f"{repo_id} is gated: accept its terms on its page, then set HF_TOKEN to your account's token"
            )
        case errors.RepositoryNotFoundError():
            return _no_access(repo_id)
        case errors.RevisionNotFoundError():
            return ModelNotFoundError(f"{repo_id} has no revision {revision[:100]!r}")
        case errors.LocalEntryNotFoundError() if offline:
            return ModelDownloadError(
                f"{repo_id} (revision {revision[:100]!r}) is not in the cache, and offline mode is on; "
                "fetch it once without offline mode"
            )
        case errors.HfHubHTTPError() | errors.LocalEntryNotFoundError() if _status(error) in (401, 403):
            return _no_access(repo_id)
        case errors.LocalEntryNotFoundError():
            return ModelDownloadError(
                f"{repo_id} could not be fetched ({_cause(error)}) and is not in the cache; "
                "check the network and try again"
            )
        case errors.HFValidationError():
            return ModelNotFoundError(f"{repo_id[:100]!r} is not a model id: it must be like org/name")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return ModelDownloadError(
                f"{repo_id}: the disk is full; free some space, or use another cache directory"
            )
    return ModelDownloadError(
        f"{repo_id} could not be fetched ({_cause(error)}); what came so far is kept: check the network and "
        "try again, or use what is in the cache with offline mode"
    )


def _no_access(repo_id: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"there is no model {repo_id}, or it is private: check the name, or set HF_TOKEN to a token that may "
        "read it"
    )


def _cause(error: BaseException) -> str:
    """Name the fault without addresses or paths: an HTTP status, a system error, or the error's type."""
    if status := _status(error):
        return f"HTTP status {status}"
    root = _root(error)
    return getattr(root, "strerror", None) or type(root).__name__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(_root(error), "response", None), "status_code", None)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error

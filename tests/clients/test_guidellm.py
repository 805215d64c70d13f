"""guidellm as it comes: it benchmarks the server, over HTTP/1.1, and finds everything it looks for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, MODEL
from tests.clients.environments import environment
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.slow]

REQUESTS = 12


def test_a_benchmark(
    server: ServerProcess, python: Callable[[str], Path], tiny_llama: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    options = {
        "backend": f"kind=openai_http,target={server.url},model={MODEL},api_key={KEY}",
        "profile": "kind=concurrent,streams=3",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "data": "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "tokenizer": f"kind=hf_auto,model={tiny_llama}",
        "output": f"kind=json,path={report}",
    }
    command = [str(python("guidellm")), "-m", "guidellm", "run", "--disable-console"]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0)
    for request in benchmark["requests"]["successful"]:
        check_request(request)


def check_request(request: dict[str, Any]) -> None:
    """The counts are the server's own. Tokens that are there together come in one chunk."""
    assert request["output"]
    assert request["response_id"].startswith("chatcmpl-")
    assert request["output_tokens"] == 16
    assert request["prompt_tokens"] > 32
    assert 1 < request["info"]["timings"]["token_iterations"] <= 16

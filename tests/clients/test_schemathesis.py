"""schemathesis: does the server do what /openapi.json says, whatever it is sent?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.clients.environments import environment
from tests.server.process import server_process

pytestmark = [pytest.mark.clients, pytest.mark.slow]

CASES = 2000
EXAMPLES = 50
"""Of each operation, at most."""

NOT_CHECKED = {
    "positive_data_acceptance": "fields that fit alone may not fit together, the context or the vocabulary",
    "allow_header_conformance": "ids may hold slashes, so DELETE /v1/requests/{id} also fits its neighbour",
}
GENERATES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize")


def test_the_server_does_what_it_says(
    python: Callable[[str], Path], tiny_llama: Path, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "tinyllm", "serve", str(tiny_llama), "--dtype", "float32")
    options = ("--num-threads", "1", "--max-model-len", "128", "--no-access-log")
    report = tmp_path / "report.ndjson"
    with server_process(*command, *options, api_keys=KEY) as server:
        tester = [str(python("newest").parent / "schemathesis"), "run", f"{server.url}/openapi.json"]
        tester += ["-H", f"Authorization: Bearer {KEY}", "--max-examples", str(EXAMPLES), "--seed", "1"]
        tester += ["--checks", "all", "--exclude-checks", ",".join(NOT_CHECKED)]
        tester += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-shrink"]
        tester += ["--generation-database", "none", "--report", "ndjson", "--report-ndjson-path", str(report)]
        done = subprocess.run(
            tester, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert server.get("/ready").status == 200
    [generated] = re.findall(r"(\d+) generated", done.stdout)
    assert int(generated) >= CASES
    statuses = statuses_of(report)
    assert not [status for _, status in statuses if status >= 500]
    for path in GENERATES:  # and not because everything was refused
        assert statuses[f"POST {path}", 200] >= 5, statuses


def statuses_of(report: Path) -> Counter[tuple[str, int]]:
    """Count the responses by operation and status."""
    found: Counter[tuple[str, int]] = Counter()
    for line in report.read_text().splitlines():
        recorder: dict[str, Any] = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for interaction in recorder.get("interactions", {}).values():
            if response := interaction.get("response"):
                found[recorder["label"], response["status_code"]] += 1
    return found

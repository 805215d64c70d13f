"""The commands that people type, on real checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import ServerProcess, read_response, request_bytes, server_process

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SERVE = (sys.executable, "-m", "tinyllm", "serve")
HYPERCORN = (*SERVE[:2], "hypercorn", "tinyllm.app:app", "--bind", "127.0.0.1:0", "--workers", "0")
HI = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[ServerProcess]:
    with server_process(
        *SERVE, str(tiny_llama), "--num-threads", "1", "--status-log-interval", "0"
    ) as process:
        yield process


def chunks(body: bytes) -> list[Any]:
    lines = [line for line in body.decode().split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_chat_whole_and_streamed(server: ServerProcess) -> None:
    fields = {"messages": HI, "max_tokens": 12, "temperature": 0}
    whole = server.post(CHAT, fields).json
    assert whole["model"] == "tiny-llama"
    text = whole["choices"][0]["message"]["content"]
    assert text
    streamed = chunks(server.post(CHAT, {**fields, "stream": True}).body)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed) == text


def test_an_effort_that_the_template_does_not_read_is_told(server: ServerProcess) -> None:
    reply = server.post(CHAT, {"messages": HI, "max_tokens": 1, "reasoning_effort": "low"})
    assert reply.status == 200
    assert reply.headers["x-tinyllm-ignored-fields"] == "reasoning_effort"
    body = {"input": "hi", "max_output_tokens": 1, "reasoning": {"effort": "low"}}
    assert server.post("/v1/responses", body).headers["x-tinyllm-ignored-fields"] == "reasoning.effort"


def test_text_ids_and_rendered_prompts_agree(server: ServerProcess) -> None:
    rendered = server.post(f"{CHAT}/render", {"messages": HI}).json
    fields = {"max_tokens": 8, "temperature": 0, "return_token_ids": True}
    chat = server.post(CHAT, {"messages": HI, **fields}).json
    assert chat["prompt_token_ids"] == rendered["prompt_token_ids"]
    by_ids = server.post(TEXT, {"prompt": rendered["prompt_token_ids"], **fields}).json
    assert by_ids["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
    assert (
        server.post("/detokenize", {"tokens": rendered["prompt_token_ids"]}).json["prompt"]
        == rendered["prompt"]
    )


SETTLED = """
import asyncio, gc, sys
from tinyllm.server.app import create_app
from tinyllm.server.settings import ServerConfig

async def main():
    app = create_app(ServerConfig(model=sys.argv[1], num_threads=1, progress=False))
    async with app.test_app():
        while app.extensions["tinyllm"].loaded_engine is None:
            await asyncio.sleep(0.01)
        print(gc.get_freeze_count())

asyncio.run(main())
"""


def test_the_garbage_collector_passes_over_what_stays(tiny_llama: Path) -> None:
    """Going through torch, the model and the server takes it 0.1 s, and would be done again and again."""
    command = [sys.executable, "-c", SETTLED, str(tiny_llama)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) > 50_000


@pytest.mark.parametrize(
    "messages",
    [
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": 7, "content": "x"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "assistant", "content": None, "tool_calls": "x"}],
    ],
)
@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/render", "/tokenize"])
def test_messages_that_are_none(server: ServerProcess, path: str, messages: Any) -> None:
    answer = server.post(path, {"messages": messages})
    assert answer.status == 400, answer.body
    assert answer.json["error"]["param"] == "messages"


def test_parts_roles_and_tool_calls_of_a_history(server: ServerProcess) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "user", "name": "me", "content": "go on"},
    ]
    prompt = server.post(f"{CHAT}/render", {"messages": messages}).json["prompt"]
    assert "Be brief." in prompt
    assert "a\nb" in prompt
    assert "None" not in prompt
    assert server.post(CHAT, {"messages": messages, "max_tokens": 1}).status == 200


def test_seed(server: ServerProcess) -> None:
    fields = {"prompt": "a", "seed": 5, "temperature": 1.5, "max_tokens": 10}
    texts = {server.post(TEXT, fields).json["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_options_that_leave_no_token_are_the_clients_fault(server: ServerProcess, stream: bool) -> None:
    fields = {"prompt": "a", "allowed_token_ids": [2, 0], "min_tokens": 1, "max_tokens": 4}  # both are EOS
    answer = server.post(TEXT, {**fields, "stream": stream})
    assert (answer.status, answer.json["error"]["code"]) == (400, "no_token_left")


def test_hanging_up_while_a_long_prompt_is_computed(server: ServerProcess) -> None:
    ids = [5 + i % 1000 for i in range(4000)]
    sock = server.connect()
    sock.sendall(request_bytes("POST", TEXT, {"prompt": ids, "max_tokens": 50}))
    server.wait_until(lambda: server.metric("num_requests_running") > 0)
    sock.close()
    server.wait_idle()
    assert server.metric("kv_cache_usage_perc") == 0


def test_health_answers_while_a_large_chat_is_prepared(server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 180_000}]}  # 900 kB, far beyond the context
    seen: list[int] = []

    def ask() -> None:
        with server.connect() as sock:
            sock.sendall(request_bytes("POST", CHAT, body))
            seen.append(read_response(sock).status)

    thread = threading.Thread(target=ask)
    thread.start()
    worst = 0.0
    while thread.is_alive():
        started = time.monotonic()
        assert server.get("/health").status == 200
        worst = max(worst, time.monotonic() - started)
        time.sleep(0.01)
    thread.join()
    assert seen == [400]
    assert worst < 0.5


def test_idle_costs_nothing(server: ServerProcess) -> None:
    psutil = pytest.importorskip("psutil")
    process = psutil.Process(server.process.pid)
    server.wait_idle()
    time.sleep(0.3)
    before = process.cpu_times()
    time.sleep(2)
    after = process.cpu_times()
    assert (after.user - before.user) + (after.system - before.system) < 0.04


def test_hypercorn_by_itself(tiny_llama: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "hypercorn",
        "tinyllm.app:app",
        "--bind",
        "127.0.0.1:0",
        "--workers",
        "0",
    )
    with server_process(
        *command, model=tiny_llama, num_threads=1, served_model_name="mine", prot=1
    ) as server:
        assert any("TINYLLM_PROT is not an option" in line for line in server.lines)
        answer = server.post(CHAT, {"messages": HI, "max_tokens": 3, "model": "mine"})
        assert answer.status == 200
        smuggled = request_bytes("POST", "/tokenize", b"0\r\n\r\n", Transfer_Encoding="chunked")
        with server.connect() as sock:
            sock.sendall(smuggled)
            assert read_response(sock).status == 400
            assert sock.recv(1) == b""
        server.signal()
        assert server.exit_code() == 0


def test_hypercorn_with_a_bad_model_ends(tmp_path: Path) -> None:
    with server_process(*HYPERCORN, ready=False, model=tmp_path) as server:
        assert server.exit_code(60) == 2


def test_qwen3_thinks_unless_told_not_to(tiny_qwen3: Path) -> None:
    with server_process(*SERVE, str(tiny_qwen3), "--num-threads", "1", "--max-model-len", "512") as server:
        assert server.get("/props").json["reasoning"] is True
        off = {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}}
        assert "<think>\n\n</think>" in server.post(f"{CHAT}/render", off).json["prompt"]
        assert "</think>" not in server.post(f"{CHAT}/render", {"messages": HI}).json["prompt"]
        begun = [*HI, {"role": "assistant", "content": "<think>\nwell"}]
        fields = {"messages": begun, "continue_final_message": True, "max_tokens": 4}
        assert server.post(CHAT, fields).status == 200

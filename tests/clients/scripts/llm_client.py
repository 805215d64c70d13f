"""Simon Willison's ``llm`` command, with the server as models in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import LONG, arguments, inner_words, run

URL, KEY, MODEL = arguments()
HOME = Path(tempfile.mkdtemp(prefix="llm-"))
ENVIRONMENT = {**os.environ, "LLM_USER_PATH": str(HOME)}
SAY = "Say something."
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "12")
KINDS = {"chat": "", "text": "  completion: true\n", "responses": "  responses: true\n"}


def set_up() -> None:
    models = "".join(
        f"- model_id: my-{kind}\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  api_key_name: mine\n{option}"
        for kind, option in KINDS.items()
    )
    (HOME / "extra-openai-models.yaml").write_text(models)
    (HOME / "keys.json").write_text(json.dumps({"mine": KEY}))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "llm", *words]


def llm(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(done.stderr)
    return done


def say(*words: str, model: str = "my-chat") -> str:
    return llm("-m", model, SAY, *GREEDY, *words).stdout.removesuffix("\n")


def last_response() -> dict[str, Any]:
    [entry] = json.loads(llm("logs", "list", "-n", "1", "--json").stdout)
    response: dict[str, Any] = entry
    return response


def plain() -> Any:
    text = say("--no-stream")
    entry = last_response()
    return {"text": text, "usage": [entry["input_tokens"], entry["output_tokens"]]}


def stream() -> Any:
    return {"text": say()}


def usage() -> Any:
    done = llm("-m", "my-chat", SAY, *GREEDY, "-u")
    return {"line": done.stderr.strip()}


def stop() -> Any:
    text = say()
    word = inner_words(text)
    return {
        "expected": text.partition(word)[0],
        "streamed": say("-o", "stop", word),
        "text": say("-o", "stop", word, "--no-stream"),
    }


def seed() -> Any:
    hot = ("-o", "temperature", "1.5", "-o", "max_tokens", "12")
    texts = [llm("-m", "my-chat", SAY, *hot, "-o", "seed", seed).stdout for seed in ("7", "7", "8")]
    return {"same": texts[:2], "other": texts[2]}


def logprobs() -> Any:
    text = say("-o", "logprobs", "2", model="my-text")
    return {"text": text, "plain": say("--no-stream", model="my-text")}


def responses() -> Any:
    return {"streamed": say(model="my-responses"), "text": say("--no-stream", model="my-responses")}


def conversation() -> Any:
    llm("-m", "my-chat", SAY, *GREEDY, "-s", "Be brief.")
    first = last_response()["input_tokens"]
    llm("-m", "my-chat", "Go on.", *GREEDY, "-c")
    return {"first": first, "second": last_response()["input_tokens"]}


def bias() -> Any:
    return {"text": say("-o", "logit_bias", json.dumps({"100": 100}))}


def errors() -> Any:
    calls = {
        "value": ("-m", "my-chat", SAY, "-o", "seed", str(2**70)),
        "length": ("-m", "my-chat", "x " * 9000),
        "json": ("-m", "my-chat", f"{SAY} As JSON.", "-o", "json_object", "1"),
        "key": ("-m", "my-chat", SAY, "--key", "sk-not-the-right-one"),
    }
    found = {}
    for name, words in calls.items():
        done = llm(*words, check=False)
        found[name] = [done.returncode, done.stderr[-300:]]
    return found


def cancel() -> Any:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or a background job's child would ignore it
    words = command("-m", "my-chat", SAY, "-o", "max_tokens", str(LONG))
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        seen = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    return {"seen": len(seen), "code": process.returncode}


def models() -> Any:
    return {"listed": [line for line in llm("models").stdout.splitlines() if ": my-" in line]}


set_up()
run(
    {
        "plain": plain,
        "stream": stream,
        "usage": usage,
        "stop": stop,
        "seed": seed,
        "logprobs": logprobs,
        "responses": responses,
        "conversation": conversation,
        "bias": bias,
        "errors": errors,
        "cancel": cancel,
        "models": models,
    }
)

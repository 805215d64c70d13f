"""What serving costs, and what it withstands: the figures of the HTTP server, on real sockets.

    python -m benches.http [PART ...] [--model MODEL] [--rounds 5] [--json FILE]

cost      Tokens a second of 16 streams over SSE against the same engine without HTTP. Two processes hold the
          model; their arms alternate, and the figure is the median of the rounds' ratios.
overload  Ten times the requests that the server can answer, for 30 s after as long to warm up (torch keeps
          something for each size of batch it has seen): statuses, time to a 429, growth of memory.
health    Time to answer /health while 16 streams decode and a chat of 1 MB is made a prompt again and again.
signals   SIGTERM under 32 streams, 20 times: how long to the exit, and whether every stream ends properly.

Clients are another process (benches/http_load.py) that also measures its own lag.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tinyllm.bench.environment import Disturbance, environment

STREAMS = 16
SIGNAL_STREAMS = 32
PROMPT = list(range(100, 132))
LISTENING = re.compile(r"listening on http://[0-9.]+:(\d+)")


class Worker:
    """A child process that takes jobs as lines of JSON."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **job: Any) -> dict[str, Any]:
        self.begin(**job)
        return self.result()

    def begin(self, **job: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended early; its own words are above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Server:
    """``tinyllm serve`` on a free port."""

    def __init__(self, options: dict[str, Any]) -> None:
        variables = {f"TINYLLM_{name.upper()}": str(value) for name, value in options.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tinyllm", "serve", "--port", "0", "--no-progress"],
            env={**os.environ, "TINYLLM_ACCESS_LOG": "false", **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._events: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self._wait_for(LISTENING.search)[1])
        self._wait_for(re.compile("ready: ").search)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            self._events.put(line)

    def _wait_for(self, search: Callable[[str], re.Match[str] | None]) -> re.Match[str]:
        while (found := search(self._events.get(timeout=120))) is None:
            pass
        return found

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(args: argparse.Namespace, **options: Any) -> Iterator[tuple[Server, Worker]]:
    """Give a server and its clients."""
    with ExitStack() as stack:
        server = Server(engine_options(args) | options)
        stack.callback(server.close)
        clients = Worker("benches.http_load")
        stack.callback(clients.close)
        clients.ask(kind="streams", port=server.port, body=body(8), count=2)  # warm
        yield server, clients


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    options = {"model": args.model, "num_threads": args.num_threads, "max_model_len": 2048}
    return {name: value for name, value in options.items() if value is not None}


def body(tokens: int) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def cost(args: argparse.Namespace) -> dict[str, Any]:
    options = engine_options(args) | {"enable_prefix_caching": False}
    with running(args, prefix_cache="off") as (server, clients):
        engine = Worker("benches.http_engine", json.dumps(options))
        engine.result()
        job = {"prompt": PROMPT, "tokens": args.tokens, "count": STREAMS}
        http, alone, lags, cpu = [], [], [], []
        for number in range(args.rounds + 1):  # the first warms up
            plain = engine.ask(**job)
            over = clients.ask(kind="streams", port=server.port, body=body(args.tokens), count=STREAMS)
            if over["whole"] != STREAMS:
                raise SystemExit(f"streams failed: {over}")
            if number:
                alone.append(plain["tokens"] / plain["seconds"])
                http.append(STREAMS * args.tokens / over["seconds"])
                lags.append(over["client_lag_p99_ms"])
                cpu.append(over["client_cpu_seconds"] / over["seconds"])
        engine.close()
    return {
        "streams": STREAMS,
        "tokens": args.tokens,
        "http_tokens_per_second": statistics.median(http),
        "engine_tokens_per_second": statistics.median(alone),
        "ratio": statistics.median(h / a for h, a in zip(http, alone, strict=True)),
        "ratios": [round(h / a, 3) for h, a in zip(http, alone, strict=True)],
        "client_lag_p99_ms": max(lags),
        "client_cpu_share": statistics.median(cpu),
    }


def overload(args: argparse.Namespace) -> dict[str, Any]:
    options = {"max_num_seqs": 16, "max_waiting_requests": 64, "prefix_cache": "off"}
    options["max_model_len"] = 2 * (len(PROMPT) + args.tokens)  # a small KV cache is touched whole at once
    with running(args, **options) as (server, clients):
        job = {"kind": "streams", "port": server.port, "body": body(args.tokens), "count": 64}
        clients.ask(**job)
        capacity = 64 / clients.ask(**job)["seconds"]
        arrivals: dict[str, Any] = {"kind": "overload", "port": server.port, "body": body(args.tokens)}
        clients.ask(**arrivals, rate=10 * capacity, seconds=args.seconds)
        before = server.memory()
        result = clients.ask(**arrivals, rate=10 * capacity, seconds=args.seconds)
        grown = server.memory() - before
    return {"capacity_per_second": capacity, **result, "memory_growth_mib": grown / 2**20}


def health(args: argparse.Namespace) -> dict[str, Any]:
    text = "The quick brown fox jumps over the lazy dog. " * 23_000
    chat = {"messages": [{"role": "user", "content": text[:1_000_000]}]}
    with running(args) as (server, clients):
        probe: dict[str, Any] = {"kind": "health", "port": server.port, "interval": 0.01}
        idle = clients.ask(**probe, seconds=args.seconds / 10, beside=None)
        readers = Worker("benches.http_load")
        readers.begin(kind="streams", port=server.port, body=body(2000), count=STREAMS)
        busy = clients.ask(**probe, seconds=args.seconds / 3, beside=chat)
        server.close()
        cut = readers.result()["whole"]
        readers.close()
    return {"idle": idle, "busy": busy, "streams_that_ended_before": cut}


def signals(args: argparse.Namespace) -> dict[str, Any]:
    limit = 3.0
    exits, codes, proper = [], [], 0
    for number in range(args.repeats):
        tokens = 1900 if number % 2 else 64  # too long for the limit, and short enough
        with running(args, shutdown_timeout=limit, max_num_seqs=SIGNAL_STREAMS) as (server, clients):
            clients.begin(kind="streams", port=server.port, body=body(tokens), count=SIGNAL_STREAMS)
            time.sleep(0.5)
            started = time.perf_counter()
            server.process.send_signal(signal.SIGTERM)
            codes.append(server.process.wait(timeout=60))
            exits.append(time.perf_counter() - started)
            result = clients.result()
            proper += result["whole"] + result["told"] == SIGNAL_STREAMS
    return {
        "repeats": args.repeats,
        "streams": SIGNAL_STREAMS,
        "drain_limit_seconds": limit,
        "exit_codes": codes,
        "exit_seconds_max": max(exits),
        "in_time": sum(seconds <= limit + 2 for seconds in exits),
        "all_streams_ended_properly": proper,
    }


PARTS = {"cost": cost, "overload": overload, "health": health, "signals": signals}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--num-threads", type=int, help="torch's threads; default: physical cores")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="of cost")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help="of overload, after as long to warm up; health takes a third",
    )
    parser.add_argument("--repeats", type=int, default=20, help="of signals")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}")
    result: dict[str, Any] = {"benchmark": "http", "environment": environment(args.num_threads)}
    result["model"] = Path(args.model).name if args.model else "SmolLM2-135M-Instruct"
    for name in args.parts or PARTS:
        disturbance = Disturbance()
        result[name] = PARTS[name](args) | {"disturbance": disturbance.since()}
        print(name, json.dumps(result[name], indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What only a whole process shows: leaving the interpreter, costing nothing, touching no signal handler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, seconds: float = 30) -> str:
    """Run code in a fresh interpreter, which must leave by itself and without an error."""
    start = """
        import asyncio, gc, signal, sys, threading, time
        import anyio
        from tests.fakes import FakeRunner, Gate, build_fake_core, says
        from tinyllm import AsyncEngine, Engine, EngineClosedError, SamplingParams
        LONG = SamplingParams(max_tokens=1000)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forgotten_engine_lets_the_interpreter_leave(backend: str) -> None:
    out = run(f"""
        async def main():
            global engine, stream
            engine = AsyncEngine(_build=build_fake_core)
            await engine.start()
            stream = engine.generate("x", LONG)
            await anext(stream)
            print("leaving")
        anyio.run(main, backend="{backend}")
    """)
    assert out == "leaving\n"


def test_an_engine_forgotten_in_the_middle_of_a_step_lets_the_interpreter_leave() -> None:
    out = run("""
        class Slow(FakeRunner):
            def execute_model(self, plan):
                time.sleep(0.05)
                return super().execute_model(plan)

        engine = Engine(_build=lambda config: build_fake_core(config, runner=Slow()))

        def use():
            try:
                engine.generate("x", LONG)
            except EngineClosedError:
                pass

        threading.Thread(target=use, daemon=True).start()
        while not engine._executor.busy_seconds:
            time.sleep(0.001)
        print("leaving")
    """)
    assert out == "leaving\n"


def test_leaving_stops_the_thread_in_order() -> None:
    # A thread that is torn away in the middle of native code may bring the whole process down.
    out = run("""
        from contextlib import contextmanager

        @contextmanager
        def context():
            yield
            print("stopped in order", flush=True)

        def build(config):
            core = build_fake_core(config)
            core.context = context
            return core

        engine = Engine(_build=build)
        print("leaving", flush=True)
    """)
    assert out == "leaving\nstopped in order\n"


def test_an_engine_that_still_loads_lets_the_interpreter_leave() -> None:
    out = run("""
        def build(config):
            time.sleep(0.2)
            return build_fake_core(config)

        async def main():
            global engine
            engine = AsyncEngine(_build=build)
            with anyio.move_on_after(0.01):
                await engine.start()
            print("leaving")
        anyio.run(main)
    """)
    assert out == "leaving\n"


def test_a_text_worker_lets_the_interpreter_leave() -> None:
    out = run("""
        async def main():
            global engine
            engine = AsyncEngine(_build=build_fake_core)
            await engine.start()
            await engine.encode("x" * 100_000)
            print("leaving")
        asyncio.run(main())
    """)
    assert out == "leaving\n"


def test_an_idle_engine_costs_nothing() -> None:
    # The figure is 50 ms of processor time in 5 s; this is a fifth of it, to be quick.
    out = run("""
        async def main():
            async with AsyncEngine(_build=build_fake_core) as engine:
                await engine.generate("x", SamplingParams(max_tokens=3))
                gc.collect()
                started = time.process_time()
                time.sleep(1.0)
                print(time.process_time() - started)
        asyncio.run(main())
    """)
    assert float(out) < 0.01


def test_no_signal_handler_is_touched() -> None:
    out = run("""
        numbers = [s for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
        before = [signal.getsignal(s) for s in numbers]

        async def main():
            async with AsyncEngine(_build=build_fake_core) as engine:
                await engine.generate("x", SamplingParams(max_tokens=3))
                return [signal.getsignal(s) for s in numbers]

        loop = asyncio.new_event_loop()  # asyncio.run has a handler of its own
        print(loop.run_until_complete(main()) == before)
        loop.close()
    """)
    assert out == "True\n"


def test_fakes_need_no_torch() -> None:
    out = run("""
        with Engine(_build=build_fake_core) as engine:
            engine.generate("x", SamplingParams(max_tokens=3))
        print("torch" in sys.modules)
    """)
    assert out == "False\n"


def test_threads_are_gone_after_closing() -> None:
    out = run("""
        async def main():
            for _ in range(3):
                async with AsyncEngine(_build=build_fake_core) as engine:
                    await engine.encode("x" * 10_000)
                    await engine.generate("x", SamplingParams(max_tokens=3))
            for thread in threading.enumerate():
                if thread.name.startswith("tinyllm"):
                    thread.join(10)
            print(threading.active_count())
        asyncio.run(main())
    """)
    assert out == "1\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_prompts_of_every_length_cost_no_memory_for_each(tiny_llama: Path) -> None:
    """Torch's libraries make code for every shape that they meet."""
    grown = run(
        f"""
        from pathlib import Path

        def megabytes():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

        async def main():
            options = dict(num_threads=1, kv_cache_bytes=4_000_000, enable_prefix_caching=False)
            async with AsyncEngine(model={str(tiny_llama)!r}, **options) as engine:
                await engine.generate([5] * 400, SamplingParams(max_tokens=1))
                before = megabytes()
                for length in range(1, 300):
                    await engine.generate([5] * length, SamplingParams(max_tokens=1))
                print(megabytes() - before)

        asyncio.run(main())
        """,
        seconds=120,
    )
    assert int(grown) < 300

"""`Calibration`: what this machine can do, measured in the process whose results are compared with it."""

from __future__ import annotations

import asyncio
import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import torch

from tinyllm.bench.limit import Machine, ModelShape
from tinyllm.models.linear import Linear, LinearArgs
from tinyllm.native.library import load_library

__all__ = ["Calibration", "CalibrationResult"]

T = TypeVar("T")

ROWS: Final = (1, 4, 8, 16, 32)
READ_BYTES: Final = 256 << 20
"""Much more than any cache holds."""
SQUARE: Final = 2048
"""Rows and columns of the product whose speed counts as the machine's."""
CANARY_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The machine, and the matrix products of one step of a model by number of rows, in seconds."""

    machine: Machine
    product_seconds: dict[int, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        seconds = {str(rows): value for rows, value in self.product_seconds.items()}
        return asdict(self.machine) | {"product_seconds": seconds}


class Calibration:
    """Measures the machine, beside an engine that rests.

    Each measurement has a thread of its own, so that the event loop goes on, and so that the threads which
    OpenMP starts for it end with it: any more threads than processors, even sleeping ones, and OpenMP has
    all of them sleep sooner. It keeps a second set of matrices of the model's shapes; what they hold changes
    nothing about their speed. Close it when done.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, num_threads: int) -> None:
        self._shape, self._dtype = shape, dtype
        self._num_threads = num_threads
        self._layers: list[tuple[Linear, int]] = []  # with their input sizes
        self._canary_rounds = 1
        self._canary_input = torch.ones(SQUARE // 4, SQUARE // 4)

    def close(self) -> None:
        """Free the matrices."""
        self._layers.clear()

    async def machine(self) -> Machine:
        """Return the machine's speed: the best of several tries."""
        return await self._run(self._machine)

    async def products(self, rows: int, repeats: int = 5) -> float:
        """Return the seconds that all matrix products of one step of so many rows take: the median."""
        return await self._run(lambda: self._products(max(rows, 2), repeats))

    async def result(self) -> CalibrationResult:
        """Return the machine, and `products` for each of `ROWS`."""
        machine = await self.machine()
        products = {rows: await self.products(rows) for rows in ROWS}
        return CalibrationResult(machine, products)

    async def canary(self) -> float:
        """Return the seconds of a fixed computation of about 50 ms: more than usual means a disturbance."""
        return await self._run(self._canary)

    async def _run(self, function: Callable[[], T]) -> T:
        with ThreadPoolExecutor(1, "calibration", torch.set_num_threads, (self._num_threads,)) as thread:
            return await asyncio.get_running_loop().run_in_executor(thread, _without_gradients, function)

    def _machine(self) -> Machine:
        numbers = torch.ones(READ_BYTES // 4)
        read = _best(lambda: numbers.sum(), 7)
        linear = self._linear(SQUARE, SQUARE)
        x = torch.ones(SQUARE, SQUARE, dtype=self._dtype)
        multiply = _best(lambda: linear(x), 7)
        return Machine(READ_BYTES / read, 2 * SQUARE**3 / multiply)

    def _products(self, rows: int, repeats: int) -> float:
        inputs = self._inputs(rows)
        step = _native_products(self._layers, inputs) or partial(_products_one_by_one, self._layers, inputs)
        return _median(step, repeats)

    def _inputs(self, rows: int) -> dict[int, torch.Tensor]:
        """Return an input for each number of columns; the first call makes the matrices."""
        if not self._layers:
            sizes = (*self._shape.linears * self._shape.num_layers, self._shape.head)
            self._layers = [(self._linear(*size), size[1]) for size in sizes]
        columns = {columns for _, columns in self._layers}
        return {each: torch.ones(rows, each, dtype=self._dtype) for each in columns}

    def _linear(self, rows: int, columns: int) -> Linear:
        linear = Linear("weight")
        linear.set_weight(torch.full((rows, columns), 0.01, dtype=self._dtype))
        return linear

    def _canary(self) -> float:
        x = self._canary_input

        def rounds() -> None:
            for _ in range(self._canary_rounds):
                torch.mm(x, x)

        if self._canary_rounds == 1:  # find out once how often
            rounds()
            self._canary_rounds = max(2, round(CANARY_SECONDS / _best(rounds, 5)))
        return _seconds(rounds)


def _native_products(
    layers: Sequence[tuple[Linear, int]], inputs: Mapping[int, torch.Tensor]
) -> Callable[[], object] | None:
    """Return a function that multiplies by all layers in one call to C; None where there is none."""
    onednn = layers[0][0].onednn
    if onednn is None or any(linear.onednn is None for linear, _ in layers):
        return None
    function = load_library().tinyllm_multiply_all
    linears = (LinearArgs * len(layers))(*(linear.args() for linear, _ in layers))
    xs = (ctypes.c_void_p * len(layers))(*(inputs[columns].data_ptr() for _, columns in layers))
    rows = len(next(iter(inputs.values())))
    out = torch.empty(rows, max(linear.out_features for linear, _ in layers), dtype=layers[0][0].dtype)

    def step() -> None:
        function(
            ctypes.byref(onednn),
            linears,
            xs,
            ctypes.c_int64(len(layers)),
            ctypes.c_int64(rows),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int32(torch.get_num_threads()),
        )

    return step


def _products_one_by_one(layers: Sequence[tuple[Linear, int]], inputs: Mapping[int, torch.Tensor]) -> None:
    for linear, columns in layers:
        linear(inputs[columns])


def _without_gradients(function: Callable[[], T]) -> T:
    with torch.inference_mode():
        return function()


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def _median(function: Callable[[], object], times: int) -> float:
    function()
    return statistics.median(_seconds(function) for _ in range(times))


def _best(function: Callable[[], object], times: int) -> float:
    function()
    return min(_seconds(function) for _ in range(times))

"""The processor time of the sums in a certified step, by part: products, widening for the library's products, rounding
test, exact tier.

python experiments/bench_parts.py "GPT-2 small"      one thread; seconds per step and shares
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))
from bench_steps import TASKS, certified_step

from vgame.arithmetic.numba import rounding_test as compiled_rounding
from vgame.arithmetic.torch import convolutions
from vgame.arithmetic.torch.products import Tile
from vgame.arithmetic.vendor import NATIVE, using

PRODUCTS = "products"
PARTS = [
    ("widening", Tile, "_widen"),
    ("minimal filtering", convolutions, "transform_filters"),
    ("minimal filtering", convolutions, "transform_tiles"),
    ("minimal filtering", convolutions, "bound_patches"),
    ("minimal filtering", convolutions, "transform_products"),
    ("rounding test", Tile, "_certify_compiled"),
    ("rounding test", convolutions, "round_pass"),
    ("exact tier", Tile, "sum_exactly"),
    ("sums of rows", compiled_rounding, "sum_rows"),
]


def counted(product: Callable, seconds: Counter[str], work: Counter[str]) -> Callable:
    """A kernel of `Vendor`, timed; its operations are counted."""
    run = timed(PRODUCTS, product, seconds)

    def multiply(a: torch.Tensor | tuple, b: torch.Tensor | tuple, out: torch.Tensor, *rest: object) -> object:
        length = a[2].size if isinstance(a, tuple) else a.shape[-1]  # rows in place, or widened
        work[PRODUCTS] += 2 * out.numel() * length
        return run(a, b, out, *rest)

    return multiply


def large_square() -> float:
    """GFLOP per second of the library's product of two binary64 matrices of 1,024 x 1,024, the best of 20."""
    a, b, out = torch.randn(3, 1, 1024, 1024, dtype=torch.float64).unbind()
    seconds: Counter[str] = Counter()
    best = math.inf
    for _ in range(20):
        seconds.clear()
        timed(PRODUCTS, NATIVE.product, seconds)(a, b, out)
        best = min(best, seconds[PRODUCTS])
    return 2 * 1024**3 / best / 1e9


def timed(name: str, function: Callable, seconds: Counter[str]) -> Callable:
    """The function; its processor time is added to `seconds`."""

    def run(*arguments: object) -> object:
        begin = time.process_time()
        try:
            return function(*arguments)
        finally:
            seconds[name] += time.process_time() - begin

    return run


@contextmanager
def watched() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Context in which the parts are timed, and the operations of products counted."""
    seconds, work = Counter(), Counter()
    with ExitStack() as stack:
        kernels = {name: getattr(NATIVE, name) for name in ("product", "multiply", "digits")}
        timed_ones = {name: counted(kernel, seconds, work) for name, kernel in kernels.items()}
        stack.enter_context(using(replace(NATIVE, **timed_ones)))
        for name, owner, part in PARTS:
            stack.enter_context(patch.object(owner, part, timed(name, getattr(owner, part), seconds)))
        yield seconds, work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    step = certified_step(TASKS[arguments.task]())
    step()  # compiles
    with watched() as (seconds, work):
        begin = time.process_time()
        for _ in range(arguments.steps):
            step()
        whole = time.process_time() - begin
    seconds["everything else: maps, copies, indexing"] = whole - sum(seconds.values())
    print(f"{arguments.task}: {whole / arguments.steps:.2f} s per step")
    for name, part in seconds.most_common():
        print(f"{part / arguments.steps:8.2f} s {part / whole:6.1%}  {name}")
    rate, most = work[PRODUCTS] / seconds[PRODUCTS] / 1e9, large_square()
    print(
        f"products: {work[PRODUCTS] / arguments.steps / 1e9:.1f} GFLOP, {rate:.1f} GFLOP/s; of a large square: "
        f"{most:.1f} GFLOP/s"
    )


if __name__ == "__main__":
    main()

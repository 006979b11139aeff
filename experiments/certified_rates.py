"""Elements settled by each tier, and the cost relative to the plain binary64 kernel. The table of
docs/numerics-products.md, section 12.

    python experiments/certified_rates.py            all tables
    python experiments/certified_rates.py --check    also: no bit changes under perturbed and reversed sums (minutes)

Times are the best of several, both kernels alternating. The plain kernel gets binary64 operands.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from perturbed import KINDS, perturbed_products

from vgame.arithmetic.certified import counting, dot, one_hot_sum, reversed_order, sum_rows


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def int12(*shape: int) -> Tensor:
    return torch.randint(-2048, 2049, shape).float()


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().float()


def relu(*shape: int) -> Tensor:
    return torch.randn(shape).relu()


def sparse(*shape: int) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < 0.01)


def masked(*shape: int) -> Tensor:
    return torch.randn(shape).masked_fill(torch.rand(shape) < 0.3, -torch.inf)


#: name: (a, b), drawn on demand.
PRODUCTS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "normal 1024 x 768 x 2304": lambda: (normal(1, 1024, 768), normal(1, 2304, 768)),
    "normal 512 x 3072 x 768": lambda: (normal(1, 512, 3072), normal(1, 768, 3072)),
    "normal 512 x 4608 x 512": lambda: (normal(1, 512, 4608), normal(1, 512, 4608)),
    "normal 128 x 65536 x 128": lambda: (normal(1, 128, 65536), normal(1, 128, 65536)),
    "normal 64 x 144 x 32, batch of 64": lambda: (normal(64, 64, 144), normal(64, 32, 144)),
    "normal 1024 x 64 x 1024": lambda: (normal(1, 1024, 64), normal(1, 1024, 64)),
    "transposed 768 x 1024 x 2304": lambda: (normal(1024, 768).T[None], normal(1024, 2304).T[None]),
    "int12 1024 x 768 x 2304": lambda: (int12(1, 1024, 768), int12(1, 2304, 768)),
    "bf16 1024 x 768 x 2304": lambda: (bf16(1, 1024, 768), bf16(1, 2304, 768)),
    "relu by 1 % sparse 1024 x 64 x 2304": lambda: (relu(1, 1024, 64), sparse(1, 2304, 64)),
    "30 % of a is -inf 1024 x 768 x 2304": lambda: (masked(1, 1024, 768), normal(1, 2304, 768)),
    "cancelling to 2^-20 512 x 768 x 512": lambda: cancelling(512, 768),
}
#: name: (certified, plain binary64).
SUMS: dict[str, Callable[[], tuple[Callable, Callable]]] = {
    "sums of 2 (1,048,576)": lambda: row_sums(normal(1 << 20, 2)),
    "sums of 8 (262,144)": lambda: row_sums(normal(1 << 18, 8)),
    "sums of 1024 (2304)": lambda: row_sums(normal(2304, 1024)),
    "sums of 1024, columns (2304)": lambda: row_sums(normal(1024, 2304).T),
    "sums of 65536 (64)": lambda: row_sums(normal(64, 65536)),
    "pooling gradient, 4096 x 256 into 1024": lambda: one_hot(
        torch.randint(0, 1024, (4096, 256)), normal(4096, 1, 256), 1024
    ),
    "embedding gradient, 512 x 768 into 50257": lambda: one_hot(zipf(512), normal(512, 768).T[None], 50257),
}


def cancelling(m: int, k: int) -> tuple[Tensor, Tensor]:
    a, b = normal(1, m, k // 2), normal(1, m, k // 2)
    return torch.cat([a, -a], 2), torch.cat([b, b * (1 + 2.0**-20)], 2)


def row_sums(a: Tensor) -> tuple[Callable, Callable]:
    return lambda: sum_rows(a), lambda: a.double().sum(-1).float()


def zipf(k: int) -> Tensor:
    return (torch.rand(1, k) ** 6 * 1000).long()


def one_hot(index: Tensor, b: Tensor, m: int) -> tuple[Callable, Callable]:
    batch, n, _ = b.shape
    target = index.unsqueeze(-1).expand(-1, -1, n)

    def plain() -> Tensor:
        return torch.zeros(batch, m, n, dtype=torch.float64).scatter_add_(1, target, b.mT.double()).float()

    return lambda: one_hot_sum(index.int(), b, m), plain


def plain_product(a: Tensor, b: Tensor) -> Callable:
    a, b = a.double(), b.double()
    return lambda: a @ b.mT


def best(functions: tuple[Callable, Callable], seconds: float = 1.5) -> list[float]:
    """Milliseconds of each, the least of as many runs as fit."""
    least, end = [float("inf")] * len(functions), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            least[i] = min(least[i], 1e3 * (time.perf_counter() - start))
    return least


def report(name: str, certified: Callable, plain: Callable) -> None:
    with counting() as counts:
        certified()
    shares = [
        f"{n / counts.elements:.1e}" if n else "0" for n in (counts.elements - counts.bound, counts.exact, counts.tier)
    ]
    ours, theirs = best((certified, plain))
    print(f"| {name} | {' | '.join(shares)} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |", flush=True)


def check(name: str, certified: Callable) -> None:
    """Check that no bit changes on any device."""
    expected = certified().view(torch.int32)
    devices = {"reversed": reversed_order, **{kind: lambda kind=kind: perturbed_products(kind) for kind in KINDS}}
    for device, enter in devices.items():
        with enter():
            changed = int((certified().view(torch.int32) != expected).sum())
        print(f"{name}, {device}: {changed} of {expected.numel()} words changed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="also run under perturbed and reversed sums")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="names that contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        "| | not by the bound | by exactness | by the exact tier | ms | binary64 ms | ratio "
        "|\n|---|---|---|---|---|---|---|"
    )
    cases = [(name, make, dot) for name, make in PRODUCTS.items()] + [(name, make, None) for name, make in SUMS.items()]
    for name, make, product in cases:
        if arguments.only not in name:
            continue
        a, b = make()
        certified, plain = (lambda a=a, b=b: dot(a, b), plain_product(a, b)) if product else (a, b)
        report(name, certified, plain)
        if arguments.check:
            check(name, certified)


if __name__ == "__main__":
    main()

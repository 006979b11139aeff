"""Test a device for faults that would change bits.

Compares every whitelisted kernel with the exact reference, and tests the assumptions of docs/numerics.md one by one.

In: a device. Out: findings; a device with a failed finding must not train or audit.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

from vgame.arithmetic import certified
from vgame.arithmetic.functions import BINARY_I, COMPARE_I, Function, arity
from vgame.arithmetic.numba import products as own_products
from vgame.arithmetic.reference import functions as reference
from vgame.arithmetic.reference import sums as reference_sums
from vgame.arithmetic.vendor import own_digits, own_multiply, using, vendor
from vgame.commit.tensor import from_words, to_words
from vgame.execute.devices import fingerprint
from vgame.execute.kernels import Correct
from vgame.execute.reference import canonical
from vgame.program.operators import yields_integer

DRAWS = 512
SPECIAL = (
    0x00000000,
    0x80000000,
    0x00000001,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x80800000,
    0x3F800000,
    0xBF800000,
    0x3F7FFFFF,
    0x3F800001,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0x33800000,
    0x4B800000,
    0x7FFFFFFF,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and its result; `ok` is None if it is information only."""

    what: str
    ok: bool | None
    detail: str = ""


def examine(kind: str) -> Iterator[Finding]:
    """All findings for a torch device, one after the other."""
    yield Finding(
        "machine", None, f"{platform.machine()} {platform.system()}, torch {torch.__version__}, {_name(kind)}"
    )
    for what, mark in fingerprint().items():
        yield Finding(
            what, None, f"raw vendor result {mark} (may differ between devices; training does not depend on it)"
        )
    yield from _other_builds()
    yield from _makes_products(kind)
    yield _subnormals(kind)
    yield from (_function(f, kind) for f in Function)
    yield _products(kind)
    yield from _digits(kind)
    yield _non_finite_rows(kind)


def _other_builds() -> Iterator[Finding]:
    """Whether torchvision and torchaudio are built for this build of torch; others fail at import."""
    build = build_of(version("torch"))
    for name in ("torchvision", "torchaudio"):
        with suppress(PackageNotFoundError):
            other = build_of(version(name))
            remedy = (
                f"pip install --force-reinstall --no-deps {name} --index-url URL, with the URL for "
                f"{build or 'the default build'} from the installation page of pytorch.org"
            )
            detail = f"{version(name)} with torch {version('torch')}"
            mixed = other != build
            yield Finding(f"{name} is built for this torch", not mixed, f"{detail}; {remedy}" if mixed else detail)


def build_of(text: str) -> str:
    """`cpu` for 2.13.0+cpu, `cu130` for 2.13.0+cu130, empty for 2.13.0."""
    return text.partition("+")[2]


def _makes_products(kind: str) -> Iterator[Finding]:
    """The source of the kernels for binary64 sums of products on a CPU."""
    if kind != "cpu":
        return
    form = own_products.form()
    if own_multiply(torch.device(kind)):
        detail = f"vgame's kernels, {form.rows} x {form.columns} sums in registers of {form.lanes} binary64"
        if own_digits(torch.device(kind)):
            detail += "; large ones by exact sums of digits in tiles of bytes"
    else:
        why = "as this device specifies" if form else "this processor has no fused multiply-adds"
        detail = f"the library's kernels: {why}"
    yield Finding("products are computed by", None, detail)


def _name(kind: str) -> str:
    return torch.cuda.get_device_name() if kind == "cuda" else f"CPU with {torch.get_num_threads()} threads"


def _subnormals(kind: str) -> Finding:
    from vgame.errors import VgameError
    from vgame.execute.devices import refuse_flush_to_zero

    try:
        refuse_flush_to_zero(kind)
    except VgameError as error:
        return Finding("subnormals survive in every worker", False, str(error))
    return Finding("subnormals survive in every worker", True)


def draw(count: int, seed: int) -> np.ndarray:
    """All special words, and random bits."""
    words = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    words[: len(SPECIAL)] = SPECIAL
    return words


def _function(function: Function, kind: str) -> Finding:
    """Compare the fast kernel with the reference, bit by bit."""
    integer = function in BINARY_I or function in COMPARE_I or function is Function.ITOF
    columns = [draw(DRAWS, function * 8 + i) for i in range(arity(function))]
    if len(columns) > 1:  # every pair of special words occurs
        first, second = np.meshgrid(SPECIAL, SPECIAL)
        columns[-2][: first.size], columns[-1][: second.size] = first.ravel(), second.ravel()
    types = [True, False, False] if function is Function.SELECT else [integer] * len(columns)
    tensors = [from_words(c, integer=t).to(kind) for c, t in zip(columns, types, strict=True)]
    fast = to_words(Correct().map(function, *tensors))
    exact = [reference.evaluate(function, *map(int, words)) for words in zip(*columns, strict=True)]
    exact = exact if yields_integer(function) else [canonical(word) for word in exact]
    wrong = [i for i, (a, b) in enumerate(zip(fast.tolist(), exact, strict=True)) if a != b]
    detail = f"wrong for {', '.join(f'0x{int(c[wrong[0]]):08x}' for c in columns)}" if wrong else ""
    return Finding(f"function {function.name.lower()} is correctly rounded", not wrong, detail)


def _products(kind: str) -> Finding:
    """Compare a certified product with exact integers, with cancellation and ties."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(24, 640, generator=generator) * 2.0 ** torch.randint(-20, 20, (24, 640), generator=generator)
    b = torch.randint(-8, 8, (16, 640), generator=generator).float() / 4
    fast = to_words(certified.dot(a[None].to(kind), b[None].to(kind))).reshape(24, 16)
    rows_a, rows_b = to_words(a).reshape(24, 640).tolist(), to_words(b).reshape(16, 640).tolist()
    exact = [[reference_sums.dot(x, y) for y in rows_b] for x in rows_a]
    return Finding("products are correctly rounded", fast.tolist() == exact)


def _digits(kind: str) -> Iterator[Finding]:
    """Compare large products by digits with those by multiply-adds, if the device computes both."""
    if own_digits(torch.device(kind)):
        a, b = torch.randn(2, 1, 160, 400, generator=torch.Generator().manual_seed(4))
        with using(replace(vendor(), digits=None)):
            expected = certified.dot(a, b)
        yield Finding("products by digits are those by multiply-adds", torch.equal(certified.dot(a, b), expected))


def _non_finite_rows(kind: str) -> Finding:
    """The vendor's binary64 product must not skip zero factors: infinity times zero is NaN at every position."""
    good = True
    for m, n, k in ((1, 1, 1), (3, 5, 7), (64, 64, 64), (33, 65, 300), (128, 1, 1000)):
        a, b = torch.zeros(m, k, dtype=torch.float64, device=kind), torch.ones(k, n, dtype=torch.float64, device=kind)
        b[k // 2] = torch.inf
        good &= bool(torch.isnan(a @ b).all())
    return Finding("the vendor's product skips no term", good)

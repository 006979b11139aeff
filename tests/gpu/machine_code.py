"""Compile every Triton kernel for a Hopper GPU, without one, and print forbidden lines of its PTX. A process of its
own.

The kernels are started on small tensors of the CPU; a stand-in for the driver knows only its target, so they are
compiled and not run. Prints JSON: kernel -> offending lines.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from vgame.arithmetic import certified, gate
from vgame.arithmetic import indexed_matrix as folded
from vgame.arithmetic.functions import Function
from vgame.arithmetic.numba.chains import Chain
from vgame.arithmetic.torch import elementary
from vgame.arithmetic.triton import philox as gpu_random
from vgame.arithmetic.triton import pointwise
from vgame.arithmetic.triton.elementary import VALUES
from vgame.commit.gpu_sha import roots
from vgame.execute.chains import ALONE_ON_GPU

#: Contraction, flushing, approximations, binary32 divisions that are not IEEE's, tensor-core formats.
FORBIDDEN = re.compile(r"\bfma\b|\.ftz|\.approx|div\.full|tf32|\bmad\.(rn|rz)|\bmma\b")


class _Driver:
    """A Hopper GPU that can be compiled for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all() -> dict[str, list[str]]:
    """Offending lines of every kernel that the functions below start."""
    driver.set_active(_Driver())
    found: dict[str, list[str]] = {}
    run = JITFunction.run

    changed = {"enable_fp_fusion": True} if "--fused" in sys.argv else {}

    def only_compile(self: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> object:
        kernel = run(self, *args, grid=grid, warmup=True, **(options | changed))
        name = f"{self.__module__.rsplit('.', 1)[-1]}.{self.__name__} {len(found)}"
        lines = kernel.asm["ptx"].splitlines()
        assert any("ret;" in line for line in lines)
        found[name] = [line.strip() for line in lines if FORBIDDEN.search(line)]
        return kernel

    JITFunction.run = only_compile
    with gate.kernels(True):
        start_elementary() if changed else start_all()
    return found


def start_all() -> None:
    """Every kernel once, in each of its forms."""
    a, b = torch.randn(2, 40, 70), torch.randn(1, 600, 70)
    certified.dot(a, b)
    certified.dot(a[:1], b.mT.contiguous().mT[:, :50])
    folded.LEAST = 1
    certified.sum_rows(folded.fold(torch.randn(5, 3, 70).permute(1, 0, 2), (1, 3, 350)))
    patches = torch.randn(2, 3, 9, 9).as_strided((2, 7, 7, 3, 3, 3), (243, 9, 1, 81, 9, 1))
    certified.dot(a[:1, :, :27], folded.fold(patches, (1, 98, 27)))
    certified.dot(folded.fold(patches.permute(3, 4, 5, 0, 1, 2), (1, 27, 98)), torch.randn(1, 3, 98))
    for rows in (a[0], a[0].mT):
        certified.sum_rows(rows)
    certified.one_hot_sum(torch.zeros(2, 70, dtype=torch.int32), a, 9)
    certified.dot(a[:, :1, :1], a[:, :1, :1])
    certified.sum_rows(a[0, :1, :1])
    certified.one_hot_sum(torch.zeros(1, 1, dtype=torch.int32), a[:1, :1, :1], 1)
    start_elementary()
    start_chain(a)
    roots([torch.randn(600), torch.zeros(1, dtype=torch.int32)])
    clock = torch.ones(1, dtype=torch.int64)
    for elements in (1, 999):
        gpu_random.random_words(1 << 63, clock, 5, elements)
        gpu_random.shuffle_indices(3, clock, elements, 50_000)


def start_elementary() -> None:
    for function in VALUES:
        elementary.evaluate(function, torch.randn(2, 40, 70))


def start_chain(x: torch.Tensor) -> None:
    """Every function that a chain may have, a product before a sum; every result is kept, and checked for finite
    words."""
    functions = [Function.MUL, *(f for f in Function if f not in ALONE_ON_GPU)]
    code = np.array([[f, 3 + i, 1, max(0, 2 + i), 0] for i, f in enumerate(functions)], np.int64)
    slots = np.arange(3, 3 + len(functions))
    chain = Chain(code, np.zeros(3 + len(functions), np.uint32), 3, (False,) * len(functions), slots)
    pointwise.run(chain, x.numel(), [x, x.mT, x[:1, :1].expand_as(x)], torch.zeros(99, dtype=torch.int32), 3)
    pointwise.look(x, torch.zeros(99, dtype=torch.int32), 3)


if __name__ == "__main__":
    json.dump(compile_all(), sys.stdout)

"""Run the kernels of products as code of AArch64 (NEON) under emulation, and compare every bit with the same functions
on this processor.

    python experiments/neon.py

Needs Debian's qemu-user and gcc-aarch64-linux-gnu. Kernels: `fused_tile`, for each number of rows that is used, with
and without earlier sums; `widen_panel` and `widen_across`, of binary32 words and of bfloat16 in 2 bytes. Operands: all
exponents, subnormal numbers, any bits (a NaN equals any NaN: the bits of a NaN differ between processors).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import njit, types

from vgame.arithmetic.numba.fused_tile import FORMS, fused_tile, widen_across, widen_panel

TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-gcc")
FORM = FORMS["neon"]
TRIPLE = "aarch64-unknown-linux-gnu"
DOUBLES, FLOATS, HALVES = types.float64[::1], types.float32[::1], types.uint16[::1]
PLACES = types.int64[::1]
Arguments = list[np.ndarray | int]


def tile_of(used: int, more: bool) -> tuple[Callable[..., None], tuple[Any, ...]]:
    rows, vectors, lanes, columns = FORM.rows, FORM.vectors, FORM.lanes, FORM.columns

    @njit(error_model="numpy")
    def kernel(a, b, c, terms):
        fused_tile(used, rows, vectors, lanes, a, 0, b, 0, c, 0, columns, terms, more)

    return kernel, (DOUBLES, DOUBLES, DOUBLES, types.int64)


def widening(across: bool, halves: bool) -> tuple[Callable[..., None], tuple[Any, ...]]:
    width, memory = FORM.rows, HALVES if halves else FLOATS

    @njit(error_model="numpy")
    def panel(x, rows, columns, y, squares, count):
        widen_panel(width, 1, x, rows, 0, width - 1, columns, 0, count, y, 0, squares)

    @njit(error_model="numpy")
    def blocks(x, rows, columns, y, squares, count):
        widen_across(width, 4, x, rows, 0, width - 1, columns, 0, count // 4, y, 0, squares)

    return blocks if across else panel, (memory, PLACES, PLACES, DOUBLES, DOUBLES, types.int64)


def compiled(kernel: Any, signature: Sequence[Any], folder: Path) -> Path:
    """The kernel's LLVM code, for AArch64, as a program that reads the arguments and writes all arrays."""
    kernel.compile(tuple(signature))
    text = kernel.inspect_llvm(tuple(signature))
    body = re.search(r"^define [^\n]*@_ZN8__main__[^\n]*\{\n.*?^\}", text, re.M | re.S)
    assert body is not None
    name = re.search(r"@(_ZN\w+)\(", body[0])
    assert name is not None
    declared = [line for line in re.findall(r"^declare .*$", text, re.M) if "@llvm." in line and "x86" not in line]
    code = "\n".join([f'target triple = "{TRIPLE}"', body[0].replace(name[1], "kernel"), *declared])
    code = re.sub(r" #\d+|, ![\w.]+ !\d+", "", code)
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(opt=3)
    module = llvm.parse_assembly(code)
    assert "fmla" in machine.emit_assembly(module), "the code has no multiply-adds of vectors"
    (folder / "kernel.o").write_bytes(machine.emit_object(module))
    (folder / "main.c").write_text(program(signature))
    made = folder / "kernel"
    command = ["aarch64-linux-gnu-gcc", "-O1", "-static", "-o", made, folder / "main.c", folder / "kernel.o"]
    subprocess.run(command, check=True)
    return made


def program(signature: Sequence[Any]) -> str:
    """C code that calls a compiled function of numba: an array is seven arguments there."""
    kinds, given, reads, writes = ["void *", "void *"], ["&result", "&error"], "", ""
    for n, kind in enumerate(signature):
        if isinstance(kind, types.Array):
            size = kind.dtype.bitwidth // 8
            kinds += ["void *", "void *", "long", "long", "void *", "long", "long"]
            given += ["0", "0", f"n{n}", str(size), f"x{n}", f"n{n}", str(size)]
            reads += f"long n{n}; take(&n{n}, 8); void *x{n} = malloc(n{n} * {size}); take(x{n}, n{n} * {size});\n"
            writes += f"fwrite(x{n}, {size}, n{n}, stdout);\n"
        else:
            kinds, given = [*kinds, "long"], [*given, f"n{n}"]
            reads += f"long n{n}; take(&n{n}, 8);\n"
    return (
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "static void take(void *to, long size) { if (fread(to, 1, size, stdin) != size) exit(3); }\n"
        f"int kernel({', '.join(kinds)});\n"
        f"int main(void) {{ void *result = 0, *error = 0;\n{reads}"
        f"int code = kernel({', '.join(given)});\n{writes}return code; }}\n"
    )


def emulated(made: Path, arguments: Arguments) -> Arguments:
    """The arguments after a call under emulation."""
    given = b"".join(
        np.int64(a.size).tobytes() + a.tobytes() if isinstance(a, np.ndarray) else np.int64(a).tobytes()
        for a in arguments
    )
    out = subprocess.run([TOOLS[0], made], input=given, capture_output=True, check=True).stdout
    found: Arguments = []
    for a in arguments:
        if isinstance(a, np.ndarray):
            found.append(np.frombuffer(out[: a.nbytes], a.dtype))
            out = out[a.nbytes :]
        else:
            found.append(a)
    return found


def is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether all bits are equal, but for those of NaN."""
    return a.dtype.kind in "iu" or bool(np.all((a.view(f"i{a.itemsize}") == b.view(f"i{b.itemsize}")) | np.isnan(a)))


def drawn(random: np.random.Generator, family: str, count: int) -> np.ndarray:
    """Binary32 words."""
    bits = random.integers(0, 2**32, count, dtype=np.uint32)
    if family == "subnormal":
        bits &= np.uint32(0x807FFFFF)
    if family == "all exponents":
        bits = np.where((bits >> 23 & 0xFF) == 0xFF, bits ^ np.uint32(1 << 29), bits).astype(np.uint32)
    return bits.view(np.float32)


def tile_calls(random: np.random.Generator, family: str) -> Iterator[Arguments]:
    for terms in (0, 1, 2, 3, 17, 255, 256):
        a = drawn(random, family, FORM.rows * max(terms, 1)).astype(np.float64)
        b = drawn(random, family, FORM.columns * max(terms, 1)).astype(np.float64)
        yield [a, b, drawn(random, "all exponents", FORM.rows * FORM.columns).astype(np.float64), terms]


def halves_calls(random: np.random.Generator, family: str) -> Iterator[Arguments]:
    """As `widening_calls`, with the high halves of the words."""
    for x, *rest in widening_calls(random, family):
        assert isinstance(x, np.ndarray)
        yield [(x.view(np.uint32) >> 16).astype(np.uint16), *rest]


def widening_calls(random: np.random.Generator, family: str) -> Iterator[Arguments]:
    for terms in (4, 8, 60):
        x = drawn(random, family, FORM.rows * terms)
        rows, columns = np.arange(FORM.rows, dtype=np.int64) * terms, np.arange(terms, dtype=np.int64)
        yield [x, rows, columns, np.zeros(FORM.rows * terms), np.zeros(FORM.rows), terms]


def main() -> int:
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        print(f"{' and '.join(missing)} not found; install qemu-user and gcc-aarch64-linux-gnu")
        return 1
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    kernels = {f"fused_tile, {n} rows, more={m}": (tile_of(n, m), tile_calls) for n in (2, 4, 6) for m in (False, True)}
    for name in ("widen_panel", "widen_across"):
        kernels[name] = widening(name == "widen_across", False), widening_calls
        kernels[f"{name}, bfloat16"] = widening(name == "widen_across", True), halves_calls
    failed = words = 0
    np.seterr(all="ignore")  # of a signalling NaN
    for name, ((kernel, signature), calls) in kernels.items():
        with tempfile.TemporaryDirectory() as folder:
            made = compiled(kernel, signature, Path(folder))
            for family in ("all exponents", "subnormal", "any bits"):
                for arguments in calls(np.random.default_rng(1), family):
                    here = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
                    kernel(*here)
                    there = emulated(made, arguments)
                    pairs = [(a, b) for a, b in zip(here, there, strict=True) if isinstance(a, np.ndarray)]
                    words += sum(a.size for a, _ in pairs)
                    if not all(is_same(a, b) for a, b in pairs):
                        failed += 1
                        print(f"{name}, {family}, {arguments[-1]} terms: other bits")
        print(f"{name}: compared")
    print(f"{words:,} words, {failed} calls with other bits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The fused multiply-adds of a product in registers alone: a lower bound of its time."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import llvmlite.binding as llvm

CHAINS = 12  # independent sums, enough to hide the latency of one


@cache
def lanes() -> int:
    """Binary64 numbers of a vector register here."""
    features = llvm.get_host_cpu_features()
    return 8 if features.get("avx512f") else 4 if features.get("avx2") else 2


def source() -> str:
    """`burn(n)`: n times one multiply-add in each chain."""
    vector, each = f"<{lanes()} x double>", range(CHAINS)
    phis = "".join(f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %t{i}, %loop ]\n" for i in each)
    call = f"call {vector} @llvm.fma.v{lanes()}f64"
    adds = "".join(f"  %t{i} = {call}({vector} %s{i}, {vector} %x, {vector} %x)\n" for i in each)
    sums = "".join(f"  %u{i + 1} = fadd {vector} %u{i}, %t{i + 1}\n" for i in range(CHAINS - 1))
    return f"""
declare {vector} @llvm.fma.v{lanes()}f64({vector}, {vector}, {vector})
define double @burn(i64 %n, double %a) {{
entry:
  %one = insertelement {vector} undef, double %a, i32 0
  %x = shufflevector {vector} %one, {vector} undef, <{lanes()} x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}{adds}  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %end
end:
  %u0 = fadd {vector} %t0, zeroinitializer
{sums}  %word = extractelement {vector} %u{CHAINS - 1}, i32 0
  ret double %word
}}"""


@cache
def _compiled() -> tuple[object, object]:
    """The function, and the engine that owns its machine code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source()), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)
    return call(engine.get_function_address("burn")), engine


def multiply_adds(count: int, threads: int) -> None:
    """Compute `count` multiply-adds, shared by threads."""
    burn, _ = _compiled()
    times = max(1, count // (lanes() * CHAINS * threads))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: burn(times, 0.5), range(threads)))

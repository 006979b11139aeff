"""Devices: hardware and software configurations that compute. One CPU has several of them.

`prepare_environment` must run before torch is imported (it only sets environment variables); `use_device` runs after.
The names are used by the command line, and by the tests that the bits do not depend on the device.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vgame.errors import VgameError


@dataclass(frozen=True, slots=True)
class Device:
    """`kind` is torch's device; `environment` selects the kernels of the vendor's library; `own`: whether vgame's own
    kernels compute products on a CPU."""

    name: str
    what: str
    kind: str = "cpu"
    environment: dict[str, str] = field(default_factory=dict)
    onednn: bool = True
    reverse: bool = False
    own: bool = True


DEVICES = {
    device.name: device
    for device in (
        Device("default", "the CPU with vgame's own products, and the kernels that its libraries select"),
        Device(
            "compatible",
            "the CPU with the library's products, by kernels that run on every x86-64: another order of summation",
            environment={"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
            onednn=False,
            own=False,
        ),
        Device("reversed", "the CPU with every sum computed backwards, in three pieces", reverse=True),
        Device("cuda", "the first CUDA GPU", kind="cuda"),
    )
}


def find(name: str) -> Device:
    """A device by name."""
    if name not in DEVICES:
        raise VgameError(f"there is no device {name!r}; known are {', '.join(DEVICES)}")
    return DEVICES[name]


def prepare_environment(name: str) -> None:
    """Set the environment of vgame's own process for the vendor's libraries, before torch is loaded."""
    # with the default threshold, Python's garbage collector would run several times while torch creates 300,000 objects
    gc.set_threshold(20_000)
    os.environ.update(find(name).environment)


@contextmanager
def use_device(name: str) -> Iterator[str]:
    """Context in which this process computes as the device; yields torch's name for it. VgameError if the process
    flushes subnormals to zero."""
    import torch

    from vgame.arithmetic import certified

    device = find(name)
    if device.kind == "cuda" and not torch.cuda.is_available():
        raise VgameError("--device cuda: torch finds no CUDA GPU; use --device default")
    sums = certified.reversed_order() if device.reverse else certified.own_kernels(device.own)
    with _library_flags(device), sums:
        refuse_flush_to_zero(device.kind)
        yield device.kind


@contextmanager
def _library_flags(device: Device) -> Iterator[None]:
    """Context that sets torch's global flags for the device, and restores them."""
    import torch

    matmul = torch.backends.cuda.matmul
    onednn, precision = torch.backends.mkldnn.enabled, matmul.fp32_precision  # reading `allow_tf32` may raise
    torch.backends.mkldnn.enabled = device.onednn
    matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = onednn
        matmul.allow_tf32 = precision == "tf32"
        matmul.fp32_precision = precision


def refuse_flush_to_zero(kind: str) -> None:
    """Raise VgameError if a worker thread flushes subnormals of binary32 or binary64 to zero."""
    import torch

    tiny = torch.full((1 << 18,), 2.0**-140, device=kind)
    tinier = torch.full((1 << 18,), 2.0**-1060, dtype=torch.float64, device=kind)
    if not bool((tiny * 0.5 == 2.0**-141).all()) or not bool((tinier * 0.5 > 0).all()):
        raise VgameError(
            "this process flushes subnormal numbers to zero, so its bits would differ; remove "
            "torch.set_flush_denormal(True) from the job; else a loaded library sets FTZ/DAZ (often one built with "
            "-Ofast): start vgame in a process without it"
        )


def fingerprint() -> dict[str, str]:
    """Hashes of raw vendor results that may differ between devices: products of 512 binary32 terms in both formats, and
    a convolution.

    The operands are normally distributed. Uniform operands would be multiples of 2**-24, whose binary64 sums are exact
    in every order.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(256, 512, generator=generator) for _ in range(2))
    image = torch.rand(4, 16, 16, 16, generator=generator) - 0.5
    kernel = torch.rand(32, 16, 3, 3, generator=generator) - 0.5
    results = {
        "binary64 product": a.double() @ b.double().T,
        "binary32 product": a @ b.T,
        "binary32 convolution": torch.nn.functional.conv2d(image, kernel),
    }
    return {name: hashlib.sha256(r.contiguous().numpy().tobytes()).hexdigest()[:16] for name, r in results.items()}

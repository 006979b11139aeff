"""torch.autocast while a step is captured, with the lists of CUDA's autocast for every device.

In: nothing. Out: a context in which regions of autocast("cuda"), ("cpu"), .. cast on this machine as they do on CUDA:
matrix products and convolutions compute in bfloat16, operators that sum or can overflow in float32, the rest in the
widest type of its operands. Regions can be nested and disabled. The lists are those of torch's
aten/src/ATen/autocast_mode.h; casts that torch makes only on the CPU are left out. Queries whether autocast is on, as
in the decorators of torch.amp, return True for every device. Casts are not cached, so the gradients of a weight that is
used twice are added in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from vgame.errors import ProgramError

aten = torch.ops.aten
KEY = "AutocastCPU"
#: Overloads; a name without a suffix is the default overload.
LOWER = """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
_scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell cudnn_convolution
cudnn_convolution_transpose
"""
#: Two of them differ from CUDA. CUDA refuses binary_cross_entropy, because its logarithms overflow in float16. On CUDA
#: cross_entropy_loss has no kernel of its own, although torch's documentation lists it: its log_softmax is rounded to
#: bfloat16 there.
FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
_upsample_bicubic2d_aa rms_norm linalg_matrix_norm.str_ord binary_cross_entropy cross_entropy_loss prod prod.dim_int
softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm sum sum.dim_IntList norm.Scalar
norm.ScalarOpt_dim
"""
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"


def _overloads(names: str) -> list[Any]:
    """The overloads in this version of torch."""
    pairs = (name.partition(".") for name in names.split())
    found = (getattr(getattr(aten, packet, None), overload or "default", None) for packet, _, overload in pairs)
    return [overload for overload in found if overload is not None]


def _floats(values: Any) -> list[torch.Tensor]:
    return [
        t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.dtype in (torch.float32, torch.bfloat16)
    ]


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """float32 and bfloat16 tensors in this type; other values unchanged."""
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and _floats(x) else x, values)


def _kernel(overload: Any, choose: Callable[[list[torch.Tensor]], torch.dtype], *args: Any, **kwargs: Any) -> Any:
    """Call the operator on operands in the chosen type, without autocast inside."""
    with torch._C._DisableAutocast():
        args, kwargs = _cast((args, kwargs), choose(_floats((args, kwargs))))
        return overload(*args, **kwargs)


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    return torch.float32 if any(t.dtype == torch.float32 for t in tensors) else torch.bfloat16


@cache
def _kernels() -> dict[Any, Callable[..., Any]]:
    lists = ((LOWER, lambda _: torch.bfloat16), (FLOAT32, lambda _: torch.float32), (WIDEST, _widest))
    chosen = {overload: choose for names, choose in lists for overload in _overloads(names)}
    return {overload: partial(_kernel, overload, choose) for overload, choose in chosen.items()}


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Context in which autocast behaves as described above."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that a kernel is overridden
        for overload, kernel in _kernels().items():
            library.impl(overload, kernel, KEY)
        for name in _on_cpu_alone():
            library.impl(name, torch.library.fallthrough_kernel, KEY)
    originals = [(place, name, getattr(place, name)) for place, name, _ in _REPLACED]
    for (place, name, replaced), (_, _, original) in zip(_REPLACED, originals, strict=True):
        setattr(place, name, replaced(original))
    try:
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)
        library._destroy()


@cache
def _on_cpu_alone() -> list[str]:
    """Operators that torch's autocast casts on the CPU but vgame does not."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(KEY)
    ours = f"{LOWER} {FLOAT32} {WIDEST}".split()
    return sorted({name.removeprefix("aten::") for name in names if name.startswith("aten::")}.difference(ours))


def _for_every_device(original: Callable[..., None]) -> Callable[..., None]:
    """The constructor of autocast, which treats every device as the CPU."""

    def begin(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        dtype = dtype or (torch.bfloat16 if device_type == "cpu" else torch._C.get_autocast_dtype(device_type))
        if enabled and dtype != torch.bfloat16:
            raise ProgramError(f"autocast to {dtype} is not supported; write torch.autocast(.., dtype=torch.bfloat16)")
        original(self, "cpu", torch.bfloat16, enabled, False)

    return begin


def _as_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """A query of the autocast of any device, with the result for the CPU."""
    return lambda device_type="cpu": original("cpu")


def _cast_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """The casts of torch.amp.custom_fwd: of CPU tensors, whatever the device argument."""
    return lambda value, device_type, dtype: original(value, "cpu", dtype)


#: (module, name, function from the original to its replacement)
_REPLACED = (
    (torch.autocast, "__init__", _for_every_device),
    (torch, "is_autocast_enabled", _as_on_cpu),
    (torch, "get_autocast_dtype", _as_on_cpu),
    (torch.amp.autocast_mode, "_cast", _cast_on_cpu),
)

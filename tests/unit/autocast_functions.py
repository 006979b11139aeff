"""Small programs for test_autocast.py: torch's functions, of a 4 x 4 matrix x, an image i (1 x 2 x 8 x 8) and module
constructors.

They omit operators that torch cannot run on fake CUDA tensors in a build without CUDA: batch norm, grid_sample, cells
of LSTM and GRU, copies in place, x[0].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor
BF16 = torch.bfloat16
Make = Callable[..., nn.Module]  # of the module's class and its arguments


Make = Callable[..., nn.Module]  # of the module's class and its arguments


def products(x: Tensor, i: Tensor, make: Make) -> None:
    for f in (torch.mm, torch.matmul, lambda a, b: a @ b, lambda a, b: torch.einsum("ij,jk->ki", a, b), torch.inner):
        f(x, x) + x
    (
        torch.addmm(x, x, x),
        torch.baddbmm(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)),
        torch.mv(x, x.select(0, 0)),
        torch.bmm(x.unsqueeze(0), x.unsqueeze(0)),
    )
    (
        torch.dot(x.select(0, 0), x.select(0, 1)),
        torch.tensordot(x, x, 1),
        torch.linalg.multi_dot([x, x, x]),
        torch.chain_matmul(x, x),
    )


def convolutions(x: Tensor, i: Tensor, make: Make) -> None:
    y = make(nn.Conv2d, 2, 3, 3, padding="same", padding_mode="reflect")(i)
    y = make(nn.ConvTranspose2d, 3, 2, 2)(y)
    make(nn.Conv1d, 2, 2, 3, padding="same")(i.select(2, 0)), make(nn.Conv3d, 2, 2, 1)(i.unsqueeze(2))
    make(nn.GroupNorm, 1, 2)(y), make(nn.InstanceNorm2d, 2)(y)


def pads(x: Tensor, i: Tensor, make: Make) -> None:
    y = F.conv2d(i, i.new_ones(2, 2, 1, 1))
    for mode in ("constant", "reflect", "replicate", "circular"):
        F.pad(y, (1, 1, 1, 1), mode=mode)
        F.pad(y.select(0, 0), (1, 1), mode=mode) if mode != "circular" else None


def pools(x: Tensor, i: Tensor, make: Make) -> None:
    y = F.conv2d(i, i.new_ones(2, 2, 1, 1))
    (
        F.max_pool2d(y, 2),
        F.avg_pool2d(y, 2),
        F.adaptive_avg_pool2d(y, 2),
        F.adaptive_avg_pool2d(y, 1),
        F.avg_pool1d(y.select(0, 0), 2),
    )
    F.avg_pool3d(y.unsqueeze(0), (1, 2, 2)), F.adaptive_avg_pool3d(y.unsqueeze(0), 1)


def resizes(x: Tensor, i: Tensor, make: Make) -> None:
    y = F.conv2d(i, i.new_ones(2, 2, 1, 1))
    for mode in ("nearest", "bilinear", "bicubic", "nearest-exact"):
        F.interpolate(y, scale_factor=2, mode=mode)
    for mode in ("bilinear", "bicubic"):
        F.interpolate(y, scale_factor=0.5, mode=mode, antialias=True)
    F.pixel_shuffle(y.repeat(1, 2, 1, 1), 2)


def norms(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    make(nn.LayerNorm, 4)(y), make(nn.RMSNorm, 4)(y), F.layer_norm(y, (4,)), F.rms_norm(y, (4,)), F.normalize(y)
    (
        y.norm(),
        torch.linalg.vector_norm(y),
        torch.linalg.matrix_norm(y),
        torch.linalg.matrix_norm(y, 1),
        y.norm(2, 1),
        F.local_response_norm(i, 2),
    )


def activations(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    for f in (
        F.relu,
        F.gelu,
        F.silu,
        F.mish,
        F.elu,
        F.softplus,
        F.hardswish,
        F.leaky_relu,
        torch.tanh,
        torch.sigmoid,
        F.logsigmoid,
        F.glu,
    ):
        f(y)
    (
        F.prelu(y, x.select(0, 0)),
        F.softmax(y, -1),
        F.log_softmax(y, -1),
        torch.softmax(y, -1, dtype=BF16),
        F.gumbel_softmax(y),
    )


def pointwise(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    for f in (
        torch.exp,
        torch.log,
        torch.log1p,
        torch.expm1,
        torch.rsqrt,
        torch.sqrt,
        torch.reciprocal,
        torch.sin,
        torch.tan,
        torch.acos,
        torch.asin,
        torch.atan,
        torch.cosh,
        torch.sinh,
        torch.erf,
        torch.erfinv,
        torch.abs,
        torch.floor,
        torch.square,
    ):
        f(y)
    (
        y**2,
        2**y,
        y**y,
        y**0.5,
        y / 3,
        y * 2.5,
        1 - y,
        y % 2,
        y + x,
        y * x,
        torch.where(y > 0, y, x),
        torch.maximum(y, x),
        y.clamp(0, 1),
    )


def sums(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    (
        y.sum(),
        y.sum(0),
        y.sum(0, dtype=BF16),
        y.mean(),
        y.mean(0),
        y.var(),
        y.std(0),
        y.prod(),
        y.prod(0),
        y.cumsum(0),
        y.cumprod(0),
    )
    (
        y.logsumexp(0),
        y.amax(),
        y.max(0),
        y.argmax(),
        y.median(),
        y.trace(),
        y.int().sum(),
        (y > 0).sum(),
        y.nansum(),
        y.diff(),
    )


def widest(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    (
        torch.addcmul(x, y, y),
        torch.addcdiv(y, y, y),
        torch.atan2(y, x),
        torch.cat([y, x]),
        torch.stack([y, x]),
        torch.cross(y.narrow(1, 0, 3), x.narrow(1, 0, 3)),
    )
    (
        y.scatter_add(0, torch.zeros(1, 4, dtype=torch.int64, device=x.device), y.narrow(0, 0, 1)),
        torch.lerp(y, y, 0.5),
        torch.hypot(y, y),
    )
    make(nn.Bilinear, 4, 4, 2)(y, x)


def losses(x: Tensor, i: Tensor, make: Make) -> None:
    y, labels = x @ x, torch.arange(4, device=x.device)
    for f in (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.kl_div,
        F.binary_cross_entropy_with_logits,
        F.poisson_nll_loss,
        F.soft_margin_loss,
    ):
        f(y, x)
    (
        F.cross_entropy(y, labels),
        F.cross_entropy(y, labels, label_smoothing=0.1),
        F.nll_loss(y, labels),
        F.multi_margin_loss(y, labels),
    )
    (
        F.cosine_similarity(y, x),
        F.pairwise_distance(y, x),
        torch.cdist(y, x),
        torch.dist(y, x),
        F.triplet_margin_loss(y, x, y),
    )


def recurrent(x: Tensor, i: Tensor, make: Make) -> None:
    """(The cells of LSTM and GRU are one kernel on CUDA, which has no fake form; their types are in the list.)"""
    make(nn.RNNCell, 4, 3)(x), make(nn.RNN, 4, 3)(x)


def attention(x: Tensor, i: Tensor, make: Make) -> None:
    q = x.unsqueeze(0).unsqueeze(0)
    F.scaled_dot_product_attention(q, q, q) + q
    make(nn.MultiheadAttention, 4, 2, batch_first=True)(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0))


def indexing(x: Tensor, i: Tensor, make: Make) -> None:
    y, at = x @ x, torch.tensor([0, 1], device=x.device)
    (
        y.index_select(0, at),
        y.gather(0, at.unsqueeze(0)),
        y.index_add(0, at, y.narrow(0, 0, 2)),
        y.index_put((at,), x.narrow(0, 0, 2)),
        y.index_copy(0, at, y.narrow(0, 0, 2)),
    )
    (
        y.masked_fill(y > 0, 0.0),
        y.sort(),
        y.topk(2),
        make(nn.Embedding, 4, 4)(at) @ x,
    )


def views(x: Tensor, i: Tensor, make: Make) -> None:
    y = x @ x
    (
        y.T,
        y.reshape(2, 8),
        y.flip(0),
        y.roll(1),
        y.tril(),
        y.expand(2, 4, 4),
        y.to(torch.float32),
        y.float(),
        x.bfloat16(),
        y.clone(),
        y.detach(),
    )
    (
        torch.zeros_like(y),
        y.new_ones(2),
        torch.ones(2, device=x.device),
        y.type_as(x),
        y.repeat(2, 1),
        F.dropout(y),
        y.unfold(0, 2, 1),
    )


PROGRAMS = [
    products,
    convolutions,
    pads,
    pools,
    resizes,
    norms,
    activations,
    pointwise,
    sums,
    widest,
    losses,
    recurrent,
    attention,
    indexing,
    views,
]

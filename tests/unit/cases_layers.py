"""Cases of test_lowering.py: linear layers, convolutions, normalisations, pooling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from traced import Case, on, over


def _convolutions() -> dict[str, Case]:
    """Every combination that changes the geometry, in one to three dimensions."""
    return {
        "conv1d": over(lambda: nn.Conv1d(2, 3, 3), 2, 7),
        "conv1d strided, padded, dilated": over(lambda: nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2), 2, 9),
        "conv2d without bias": over(lambda: nn.Conv2d(2, 3, (2, 3), bias=False), 2, 5, 6),
        "conv2d strided so that pixels are left over": over(
            lambda: nn.Conv2d(2, 3, 3, stride=(3, 2), padding=(0, 1)), 2, 8, 6
        ),
        "conv2d strided, one tap": over(lambda: nn.Conv2d(2, 3, 1, stride=2), 2, 5, 6),
        "conv2d of more stride than taps": over(lambda: nn.Conv2d(2, 3, 2, stride=3), 2, 8, 7),
        "conv2d of too many phases": over(lambda: nn.Conv2d(2, 3, 3, stride=4, padding=2), 2, 9, 8),
        "conv1d whose taps share phases": over(lambda: nn.Conv1d(2, 3, 4, stride=4, padding=3, dilation=2), 2, 13),
        "conv2d grouped, strided": over(lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), 4, 6, 5),
        "conv2d grouped": over(lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), 4, 5, 4),
        "conv2d depthwise, dilated": over(lambda: nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), 4, 6, 5),
        "conv2d reflecting": over(lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), 1, 5, 5),
        "conv2d circular": over(lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), 1, 5, 5),
        "conv2d same": over(lambda: nn.Conv2d(1, 2, 4, padding="same"), 1, 5, 5),
        "conv3d": over(lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1), padding=(1, 0, 1)), 2, 3, 4, 3),
        "transposed 1d": over(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), 2, 4),
        "transposed 2d": over(
            lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), 4, 3, 4
        ),
        "transposed 2d dilated": over(
            lambda: nn.ConvTranspose2d(2, 3, 2, stride=3, padding=1, dilation=2, bias=False), 2, 3, 3
        ),
        "transposed 3d": over(lambda: nn.ConvTranspose3d(2, 2, 2, stride=2), 2, 2, 3, 2),
    }


def _linear() -> dict[str, Case]:
    ignored = torch.full((3, 3), float("-inf"))

    def products(x):
        rows = [
            torch.addmm(ignored.to(x), x[1], x[2], beta=0, alpha=0.5),
            torch.baddbmm(ignored.to(x), x[:1], x[2:], beta=0)[0],
            torch.addmm(x[0], x[1], x[2], beta=0.5, alpha=2.0),
            torch.baddbmm(x[:1], x[1:2], x[2:], alpha=0.5)[0],
            torch.baddbmm(x[:1], x[1:2], x[2:], beta=0, alpha=0.5)[0],
            (x[0] @ x[1][0]).expand(3, 3),
            torch.dot(x[0, 0], x[1, 1]) * x[2],
            torch.outer(x[0, 0], x[1, 1]),
            torch.einsum("ij,kj->ik", x[0], x[1]),
            (x @ x[0])[0],
            x[0] @ x[1],
        ]
        return torch.stack(rows)

    return {
        "linear": over(lambda: nn.Linear(5, 3), 5),
        "linear without bias over several dimensions": over(lambda: nn.Linear(5, 3, bias=False), 2, 3, 5),
        "bilinear": Case(lambda: nn.Bilinear(3, 4, 2), lambda: {"x": torch.randn(8, 3), "y": torch.randn(8, 4)}),
        "products": Case(lambda: _First(products), lambda: {"x": torch.randn(9, 3, 3)}),
    }


class _First(nn.Module):
    """function(a * (the first sample)) for functions without a batch dimension."""

    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.function = nn.Parameter(1 + 0.2 * torch.randn(3, 3, 3)), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.a * x[0])


def _norms() -> dict[str, Case]:
    several = {"steps": 3, "batch": 5}
    rms = lambda: nn.RMSNorm(5, eps=1e-6)  # noqa: E731
    return {
        "batch norm 1d, running statistics": Case(
            lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5)),
            lambda: {"x": torch.randn(20, 4)},
            **several,
        ),
        "batch norm 2d, running statistics": over(
            lambda: nn.BatchNorm2d(3, momentum=0.3, eps=0.01), 3, 4, 2, **several
        ),
        "batch norm 3d without scale": over(lambda: nn.BatchNorm3d(2, affine=False), 2, 2, 2, 3, **several),
        "batch norm without statistics": over(lambda: nn.BatchNorm2d(3, track_running_stats=False), 3, 4, 2),
        "batch norm in evaluation": over(lambda: _Frozen(nn.BatchNorm2d(3)), 3, 4, 2),
        "layer norm": over(lambda: nn.LayerNorm(5), 3, 5),
        "layer norm over two dimensions": over(lambda: nn.LayerNorm((3, 5), eps=0.1), 3, 5),
        "layer norm without scale": over(lambda: nn.LayerNorm(5, elementwise_affine=False), 5),
        "layer norm without bias": over(lambda: nn.LayerNorm(5, bias=False), 3, 5),
        "layer norm of everything": Case(lambda: _Whole((4, 5)), lambda: {"x": torch.randn(9, 5)}),
        "group norm": over(lambda: nn.GroupNorm(2, 6), 6, 3, 2),
        "group norm without scale": over(lambda: nn.GroupNorm(3, 6, affine=False), 6, 4),
        "instance norm": over(lambda: nn.InstanceNorm2d(3, affine=True), 3, 4, 2),
        "rms norm": over(rms, 3, 5),
        "local response norm": over(lambda: nn.LocalResponseNorm(3), 4, 2, 2),
        "weight norm": over(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), 4),
        "normalize": on((6,), lambda x: F.normalize(x, dim=1)),
        "cosine similarity": on((6,), lambda x: F.cosine_similarity(x, x.flip(0), dim=1)),
    }


class _Frozen(nn.Module):
    """A batch norm that stays in evaluation mode, with statistics that are not trivial."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm
        norm.running_mean += torch.randn(3)
        norm.running_var += 0.5 * torch.rand(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.eval()
        return self.norm(x)


class _Whole(nn.Module):
    """A layer norm that leaves no dimension in front."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * self.norm.weight)


def _winners(pool, x: torch.Tensor, *options: object, fill: float = -math.inf, **others: object) -> torch.Tensor:
    """Maxima and their positions; whole windows at the borders contain only `fill`."""
    x = torch.where(torch.arange(x[0, 0].numel()).view(x.shape[2:]) % 11 == 5, x, fill)
    values, places = pool(x, *options, return_indices=True, **others)
    return torch.where(values == fill, 0.0, values) + places


def _pooling() -> dict[str, Case]:
    return {
        "max pool 1d": over(lambda: nn.MaxPool1d(3, 2, 1), 2, 9),
        "max pool 2d": over(lambda: nn.MaxPool2d(2), 2, 5, 4),
        "max pool 2d overlapping, padded": over(lambda: nn.MaxPool2d(3, stride=2, padding=1), 2, 5, 6),
        "max pool 2d dilated, ceil": over(lambda: nn.MaxPool2d(2, stride=3, dilation=2, ceil_mode=True), 2, 7, 8),
        "max pool 1d of -inf": on((2, 9), lambda x: _winners(F.max_pool1d, x, 4, 2, 2)),
        "max pool 2d of -inf": on((2, 6, 7), lambda x: _winners(F.max_pool2d, x, 3, 2, 1)),
        "max pool 2d of -inf, dilated": on((2, 9, 9), lambda x: _winners(F.max_pool2d, x, 3, 1, 1, 2)),
        "max pool 2d of -inf, ceil": on(
            (2, 6, 7), lambda x: _winners(F.max_pool2d, x, (2, 4), (3, 2), (1, 2), ceil_mode=True)
        ),
        "max pool 3d of -inf": on((2, 4, 4, 5), lambda x: _winners(F.max_pool3d, x, 3, 2, 1)),
        "max pool 2d of ReLU": on((2, 6, 7), lambda x: _winners(F.max_pool2d, x.relu(), 3, 2, 1, fill=0.0)),
        "max pool 3d": over(lambda: nn.MaxPool3d(2, stride=1, padding=1), 1, 3, 3, 2),
        "avg pool 1d": over(lambda: nn.AvgPool1d(3, 2, 1), 2, 8),
        "avg pool 2d": over(lambda: nn.AvgPool2d((2, 3)), 2, 4, 7),
        "avg pool 2d padded, ceil": over(lambda: nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), 1, 6, 7),
        "avg pool 2d, padding not counted": over(
            lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), 1, 6, 7
        ),
        "avg pool 2d, own divisor": over(lambda: nn.AvgPool2d(2, divisor_override=3), 1, 4, 4),
        "avg pool 3d": over(lambda: nn.AvgPool3d(2, stride=1, padding=1), 1, 3, 3, 2),
        "adaptive avg pool 1d": over(lambda: nn.AdaptiveAvgPool1d(3), 2, 7),
        "adaptive avg pool 2d, even": over(lambda: nn.AdaptiveAvgPool2d((2, 1)), 2, 4, 3),
        "adaptive avg pool 2d, uneven": over(lambda: nn.AdaptiveAvgPool2d((3, 2)), 2, 5, 7),
        "adaptive avg pool 3d": over(lambda: nn.AdaptiveAvgPool3d((2, 3, 2)), 1, 3, 4, 2),
        "adaptive avg pool 3d without batch": on((2, 4, 3), lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2))),
        "adaptive max pool 1d": over(lambda: nn.AdaptiveMaxPool1d(3), 2, 7),
        "adaptive max pool 2d": over(lambda: nn.AdaptiveMaxPool2d((3, 2)), 2, 5, 7),
        "adaptive max pool 3d": over(lambda: nn.AdaptiveMaxPool3d((2, 3, 2)), 1, 3, 4, 5),
        "global pooling": on((3, 4, 4), lambda x: torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)),
        "power-average pool": over(lambda: nn.LPPool2d(2, 2), 2, 4, 4),
        "upsampling": on(
            (2, 3, 4),
            lambda x: torch.cat(
                [
                    F.interpolate(x, scale_factor=2, mode=m, align_corners=a)
                    for m, a in (("nearest", None), ("bilinear", False), ("bilinear", True), ("bicubic", False))
                ]
            ),
        ),
        "upsampling to any size": on(
            (2, 5, 7),
            lambda x: torch.cat(
                [
                    F.interpolate(x, size=size, mode=m, antialias=a).flatten(1)
                    for size in ((3, 4), (8, 9), (5, 7))
                    for m, a in (
                        ("nearest-exact", False),
                        ("bilinear", True),
                        ("bicubic", True),
                        ("nearest", False),
                        ("bicubic", False),
                        ("area", False),
                    )
                ],
                1,
            ),
        ),
        "upsampling of lines": on(
            (2, 5),
            lambda x: torch.cat(
                [
                    F.interpolate(x, size=n, mode=m).flatten(1)
                    for n in (3, 8)
                    for m in ("nearest", "nearest-exact", "linear")
                ],
                1,
            ),
        ),
        "upsampling of volumes": on(
            (1, 2, 3, 4),
            lambda x: torch.cat(
                [
                    F.interpolate(x, size=(3, 2, 5), mode=m).flatten(1)
                    for m in ("nearest", "nearest-exact", "trilinear")
                ],
                1,
            ),
        ),
        "edge padding": on(
            (2, 3, 4),
            lambda x: torch.cat(
                [
                    F.pad(x, (2, 1, 0, 3), mode="replicate").flatten(1),
                    F.pad(x.unsqueeze(1), (1, 0, 2, 1, 1, 3), mode="replicate").flatten(1),
                ],
                1,
            ),
        ),
        "unfold and pixel shuffle": on(
            (4, 4, 4), lambda x: torch.cat([F.unfold(x, 2, padding=1).flatten(1), F.pixel_shuffle(x, 2).flatten(1)], 1)
        ),
        "fold": on((4, 9), lambda x: F.fold(x, (4, 4), 2)),
    }


CASES: dict[str, Case] = {**_linear(), **_convolutions(), **_norms(), **_pooling()}

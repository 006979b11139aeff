"""From ATen operators to the eight kinds: one handler per ATen operator, grouped by what it does."""

from vgame.program.lowering import (
    activations,
    convolution,
    embedding,
    indexing,
    inverse,
    linear,
    normalization,
    pointwise,
    pooling,
    powers,
    random,
    reduction,
    resampling,
    sorting,
    views,
)
from vgame.program.lowering.builder import Builder, Value
from vgame.program.lowering.table import HANDLERS

__all__ = [
    "HANDLERS",
    "Builder",
    "Value",
    "activations",
    "convolution",
    "embedding",
    "indexing",
    "inverse",
    "linear",
    "normalization",
    "pointwise",
    "pooling",
    "powers",
    "random",
    "reduction",
    "resampling",
    "sorting",
    "views",
]

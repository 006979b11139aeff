"""Typical user modules: tied weights, embeddings, attention, recurrent cells, blocks of small models."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from traced import Case, over

# ---- embeddings ----


class Tied(nn.Module):
    """Token embedding with positions; the head shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 4), nn.Embedding(6, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.tokens(tokens) + positions)


def tokens(count: int, length: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"tokens": torch.randint(0, count, (12, length))}


class Rows(nn.Module):
    """An embedding whose rows are normalised or frozen by the options."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.rows = nn.Embedding(7, 4, **options)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.rows(i) * self.rows.weight.sum()


class Bags(nn.Module):
    """A bag of embeddings [B, 5] by every way to reduce it, also by offsets that are data."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.weights = nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(4, 5))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        bag = F.embedding_bag
        offsets = torch.stack([i.new_zeros(()), i[0, 0] % 3, i[0, 0] % 3, i[0, 0] + 4])  # the second bag is empty
        results = [bag(i, self.rows, mode=mode) for mode in ("sum", "mean", "max")]
        results += [bag(i.flatten(), self.rows, offsets, mode=mode) for mode in ("sum", "mean", "max")]
        results += [
            bag(i, self.rows, mode="sum", per_sample_weights=self.weights),
            bag(i, self.rows, mode="mean", padding_idx=2),
        ]
        results += [bag(i.flatten(), self.rows, offsets, mode="sum", include_last_offset=True)]
        results += [bag(i, self.rows.detach(), mode="sum")]
        return torch.cat(results)


# ---- attention ----


class Attention(nn.Module):
    """Scaled dot products [B, 2, 4, 3] with any options; rotary embeddings if chosen."""

    def __init__(self, rotary: bool = False, masked: bool = False, **options: object) -> None:
        super().__init__()
        self.project, self.rotary, self.masked, self.options = nn.Linear(6, 24), rotary, masked, options
        angles = torch.arange(4.0)[:, None] * torch.tensor([1.0, 0.1])
        self.register_buffer("angles", angles, persistent=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles.cos(), self.angles.sin()
        a, b = x[..., :2], x[..., 2:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).view(*x.shape[:2], 2, 12).transpose(1, 2).split(4, -1)
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        mask = (torch.arange(4)[:, None] > torch.arange(4)) if self.masked else None  # the first row is fully masked
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return y.transpose(1, 2).flatten(2)


class ByHand(nn.Module):
    """Explicit attention, as in many models: an additive mask of -inf, softmax over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 3), nn.Linear(6, 3)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 3**0.5
        return (scores + self.mask).softmax(-1) @ x


def _attention() -> dict[str, Case]:
    width = {"d_model": 6, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
    layer = lambda: nn.TransformerEncoderLayer(**width, norm_first=True, activation="gelu")  # noqa: E731
    return {
        "attention": over(Attention, 4, 6),
        "attention, causal": over(lambda: Attention(is_causal=True), 4, 6),
        "attention, a fully masked row": over(lambda: Attention(masked=True), 4, 6),
        "attention, rotary": over(lambda: Attention(rotary=True, is_causal=True, scale=0.3), 4, 6),
        "attention by hand": over(ByHand, 4, 6),
        "multi-head attention": over(lambda: _Self(nn.MultiheadAttention(6, 2, batch_first=True)), 4, 6),
        "multi-head attention, masked": over(
            lambda: _Self(nn.MultiheadAttention(6, 2, batch_first=True), torch.ones(4, 4).triu(1) > 0), 4, 6
        ),
        "transformer encoder layer": over(layer, 4, 6),
        "transformer decoder layer": over(lambda: _Twice(nn.TransformerDecoderLayer(**width)), 4, 6),
    }


class _Self(nn.Module):
    """The mask is a plain attribute, no buffer."""

    def __init__(self, attention: nn.MultiheadAttention, mask: torch.Tensor | None = None) -> None:
        super().__init__()
        self.attention, self.mask = attention, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=True, attn_mask=self.mask)[0]


class _Twice(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x, x * 2)


# ---- recurrent networks ----


class Recurrent(nn.Module):
    """A recurrent network's outputs and last states."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, state = self.network(x)
        return torch.cat([t.reshape(-1) for t in (output, *(state if isinstance(state, tuple) else (state,)))])


class Cells(nn.Module):
    """Two steps of one cell of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.RNNCell(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.lstm(x)
        h, c = self.lstm(x.flip(1), (h, c))
        return torch.cat([h, c, self.gru(x, self.gru(x)), self.rnn(x, self.rnn(x))], 1)


def _recurrent() -> dict[str, Case]:
    two_ways = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    return {
        "cells": over(Cells, 3),
        "lstm": over(lambda: Recurrent(nn.LSTM(3, 4, batch_first=True)), 3, 3),
        "lstm both ways": over(lambda: Recurrent(nn.LSTM(3, 2, **two_ways)), 3, 3),
        "gru": over(lambda: Recurrent(nn.GRU(3, 4, batch_first=True)), 3, 3),
        "rnn": over(lambda: Recurrent(nn.RNN(3, 4, batch_first=True, nonlinearity="relu")), 3, 3),
    }


# ---- models ----


class Residual(nn.Module):
    """Two residual convolutions with batch norm, concatenation of a strided slice, and a frozen first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1).requires_grad_(False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)) for _ in range(2)
        )
        self.head = nn.Linear(4 + 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        for block in self.blocks:
            y = y + F.relu(block(y))
        return self.head(torch.cat([y.mean((2, 3)), x[:, 0, ::2, 1::2].flatten(1)], 1))


class Unused(nn.Module):
    """A parameter without a gradient and one that is its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen |= (x > 1.5).any(0)
        return x * self.used * (~self.seen + self.calls)


class Average(nn.Module):
    """A buffer that is replaced, not written to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.linear(x - self.average)

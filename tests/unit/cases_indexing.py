"""Cases of test_lowering.py: views, copies, indexing, reductions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from traced import Case, on

aten = torch.ops.aten


def joined(*parts: torch.Tensor) -> torch.Tensor:
    """All parts in one row."""
    return torch.cat([p.reshape(-1) for p in parts])


def _views(x: torch.Tensor) -> torch.Tensor:
    """x [4, 3, 4]."""
    return joined(
        x.permute(2, 0, 1),
        x.transpose(0, 1),
        x[0].t(),
        x.expand(2, 4, 3, 4),
        x.unsqueeze(1).squeeze(1),
        x[:1].squeeze(),
        aten.squeeze.dims(x[:1, :1], [0, 1]),
        aten.squeeze.default(x[:1]),
        x[1],
        x[:, 1:3],
        x[..., ::2],
        x[-1, :, -2],
        x.flatten(1),
        *x.split(2),
        *x.split([1, 2], 1),
        *x.unbind(1),
        *x.chunk(2, 2),
        x.diagonal(0, 0, 2),
        x.unfold(2, 2, 1),
        x.movedim(0, 2),
        x.view(2, 2, 12),
        x.transpose(0, 1).reshape(6, 8),
        x.contiguous(),
        x.clone(),
        aten.alias.default(x),
        x.as_strided((2, 3), (5, 1), 2),
        x.transpose(0, 1).as_strided((3, 2), (1, 4), 1),
        x.narrow(1, 0, 2),
        x.swapaxes(0, 2),
        x.T.mT,
        torch.atleast_2d(x[0, 0]),
    )


def _copies(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1] = x[0] * 2
    y[:, 0] = 3.0
    y[:, :, 1:4:2] = x[:, :, :2]
    z = torch.zeros_like(x)
    z[2:] += x[:2]
    return joined(
        torch.cat([x, x[:1], x * 2]),
        torch.cat([x, x[..., :1]], -1),
        torch.stack([x, x + 1], 1),
        F.pad(x, (1, 2)),
        F.pad(x, (0, 1, 2, 0), value=2.5),
        F.pad(x, (-1, 1)),
        x.flip(0, 2),
        x.repeat(2, 1, 3),
        x.repeat_interleave(2, 1),
        x.roll(1, 0),
        x.roll((-1, 2), (1, 2)),
        x.roll(5),
        torch.tile(x, (2, 1, 1)),
        x.tril(),
        x.triu(1),
        torch.cat([x[:0], x]),
        torch.cat([x[i % 4] for i in range(40)]),
        y,
        z,
        aten.slice_scatter.default(x, x[:, :1], 1, 1, 2),
        aten.select_scatter.default(x, x[0], 0, -1),
        torch.rot90(x, 1, (0, 1)),
        x[:, :, :3].diagonal(0, 1, 2),
        F.pad(x, (1, 1), mode="replicate"),
        torch.kron(x[0], x[1]),
        torch.cartesian_prod(x[0, 0], x[0, 1]),
        torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[0],
    )


def _made(x: torch.Tensor) -> torch.Tensor:
    """Tensors made without operands."""
    d = {"dtype": x.dtype}
    return joined(
        x * torch.full((4, 1, 4), 0.3, **d),
        x + torch.full_like(x, 2),
        x * torch.ones_like(x),
        x + x.new_full((3, 4), 1.5),
        x + x.new_ones(4),
        x + x.new_zeros(4),
        x + torch.zeros(4, **d),
        x * torch.arange(4, **d),
        x * torch.arange(1, 5),
        x + torch.eye(4, **d)[:3],
        x * torch.linspace(0, 1, 4, **d),
        x * torch.tensor([[1.0, 2.0, 3.0, 4.0]], **d),
        x * torch.scalar_tensor(2.5, **d),
        x * torch.tensor(3),
        x * torch.ones(4, dtype=torch.bool),
        x + aten.empty_like(x).fill_(1.0),
        x + aten.new_empty(x, [4]).zero_(),
        x + torch.empty(4, **d).fill_(2.0),
        x + aten.new_empty_strided(x, [4], [1]).zero_(),
        x + aten.empty_strided([4], [1], **d).zero_(),
        x + aten.empty_permuted([3, 4], [1, 0], **d).fill_(1.0),
        x * F.one_hot(torch.arange(4), 4)[:3],
        x * torch.hann_window(4, **d),
    )


class Indexing(nn.Module):
    """Rows by an index that is data, with repetitions; x [B, 5, 3], i [B, 4] in 0..4."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(1 + 0.2 * torch.randn(5, 3))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x, j, batch = self.a * x, i % 3, torch.arange(i.shape[0])
        return joined(*self.read(x, i, j, batch), *self.write(x, i, j, batch))

    def read(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, batch: torch.Tensor) -> list[torch.Tensor]:
        wide, b = i[:, :, None].expand(-1, -1, 3), i % 4
        return [
            x[b[0]],
            x[:, i[0]],
            x[:, :, j[0]],
            x[batch[:, None], i],
            x[b[0], :, j[0]],
            x[:, i[0], j[0]],
            x[batch, i[:, 0], j[:, 0]],
            x[b - 4][:, 0],
            x[:, [0, -1]],
            x[[-1, 2]],
            x[:, -1:],
            x[..., torch.tensor([-2, 0])],
            x[b],
            x[:, j, 1],
            x.index_select(1, i[0]),
            x.index_select(-1, j[1]),
            x.gather(1, wide),
            x.gather(2, j[:, None, :3]),
            x.gather(1, wide[:2, :, :2]),
            torch.take_along_dim(x, wide, 1),
            x.take(i * 3 + j),
            aten._unsafe_index(x, [None, i[0]]),
        ]

    def write(self, x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, batch: torch.Tensor) -> list[torch.Tensor]:
        wide, order, n = i[:, :, None].expand(-1, -1, 3), torch.tensor([4, 0, 2]), x.detach()
        put = lambda t, k, v: aten.index_put(t, k, v)  # noqa: E731
        return [
            x.scatter_add(1, wide, x[:, :4]),
            x.scatter_add(1, wide[:, :, :2], x[:, :4, :2]),
            x.scatter_reduce(1, wide, x[:, :4], "sum"),
            x.index_add(1, i[0], x[:, :4]),
            x.index_add(0, i[0] % 4, x),
            x.index_copy(1, order, x[:, :3] * 2),
            x.index_fill(1, order, 2.0),
            x.scatter(1, i[:, :1, None].expand(-1, -1, 3), 7.0),
            x.scatter(1, wide, 7.0),
            x.scatter(2, j[:, :1, None], 5.0),
            x.scatter(1, order[None, :, None].expand(len(x), 3, 3), x[:, 1:4] * 3),
            put(x, [batch, i[:, 0]], x[:, 0] * 2),
            put(x, [None, order], x[:, :3] * 4),
            put(x, [None, order, torch.tensor([0, 2, 1])], x[:, :3, 0]),
            put(x, [n > 0], n.new_full((), 0.5)),
            put(x, [n[:, :, 0] > 0], torch.tensor(2.0, dtype=x.dtype)),
            put(x, [i[:, :2] % 2], torch.tensor(2.0, dtype=x.dtype)),
            x.scatter(1, wide % 2, torch.ones_like(x)),
            put(x, [batch, i[:, 0] % 2], torch.full_like(x[0, 0], 3.0).expand(len(x), -1)),
            aten.index_put(x, [i[0] % 4], x, True),
            aten.index_put(x, [None, i[0]], x[:, :4], True),
            aten._unsafe_index_put(x, [i[0] % 4], x, True),
            x.masked_fill(n > 0, 1.0),
            put(x, [order[1:], None, torch.tensor([1, 2])], x[:2, :, 0]),
            x.put(torch.tensor([3, 8, 1]), x[0, 0] * 2),
            *(
                x.scatter_reduce(1, wide, x[:, :4] * 2, k, include_self=own)
                for k in ("mean", "amax", "amin")
                for own in (True, False)
            ),
        ]


class IntegerIndexing(nn.Module):
    """The same with tensors of integers: rows, sums, maxima, truth values; x [B, 6], i [B, 6] integers of both
    signs."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(1 + 0.2 * torch.randn(6))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x, k, p = self.a * x, i.abs() % 6, i > 0
        order = torch.tensor([5, 0, 3])
        results = [
            i.sum(),
            i.sum(1),
            p.sum(1),
            p.sum(),
            (i * 0 + 1).sum(),
            i.cumsum(1),
            p.cumsum(0),
            i.amax(1),
            i.amin(1),
            i.max(),
            i.min(),
            i.argmax(1),
            i.argmin(1),
            i.argmax(),
            i.max(1).indices,
            i.min(0).indices,
            i.max(0).values,
            i.min(1).values,
            p.any(1),
            p.all(1),
            p.any(),
            p.all(),
            aten.any.dims(p, [0, 1]),
            aten.all.dims(p, [0, 1]),
            i.any(1),
            i.all(0),
            i[0][k[0]],
            i.gather(1, k),
            i[:, [0, -1]],
            i.scatter_add(1, k, i),
            i.scatter(1, k[:, :1], 9),
            i.scatter(1, order.expand(len(i), 3), i[:, :3]),
            i.index_add(1, k[0], i),
            aten.index_put(i, [None, order], i[:, :3] - 5),
            aten.index_put(i, [p], torch.tensor(-3)),
            (i % 7).prod(1),
            i.flip(1),
            F.pad(i, (1, 1), value=4),
            torch.cat([i, k]),
            p.float().mean(),
            (i == 3).sum() / 2,
            torch.where(p, i, k),
            i.roll(1, 1),
            p & ~p.roll(1, 1),
        ]
        return joined(*(r.to(x.dtype) * x.sum() for r in results))


def _reductions(x: torch.Tensor) -> torch.Tensor:
    """x [4, 3, 5]."""
    y = x.abs() + 0.1
    var_mean, std_mean = torch.var_mean(x, 1), torch.std_mean(x, (0, 2))
    return joined(
        x.sum(),
        x.sum(1),
        x.sum((0, 2), keepdim=True),
        x.mean(),
        x.mean(2),
        x.mean((0, 1)),
        x.var(),
        x.var(1),
        x.var((0, 2), correction=0),
        x.std(),
        x.std(2, correction=2),
        *var_mean,
        *std_mean,
        x.amax(),
        x.amax(1),
        x.amax((0, 2), keepdim=True),
        x.amin(2),
        x.max(),
        x.min(),
        x.max(1).values,
        x.min(2, keepdim=True).values,
        x.prod(1),
        x.cumsum(0),
        x.cumsum(2),
        x.norm(),
        x.norm(dim=1),
        x.norm(1, dim=2),
        x.norm(math.inf, dim=0),
        torch.linalg.vector_norm(x, dim=(0, 1)),
        torch.linalg.matrix_norm(x),
        y.logsumexp(1),
        x.softmax(1),
        x.log_softmax(2),
        F.softmin(x, 0),
        x.argmax(1) * x[:, 0],
        x.argmax() * x,
        x.argmin(2) * x[..., 0],
        x.max(2).indices * x[..., 0],
        (x > 0).sum(1) * x[:, 0],
        (x > 0).any(1) * x[:, 0],
        (x > 0).all(2) * x[..., 0],
        x.any() * x,
        x.nansum(1),
        x.mean(0, dtype=x.dtype),
        torch.trace(x[0]),
        x.sum(1, dtype=x.dtype),
        x.std(correction=0),
        torch.softmax(x.masked_fill(x > 0.5, -math.inf), 0),
        x.diff(dim=1),
    )


def _order(x: torch.Tensor) -> torch.Tensor:
    """x [4, 3, 5]; integers have ties."""
    i = (2 * x.detach()).to(torch.int64)
    up, down, best = x.sort(1), x.sort(2, descending=True), x.topk(2, 2)
    integers = [
        i.sort(dim=2, stable=True).indices,
        i.argsort(dim=1, stable=True),
        i.sort(dim=0, descending=True, stable=True).values,
        torch.histc(x.detach(), 4, -1, 1),
        torch.histc(i.clamp(0, 3).to(x.dtype), 4, 0, 3),
        i.topk(1, 2).values,
        torch.zeros(5, dtype=torch.int64).index_add(0, torch.randperm(5), torch.ones(5, dtype=torch.int64)),
        torch.triu_indices(3, 5, 1),
        torch.tril_indices(4, 4),
        torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 0.5], dtype=x.dtype)),
        torch.searchsorted(
            up.values.detach().transpose(1, 2).contiguous(), x.detach().transpose(1, 2).contiguous(), side="right"
        ),
    ]
    return joined(
        up.values,
        up.indices * up.values,
        down.values,
        best.values,
        best.indices * best.values,
        x.topk(1, 0, largest=False).values,
        x.kthvalue(2, 2).values,
        x.median(),
        x.median(1).values,
        x.argsort(2) * x,
        x.logcumsumexp(1),
        x.prod(),
        x.masked_scatter(x > 0, 2 * x.flatten()),
        x.flatten().repeat(50).cumsum(0),
        *(r.to(x.dtype) * x.sum() for r in integers),
    )


def _indices() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(12, 5, 3), "i": torch.randint(0, 5, (12, 4))}


def _integers() -> dict[str, torch.Tensor]:
    """Some of them not representable in binary32."""
    i = torch.randint(-20, 20, (12, 6))
    i[::3, ::2] += 2**24 + 1
    return {"x": torch.randn(12, 6), "i": i}


CASES: dict[str, Case] = {
    "views": on((3, 4), _views),
    "copies": on((3, 4), _copies),
    "tensors without operands": on((3, 4), _made),
    "reductions": on((3, 5), _reductions),
    "order": on((3, 5), _order),
    "indexing": Case(Indexing, _indices),
    "integer indexing": Case(IntegerIndexing, _integers),
}

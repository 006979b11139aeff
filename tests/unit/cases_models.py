"""Cases of test_lowering.py: losses, embeddings, attention, recurrent cells, small models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from cases_indexing import _indices, aten, joined
from torch import nn
from traced import Batch, Case, over
from user_modules import Average, Bags, Residual, Rows, Tied, Unused, _attention, _recurrent, tokens

from vgame.program.schedule import Schedule

# ---- losses ----


def _classes(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *shape: int) -> Case:
    """Logits [B, 5, ...] by a linear layer and labels [B, ...]; the loss is the model's loss."""
    return Case(
        lambda: nn.Sequential(nn.Linear(3, 5), nn.Unflatten(1, (5, *(1 for _ in shape)))),
        lambda: {"x": torch.randn(12, 3), "y": torch.randint(0, 5, (12, *shape))},
        loss=lambda model, batch: loss(model(batch["x"]).expand(-1, -1, *shape), batch["y"]),
        recorded=False,
    )


def _targets(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Case:
    """Predictions [B, 5] by a linear layer and targets in (0, 1) of the same shape."""
    return Case(
        lambda: nn.Linear(3, 5),
        lambda: {"x": torch.randn(12, 3), "y": torch.rand(12, 5)},
        loss=lambda model, batch: loss(model(batch["x"]), batch["y"]),
        recorded=False,
    )


def _weights(logits: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1.0, 0.5, 2.0, 0.1, 3.0], dtype=logits.dtype)


def _losses() -> dict[str, Case]:
    ce, on_targets = F.cross_entropy, {}
    on_targets |= {
        f.__name__: _targets(f) for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss)
    }
    on_targets |= {
        "binary_cross_entropy_with_logits": _targets(F.binary_cross_entropy_with_logits),
        "bce with weights": _targets(
            lambda p, y: F.binary_cross_entropy_with_logits(p, y, weight=y, pos_weight=_weights(p))
        ),
        "binary_cross_entropy": _targets(lambda p, y: F.binary_cross_entropy(p.sigmoid(), y)),
        "kl_div": _targets(lambda p, y: F.kl_div(p.log_softmax(1), y, reduction="batchmean")),
        "soft cross-entropy": _targets(lambda p, y: ce(p, y.softmax(1), label_smoothing=0.1)),
        "soft margin": _targets(lambda p, y: F.soft_margin_loss(p, y.round() * 2 - 1)),
        "sum of squares": _targets(lambda p, y: F.mse_loss(p, y, reduction="sum")),
        "cosine embedding": _targets(lambda p, y: F.cosine_embedding_loss(p, y, torch.tensor([1, -1, 1, -1]))),
        "triplet margin": _targets(lambda p, y: F.triplet_margin_loss(p, y, y.flip(0))),
    }
    return on_targets | {
        "cross-entropy": _classes(ce),
        "cross-entropy, summed": _classes(lambda p, y: ce(p, y, reduction="sum")),
        "cross-entropy, class weights": _classes(lambda p, y: ce(p, y, weight=_weights(p))),
        "cross-entropy, ignored and smoothed": _classes(lambda p, y: ce(p, y, ignore_index=2, label_smoothing=0.1)),
        "cross-entropy, all options": _classes(lambda p, y: ce(p, y, _weights(p), ignore_index=1, label_smoothing=0.2)),
        "cross-entropy per pixel": _classes(lambda p, y: ce(p, y, _weights(p), ignore_index=3), 2, 3),
        "cross-entropy per sample": _classes(lambda p, y: (ce(p, y, reduction="none") * torch.arange(4)).sum()),
        "nll": _classes(lambda p, y: F.nll_loss(p.log_softmax(1), y)),
        "focal": _classes(
            lambda p, y: ((1 - p.softmax(1).gather(1, y[:, None])) ** 2 * ce(p, y, reduction="none")[:, None]).mean()
        ),
        "accuracy beside": _classes(lambda p, y: ce(p, y) + 0 * (p.argmax(1) == y).float().mean()),
    }


def parameter_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss is a parameter itself: no operator computes it."""
    return model.weight.view(())


def penalised(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss reads the model's parameters."""
    return model(batch["x"]).square().mean() + sum(p.square().sum() for p in model.parameters())


class _Scratch(nn.Module):
    """Writes in place to tensors that are made from one which is a plain attribute: whole, in part, through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.arange(12).view(4, 3) % 3 == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums, chosen = torch.zeros_like(self.held, dtype=x.dtype), self.held.clone()
        sums[1] = x[0]
        sums[0].add_(x[2]).mul_(3)
        sums.index_put_((torch.tensor([2, 3]),), x[:2]).masked_fill_(self.held, 7.0)
        chosen[0].fill_(True)
        return sums * chosen.logical_not_()


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (self.a * x).masked_fill(~m, 0.5) + (m & ~m.flip(0))


# ---- whole tasks ----


def next_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the next token, in windows of a stream."""
    logits = model(batch["tokens"][:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())


def grouped(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Decay and twice the learning rate for matrices only."""
    parameters = list(parameters)
    matrices, others = ([p for p in parameters if (p.dim() > 1) == wanted] for wanted in (True, False))
    return torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.0}, {"params": matrices, "lr": 2.0, "weight_decay": 0.2}], lr=1.0
    )


def _stream(model: Callable[[], nn.Module], **options: object) -> Case:
    """Next tokens of a stream of 61 tokens, 7 at a time, 5 apart."""
    return Case(
        model,
        lambda: {"tokens": torch.randint(0, 7, (61,))},
        loss=next_token,
        recorded=False,
        steps=4,
        schedule=Schedule(lr="0.1"),
        options={"window": 7, "stride": 5, **options},
    )


def _steady() -> nn.Module:
    """Batch norm and a linear layer: every batch of a step moves the running statistics."""
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))


def _tasks() -> dict[str, Case]:
    rows = lambda: {"x": torch.randn(20, 3), "y": torch.randn(20, 2)}  # noqa: E731
    squares = lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"])  # noqa: E731
    plain = {"loss": squares, "recorded": False, "steps": 3, "batch": 2}
    return {
        "windows of a stream": _stream(Tied),
        "windows, clipped": _stream(Tied, clip=0.05),
        "windows, parameter groups": replace(_stream(Tied), optimizer=grouped),
        "gradients that need no clipping": Case(lambda: nn.Linear(3, 2), rows, options={"clip": 1e3}, **plain),
        "accumulated gradients": Case(_steady, rows, options={"accumulate": 3}, **plain),
        "accumulated and clipped": Case(_steady, rows, options={"accumulate": 2, "clip": 0.01}, **plain),
        "parameter groups": Case(
            _steady, rows, optimizer=grouped, **plain | {"schedule": Schedule(lr="0.05", kind="cosine", warmup=1)}
        ),
    }


# ---- functions decomposed before autograd ----


class Sampled(nn.Module):
    """Images [B, 2, 4, 5] sampled at a learnt grid."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.angle, self.options = nn.Parameter(torch.tensor([[0.91, 0.23, 0.117], [-0.31, 1.17, 0.053]])), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.angle.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, **self.options) + self.angle.sum()


class Experts(nn.Module):
    """Rows sorted by the expert that is best for them, each expert's rows times its matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.experts = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.route(x).softmax(-1).topk(1)
        order = chosen[:, 0].argsort()
        ends = torch.histc(chosen.float(), 3, 0, 2).cumsum(0).int()
        experts = self.experts
        if x.dtype == torch.float64:  # torch's own grouped product supports bfloat16 only
            starts = [0, *ends.tolist()]
            y = torch.cat([x[order][s:e] @ m for s, e, m in zip(starts, starts[1:], experts, strict=False)])
        else:
            y = F.grouped_mm(x[order], experts, offs=ends)
        return torch.zeros_like(y).index_copy(0, order, y) * weight


class Skipping(nn.Module):
    """A layer that is dropped with probability 0, as transformers do it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand([]) < 0.0 else self.linear(x)


class Deciding(nn.Module):
    """Branches on tensors that the model builds itself: a mask, a count, the positions of its true elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, mask, count = self.linear(x), torch.zeros(4), torch.zeros(4)
        mask[1:3] = 1.0
        if not (mask > 0).any() or int(mask.sum()) != 2 or torch.equal(mask, torch.ones(4)):
            return x
        count[: len(mask.nonzero())] += 1
        return x[:, mask > 0] * x[..., count.bool()] * float(count.max())


def _opened() -> dict[str, Case]:
    distances = {f"distances of order {p}": over(lambda p=p: _Distances(p), 5, 3) for p in (1.0, 2.0)}
    return distances | {
        "grid sample": over(Sampled, 2, 4, 5),
        "grid sample to the border": over(lambda: Sampled(padding_mode="border", align_corners=True), 2, 4, 5),
        "grid sample, nearest": over(lambda: Sampled(mode="nearest"), 2, 4, 5),
        "experts": over(Experts, 4, batch=7),
        "a layer that is never dropped": over(Skipping, 3),
        "decisions by constants": over(Deciding, 4),
        "scratch memory like a constant": over(_Scratch, 3),
    }


class _Distances(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x[:, :2] + 1, self.p)


class Duplicates(nn.Module):
    """Several writers write one word to a place, where constants, data and parameters decide about the place."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(1 + 0.2 * torch.randn(5, 3))
        self.register_buffer("used", torch.zeros(5))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        """x [4, 5, 3], i [4, 4] from 0 to 4."""
        x = self.a * x
        first, constant, wide = i[:, 0], torch.tensor([2, 0, 2, 2, 1, 0]), i[..., None].expand(-1, -1, 3)
        codes = x.detach().argmax(1)
        with torch.no_grad():
            self.used[first] = self.used[first] + 1
            self.used[codes] = self.used[codes] + 0.5
            self.used[codes[:, 0]] = self.used[codes[:, 0]] * 2
        return joined(
            x.scatter(1, wide, x.gather(1, wide) * 2),
            x.scatter(1, codes[:, None] % 2, x.gather(1, codes[:, None] % 2) * 2),
            x.scatter(1, constant[None, :, None].expand(4, -1, 3), x[:, constant] * 2),
            aten.index_put(x, [first % 4], x[first % 4] * 3),
            aten.index_put(x, [None, constant], x[:, constant] * 2),
            aten.index_put(x, [i[:, :2] % 4, i[:, 2:]], x[i[:, :2] % 4, i[:, 2:]] * 2),
            aten.index_put(x, [torch.arange(4)[:, None], i], x[torch.arange(4)[:, None], i] * 2),
            aten.index_put(x, [torch.tensor([0, -4])], x[[0, 0]] * 2),
            x.index_copy(1, i[0], x.index_select(1, i[0]) * 2),
            x.put(i, x.take(i) * 2),
        )


CASES: dict[str, Case] = {
    **_tasks(),
    **_opened(),
    **_losses(),
    "writers of one word": Case(Duplicates, _indices, steps=2),
    "tied embeddings": Case(Tied, tokens(7, 6)),
    "embedding with padding": Case(lambda: Rows(padding_idx=3), tokens(7, 5)),
    "embedding counted from the end": Case(lambda: Rows(padding_idx=-1), tokens(7, 5)),
    "bags of embeddings": Case(Bags, tokens(7, 5)),
    **_attention(),
    **_recurrent(),
    "residual network, frozen stem": over(Residual, 1, 8, 8, steps=2),
    "buffers of integers and truth values": Case(Unused, lambda: {"x": torch.randn(8, 3)}, steps=3, batch=2),
    "a parameter as loss": Case(
        lambda: nn.Linear(1, 1, bias=False), lambda: {"x": torch.zeros(4, 1)}, loss=parameter_loss, recorded=False
    ),
    "a penalty on all parameters": Case(
        lambda: nn.Linear(3, 2), lambda: {"x": torch.randn(8, 3)}, loss=penalised, recorded=False, steps=2
    ),
    "a buffer that is replaced": Case(Average, lambda: {"x": torch.randn(8, 3)}, steps=3),
    "data of truth values": Case(_Masked, lambda: {"x": torch.randn(8, 3), "m": torch.rand(8, 3) > 0.5}),
}

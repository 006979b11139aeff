"""Sixteen stories of users in addition to test_follow.py: usual code, trained for 20 steps.

Losses follow the library's own loop in eager binary64 within 1e-6, or 1e-7 where they are small. Where a loss draws
random numbers (diffusion) or computes in bfloat16, the test compares something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset
from wide import of_many

import vgame

STEPS, BATCH, SAMPLES = 20, 8, 32


@dataclass
class Story:
    """A user's task. `follow`: tolerance of the losses against torch's; None: they draw random numbers."""

    model: nn.Module
    loss: Any
    optimizer: Any
    schedulers: list = field(default_factory=list)
    options: dict = field(default_factory=dict)
    data: Any = None
    follow: float | None = 1e-6


def numbers() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 4)
    return {"x": x, "y": x.argmax(1) % 3, "tokens": torch.randint(0, 16, (SAMPLES, 7)), "z": torch.randn(SAMPLES, 2)}


def net(inputs: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, outputs))


def labels(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


# ---- models ----


class Decoder(nn.Module):
    """A causal transformer over tokens, in which token 0 is padding."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recompute = recompute
        self.tokens, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=self.head.weight.dtype)
        layer = lambda x: self.layer(x, causal, tokens == 0)  # noqa: E731
        x = self.tokens(tokens)
        return self.head(checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x))


def next_token(model: nn.Module, batch) -> torch.Tensor:
    tokens = batch["tokens"].clone()
    tokens[:, 0] = 1  # a row of padding alone attends to nothing
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)


def transformer_with_masks() -> Story:
    model = Decoder()
    return Story(model, next_token, torch.optim.AdamW(model.parameters(), lr=0.01))


def activation_checkpointing() -> Story:
    model = Decoder(recompute=True)
    return Story(model, next_token, torch.optim.AdamW(model.parameters(), lr=0.01))


class LoRA(nn.Module):
    """A frozen layer and its low-rank update, as peft adds it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)


def low_rank_update() -> Story:
    model = net()
    model[0], model[3] = LoRA(model[0]), LoRA(model[3])
    trained = [p for p in model.parameters() if p.requires_grad]
    return Story(model, labels, torch.optim.AdamW(trained, lr=0.05, weight_decay=0.0))


def diffusion() -> Story:
    def noised(model: nn.Module, batch) -> torch.Tensor:
        x, at = batch["x"], torch.rand(BATCH, 1)
        noise = torch.randn(BATCH, 4)
        seen = torch.cos(at * 1.5) * x + torch.sin(at * 1.5) * noise
        return F.mse_loss(model(torch.cat([seen, at], 1)), noise)

    model = net(5, 4)
    return Story(model, noised, torch.optim.Adam(model.parameters(), lr=0.02), follow=None)


class Carried(nn.Module):
    """A network with the state of two LSTM cells, carried from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.LSTMCell(4, 6), nn.Linear(6, 3)
        self.register_buffer("h", torch.zeros(BATCH, 6))
        self.register_buffer("c", torch.zeros(BATCH, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, (self.h.clone(), self.c.clone()))  # the buffers change below, before backward
        self.h.copy_(h.detach())
        self.c.copy_(c.detach())
        return self.head(h)


def lstm_with_carried_state() -> Story:
    model = Carried()
    return Story(model, labels, torch.optim.SGD(model.parameters(), lr=0.3), options={"order": "streams"})


def distillation() -> Story:
    model = nn.ModuleDict({"teacher": net().requires_grad_(False), "student": nn.Linear(4, 3)})

    def soft(model: nn.Module, batch) -> torch.Tensor:
        target = (model["teacher"](batch["x"]) / 2).softmax(1)
        return F.kl_div((model["student"](batch["x"]) / 2).log_softmax(1), target, reduction="batchmean")

    return Story(model, soft, torch.optim.SGD(model["student"].parameters(), lr=0.5, momentum=0.9, nesterov=True))


# ---- data ----


def a_crop_of_each_sample() -> Story:
    """The place of each crop is data; the rows are taken by gather."""

    def cropped(model: nn.Module, batch) -> torch.Tensor:
        places = batch["tokens"][:, :1] % 3 + torch.arange(2)
        return F.cross_entropy(model(batch["x"].gather(1, places)), batch["y"])

    model = net(2)
    return Story(model, cropped, torch.optim.SGD(model.parameters(), lr=0.2))


class Records(Dataset):
    """Samples as dictionaries."""

    def __init__(self) -> None:
        self.all = numbers()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"features": self.all["x"][i], "label": int(self.all["y"][i])}


def a_list_of_dictionaries() -> Story:
    model = net()
    loss = lambda model, batch: F.cross_entropy(model(batch["features"]), batch["label"], label_smoothing=0.1)  # noqa: E731
    return Story(model, loss, torch.optim.SGD(model.parameters(), lr=0.2), data=Records())


# ---- optimizers ----


def adafactor() -> Story:
    model = net()
    return Story(model, labels, torch.optim.Adafactor(model.parameters(), lr=0.05))


def muon() -> Story:
    """The matrices by Muon, the rest by AdamW: two optimizers, one loss."""
    model = net()
    flat = [p for p in model.parameters() if p.dim() < 2]
    both = [
        torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.02), torch.optim.AdamW(flat, lr=0.01)
    ]  # fmt: skip
    return Story(model, labels, both, follow=2e-2)  # Muon itself computes in bfloat16, for weights of any type


def nadam() -> Story:
    model = net()
    return Story(model, labels, torch.optim.NAdam(model.parameters(), lr=0.02))


class Lion(torch.optim.Optimizer):
    """A user's own optimizer: sign of an interpolated momentum."""

    def __init__(self, parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["decay"])
                p.sub_(torch.sign(fast * momentum + (1 - fast) * p.grad), alpha=group["lr"])
                momentum.mul_(slow).add_(p.grad, alpha=1 - slow)


def lion() -> Story:
    model = net()
    return Story(model, labels, Lion(model.parameters(), lr=0.004, decay=0.1))


def a_rate_for_each_group() -> Story:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2:].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    return Story(model, labels, optimizer, [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)])


# ---- loops ----


def two_networks_take_turns() -> Story:
    """A GAN; its noise is data here, so that the losses can be compared."""
    model = nn.ModuleDict({"critic": net(4, 1), "generator": net(2, 4)})

    def critic(model: nn.Module, batch) -> torch.Tensor:
        fake = model["generator"](batch["z"]).detach()
        return F.softplus(model["critic"](fake)).mean() + F.softplus(-model["critic"](batch["x"])).mean()

    def generator(model: nn.Module, batch) -> torch.Tensor:
        return F.softplus(-model["critic"](model["generator"](batch["z"]))).mean()

    adams = [torch.optim.Adam(model[name].parameters(), lr=0.01, betas=(0.5, 0.9)) for name in ("critic", "generator")]
    return Story(model, [critic, generator], adams)


def autocast() -> Story:
    def lower(model: nn.Module, batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return labels(model, batch)

    model = net()
    return Story(model, lower, torch.optim.SGD(model.parameters(), lr=0.2), follow=2e-2)  # of binary64


def mean_of_the_weights() -> Story:
    model = net()
    return Story(model, labels, torch.optim.SGD(model.parameters(), lr=0.2), options={"average": "equal"})


STORIES = [
    transformer_with_masks, activation_checkpointing, low_rank_update, diffusion, lstm_with_carried_state, distillation,
    a_crop_of_each_sample, a_list_of_dictionaries, adafactor, muon, nadam, lion, a_rate_for_each_group,
    two_networks_take_turns, autocast, mean_of_the_weights,
]  # fmt: skip


@pytest.mark.parametrize("make", of_many(STORIES, *STORIES[::3]), ids=lambda f: f.__name__)
def test_a_story_is_trained_as_by_its_own_loop(make: Callable[[], Story], tmp_path: Path) -> None:
    story = make()
    options = {"order": "sequential"} | story.options
    task = vgame.Task(
        story.model, story.loss, story.optimizer, story.data or numbers(), BATCH, schedulers=story.schedulers, **options
    )
    run = vgame.train(vgame.prepare(vgame.Job(task, steps=STEPS, interval=10, seed=1)), tmp_path / "run")
    if story.follow is None:
        assert run.losses[-5:].mean() < run.losses[:5].mean()
    else:
        assert run.losses == pytest.approx(eager(make(), task), rel=story.follow, abs=1e-7)
    assert vgame.audit(run, segments=(2, 2)).match


def eager(story: Story, task: vgame.Task) -> list[float]:
    """The plain loop, in binary64."""
    model, text = story.model.double(), []
    losses = story.loss if isinstance(story.loss, list) else [story.loss]
    optimizers = story.optimizer if isinstance(story.optimizer, list) else [story.optimizer]
    for step in range(STEPS):
        rows = torch.arange(BATCH) + BATCH * step
        if task.order == "streams":
            rows = torch.arange(BATCH) * (SAMPLES // BATCH) + step % (SAMPLES // BATCH)
        batch = {name: t.double() if t.is_floating_point() else t for name, t in task.samples(rows % SAMPLES).items()}
        text.append(0.0)
        for at, loss in enumerate(losses):
            mine = optimizers if len(losses) == 1 else [optimizers[at]]
            for optimizer in mine:
                optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            text[-1] += float(value.detach())
            for optimizer in mine:
                optimizer.step()
        for scheduler in story.schedulers:
            scheduler.step()
    return text

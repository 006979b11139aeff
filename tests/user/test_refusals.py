"""Refusals with a remedy: one sentence with the user's line, the problem and the replacement; the replacement works."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import vgame


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.generator, self.critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def task(loss, model=None, optimizer=None) -> vgame.Task:
    torch.manual_seed(0)
    model = model or nn.Linear(4, 3)
    data = {"x": torch.randn(16, 4), "z": torch.randn(16, 2), "y": torch.arange(16) % 3}
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return vgame.Task(model, loss, optimizer, data, batch=4, order="sequential")


def crop(model, batch):
    first, second = torch.randint(0, 2, (2,)).tolist()
    return model(batch["x"][first : first + 2]).mean() * second


def rows(model, batch):
    return model(torch.stack([batch["x"][i].roll(k) for i, k in enumerate(torch.randint(0, 3, (4,)).tolist())])).mean()


def shapes(model, batch):
    return (model(batch["x"]) @ torch.ones(5, 2)).mean()


def backward(model, batch):
    loss = model(batch["x"]).mean()
    loss.backward()
    return loss


def turns(model, batch):
    fake = model.generator(batch["z"])
    return model.critic(fake).mean(), -model.critic(batch["x"]).mean()


def missing(model, batch):
    return model(batch["images"]).mean()


CASES = {
    "a crop of the batch": (crop, r"\(item, test_refusals.py line \d+\).*index with the tensor itself", nn.Linear),
    "a crop of each row": (rows, r"\(item, test_refusals.py line \d+\).*torch.gather", nn.Linear),
    "shapes": (shapes, r"RuntimeError: .*\[4, 3\] X \[5, 2\]\.?, test_refusals.py line \d+$", nn.Linear),
    "backward": (backward, r"calls backward, test_refusals.py line \d+; remove backward", nn.Linear),
    "two losses": (turns, r"the loss returns a tuple; .* \(a GAN\), .*docs/loops.md", Gan),
    "a dictionary": (
        lambda m, b: {"loss": m(b["x"]).mean()},
        "returns a dict; one float32 is expected: return one of 'loss'",
        None,
    ),
    "no such data": (missing, r"KeyError: 'images', test_refusals.py line \d+; the batch has the keys 'x', 'z'", None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_sentence_with_the_users_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    loss, sentence, kind = CASES[name]
    with caplog.at_level(logging.ERROR), pytest.raises(vgame.ProgramError, match=sentence) as error:
        vgame.prepare(vgame.Job(task(loss, Gan() if kind is Gan else None), steps=1, interval=1, seed=1))
    assert len(str(error.value)) < 350 and "\n" not in str(error.value)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def both(model, batch):
    fake = model.generator(batch["z"])
    frozen = {name: p.detach() for name, p in model.critic.named_parameters()}
    generator = F.softplus(-functional_call(model.critic, frozen, (fake,))).mean()
    return generator + F.softplus(model.critic(fake.detach())).mean() + F.softplus(-model.critic(batch["x"])).mean()


def test_the_documented_form_of_a_gan_trains_as_torch_does(tmp_path) -> None:
    def groups(model):
        return torch.optim.Adam(
            [{"params": model.generator.parameters(), "lr": 0.01}, {"params": model.critic.parameters(), "lr": 0.04}]
        )

    mine = Gan()
    made = task(both, mine, groups(mine))
    theirs = Gan().double()
    optimizer, losses = groups(theirs), []
    for step in range(20):
        batch = {k: t.double() for k, t in made.samples(torch.arange(4 * step, 4 * step + 4) % 16).items()}
        loss = both(theirs, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    run = vgame.train(vgame.prepare(vgame.Job(made, steps=20, interval=10, seed=1)), tmp_path / "run")
    assert run.losses == pytest.approx(losses, rel=1e-6)


class Versioned(nn.Linear):
    """As torchvision's MNASNet."""

    def _load_from_state_dict(self, state, prefix, metadata, *others):
        if metadata.get("version") is None:
            raise ValueError("version should be set")
        super()._load_from_state_dict(state, prefix, metadata, *others)


def test_modules_that_read_their_version_are_captured_and_loaded(tmp_path) -> None:
    made = task(lambda m, b: m(b["x"]).mean(), Versioned(4, 3))
    run = vgame.train(vgame.prepare(vgame.Job(made, steps=2, interval=1, seed=1)), tmp_path / "run")
    again = task(lambda m, b: m(b["x"]).mean(), Versioned(4, 3))
    bundle = vgame.prepare(vgame.Job(again, steps=2, interval=1, seed=1, initial=run.state_dict()))
    assert torch.equal(bundle.state[0], run.state_dict()["weight"].reshape(-1))


class Remembering(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 1}


class Forgiving(Remembering):
    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict(state, strict=False, assign=assign)


def test_a_state_dict_that_a_run_does_not_keep_is_refused(tmp_path) -> None:
    loss = lambda m, b: m(b["x"]).mean()  # noqa: E731
    with pytest.raises(vgame.ProgramError, match=r"the model's state_dict has 1._extra_state, neither parameters nor"):
        vgame.prepare(vgame.Job(task(loss, nn.Sequential(nn.Linear(4, 4), Remembering(4, 3))), steps=1))
    run = vgame.train(vgame.prepare(vgame.Job(task(loss, Forgiving(4, 3)), steps=1)), tmp_path / "run")
    Forgiving(4, 3).load_state_dict(run.state_dict())

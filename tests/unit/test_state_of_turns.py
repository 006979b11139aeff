"""State that one loss sets on the model for a later turn, and parameters that it freezes, are as in torch's loop, or
the capture refuses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_turns import critic_loss, generator_loss, loop, task, trained
from torch import nn, optim
from torch.nn import functional as F

import vgame
from vgame.errors import ProgramError
from vgame.program.decompositions import Opened
from vgame.program.lower import lower_task

pytestmark = pytest.mark.usefixtures("one_thread")
Change = Callable[[nn.Module], object]
KEPT: dict[str, float] = {"share": 1.0}


def nothing(model: nn.Module) -> None:
    pass


def turns(
    critic: Change = nothing, generator: Change = nothing, read: Change = lambda m: getattr(m, "share", 1.0)
) -> list[Callable]:
    """A usual pair of losses; each first calls its function of the model."""

    def first(model: nn.Module, batch) -> torch.Tensor:
        critic(model)
        return critic_loss(model, batch) * read(model)

    def second(model: nn.Module, batch) -> torch.Tensor:
        generator(model)
        return generator_loss(model, batch) * read(model)

    return [first, second]


def sets_share(model: nn.Module) -> None:
    model.share = 0.25


def sets_momentum(model: nn.Module) -> None:
    model.critic[1].momentum = 0.5


def stops_statistics(model: nn.Module) -> None:
    model.critic[1].track_running_stats = False


def replaces(model: nn.Module) -> None:
    model.critic[2] = nn.Sigmoid()


def hooks(model: nn.Module) -> None:
    """Once, as long as the module has no hook: those of the capture must not count."""
    if not model.critic[0]._forward_hooks:
        model.critic[0].register_forward_hook(lambda module, given, found: 0.5 * found)


def sets_elsewhere(model: nn.Module) -> None:
    KEPT["share"] = 0.25


def freezes(model: nn.Module) -> None:
    model.critic[0].requires_grad_(False)


def thaws(model: nn.Module) -> None:
    model.critic[0].requires_grad_(True)


def evaluates(model: nn.Module) -> None:
    model.critic.eval()


def swaps(model: nn.Module) -> None:
    model.turn = not getattr(model, "turn", False)
    model.share = 0.25 if model.turn else 1.0


def captured(ordered: vgame.Task) -> vgame.Bundle:
    return vgame.prepare(vgame.Job(ordered, steps=3, interval=1, seed=0), validate=0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (sets_share, "share"),
        (sets_momentum, "critic.1.momentum"),
        (stops_statistics, "critic.1.track_running_stats"),
        (replaces, "the module critic.2"),
        (hooks, "the module critic.0"),
        (sets_elsewhere, r"KEPT.share \(test_state_of_turns.py line \d+\)"),
        (evaluates, "the mode of critic, the mode of critic.0"),
        (freezes, "requires_grad of critic.0.weight"),
    ],
)
def test_state_that_a_later_loss_leaves_for_the_next_step_is_refused(change: Change, name: str) -> None:
    losses = turns(generator=change, read=lambda m: getattr(m, "share", 1.0) * KEPT["share"])
    with pytest.raises(ProgramError, match=f"second .test_state_of_turns.py line .*changes {name}"):
        captured(task(loss=losses))
    assert KEPT == {"share": 1.0}


def test_a_part_that_another_loss_thaws_is_refused() -> None:
    ordered = task(loss=turns(generator=thaws))
    ordered.model.critic[0].requires_grad_(False)
    with pytest.raises(ProgramError, match=r"sets requires_grad of critic.0.weight, test_state_of_turns.py line \d+"):
        captured(ordered)


def test_a_tensor_does_not_inherit_the_name_of_a_freed_one() -> None:
    """Python reuses the `id` of a freed object."""
    opened = Opened()
    opened.show([("weight", torch.ones(1))])
    assert {opened.name_of(torch.ones(1)) for _ in range(100)} == {None}


@pytest.mark.parametrize("make", [lambda m, b: torch.randn(8, 2), lambda m, b: b["z"] + m.critic[3].bias])
def test_a_tensor_of_one_loss_that_the_next_reads_is_refused(make: Callable) -> None:
    def first(model: nn.Module, batch) -> torch.Tensor:
        model.kept = make(model, batch)
        return critic_loss(model, batch)

    def second(model: nn.Module, batch) -> torch.Tensor:
        return generator_loss(model, {"z": getattr(model, "kept", batch["z"])})

    with pytest.raises(ProgramError, match=r"first .test_state_of_turns.py line .*changes kept"):
        captured(task(loss=[first, second]))


def frozen_in_turn(model: nn.Module, batch) -> torch.Tensor:
    """As in pix2pix."""
    model.critic.requires_grad_(True)
    model.shown = critic_loss(model, batch)
    return model.shown


def with_frozen_critic(model: nn.Module, batch) -> torch.Tensor:
    model.critic.requires_grad_(False)
    model.other_shown = generator_loss(model, batch)
    return model.other_shown


def cached(loss: Callable) -> Callable:
    """A constant that the first loss keeps."""

    def with_constant(model: nn.Module, batch) -> torch.Tensor:
        if getattr(model, "table", None) is None:
            model.table = torch.arange(1, 4, dtype=batch["x"].dtype).mean()
        model.phase = loss.__name__
        return loss(model, batch) * model.table

    return with_constant


def back(model: nn.Module, batch) -> torch.Tensor:
    model.critic.requires_grad_(False)
    found = generator_loss(model, batch)
    model.critic.requires_grad_(True)
    return found


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    "losses",
    [
        [frozen_in_turn, with_frozen_critic],
        [critic_loss, back],
        [cached(critic_loss), cached(generator_loss)],
        turns(sets_share),
        turns(sets_momentum),
        turns(replaces),
        turns(hooks),
        turns(swaps, swaps),
        turns(sets_share, lambda m: setattr(m, "share", 2.0)),
    ],
    ids=["pix2pix", "back", "cached", "attribute", "momentum", "replaced", "hooks", "swaps", "set by both"],
)
def test_a_turn_reads_the_state_that_others_left(tmp_path: Path, losses: list[Callable]) -> None:
    ordered = task(loss=losses)
    model, text = loop(ordered, losses)
    run = trained(ordered, tmp_path / "run")
    assert run.losses.tolist() == pytest.approx(text, rel=1e-5)
    for name, tensor in run.state_dict().items():
        assert torch.allclose(tensor.double(), model.state_dict()[name].double(), rtol=1e-3, atol=1e-3), name


def test_a_loss_that_its_own_next_batch_sees_changed_is_refused() -> None:
    """Under accumulation a loss follows itself."""

    def first(model: nn.Module, batch) -> torch.Tensor:
        share, model.share = getattr(model, "share", 1.0), 0.25
        return critic_loss(model, batch) * share

    losses = [first, turns(generator=lambda m: setattr(m, "share", 1.0))[1]]
    captured(task(loss=losses))
    with pytest.raises(ProgramError, match=r"first .test_state_of_turns.py line .*changes share"):
        captured(replace(task(loss=losses), accumulate=2))


def test_random_numbers_of_an_earlier_turn_are_no_part_of_a_later_one() -> None:
    """Of the losses, each draws once."""

    def drawing(loss: Callable) -> Callable:
        return lambda model, batch: loss(model, {**batch, "z": torch.randn(8, 2)})

    turns = lower_task(task(loss=[drawing(critic_loss), drawing(generator_loss)]), None, 3).marks.turns
    assert [[len(batch) for batch in turn.draws] for turn in turns] == [[1], [1]]


# ---- one loss ----


class Tuned(nn.Module):
    """`change` is called before, or after, the forward pass."""

    def __init__(self, change: Change, after: bool, frozen: bool) -> None:
        super().__init__()
        self.back, self.head, self.change, self.after = nn.Linear(3, 4), nn.Linear(4, 2), change, after
        self.back.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.after:
            self.change(self)
        y = self.head(torch.tanh(self.back(x)))
        if self.after:
            self.change(self)
        return y


def tuned(change: Change, after: bool, frozen: bool = True, loss: Callable | None = None) -> vgame.Task:
    torch.manual_seed(0)
    model = Tuned(change, after, frozen)
    usual = lambda m, b: F.mse_loss(m(b["x"]), b["y"])  # noqa: E731
    data = {"x": torch.randn(8, 3), "y": torch.randn(8, 2)}
    return vgame.Task(model, loss or usual, optim.AdamW(model.parameters()), data, 4)


@pytest.mark.parametrize(
    ("change", "after", "name"),
    [
        (lambda m: m.back.requires_grad_(True), True, "back.bias, back.weight"),
        (lambda m: m.back.requires_grad_(True), False, "back.bias, back.weight"),
        (lambda m: m.back.weight.requires_grad_(True), True, "back.weight"),
        (lambda m: setattr(m.back.weight, "requires_grad", True), True, "back.weight"),
    ],
)
def test_a_frozen_part_that_the_loss_thaws_is_refused(change: Change, after: bool, name: str) -> None:
    with pytest.raises(ProgramError, match=rf"sets requires_grad of {name}, test_state_of_turns.py line \d+; "):
        captured(tuned(change, after))


def test_a_part_that_the_loss_freezes_after_its_use_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"changes requires_grad of back.bias.*, requires_grad of back.weight"):
        captured(tuned(lambda m: m.back.requires_grad_(False), True, frozen=False))


def test_a_flag_that_the_loss_reads_and_changes_is_refused() -> None:
    def loss(model: nn.Module, batch) -> torch.Tensor:
        share = 1.0 if model.back.bias.requires_grad else 2.0
        model.back.bias.requires_grad_(False)
        return model(batch["x"]).square().mean() * share

    with pytest.raises(ProgramError, match=r"changes requires_grad of back.bias"):
        captured(tuned(nothing, False, frozen=False, loss=loss))


def test_a_part_that_the_loss_freezes_before_its_use_is_not_trained() -> None:
    with pytest.warns(UserWarning, match="2 parameters stay as they are; not trained, as no gradient reaches them"):
        bundle = captured(tuned(lambda m: m.back.requires_grad_(False), False, frozen=False))
    assert bundle.without_gradient == ("back.weight", "back.bias")


def test_an_order_of_turns_with_accumulation_and_an_average_is_captured_as_before(tmp_path: Path) -> None:
    ordered = replace(task(loss=turns(sets_share)), accumulate=2, average=0.9)
    assert vgame.audit(trained(ordered, tmp_path / "run"), device="compatible").match

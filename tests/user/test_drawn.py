"""Functions of torch that vgame composes of others: random numbers, randomized ReLUs, repeats, combinations, limits."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_lines import LINE, classify, compare_with_loop, prepared, refused
from torch import nn
from torch.distributions import Beta, Categorical, Normal
from torch.nn import functional as F

import vgame


def loss_of(then):
    """A loss of the model's result and the inputs."""
    return lambda model, batch: F.cross_entropy(model(then(batch["x"])), batch["y"])


def root(loss, whole: bool = True) -> str:
    """The program root of a job that validation compares with the code; `whole`: entirely, not only in part."""
    with warnings.catch_warnings():
        warnings.simplefilter("error" if whole else "ignore")
        return prepared(loss, validate=20).program.root.hex()


def scaled(deviation: torch.Tensor, mean: torch.Tensor | float) -> torch.Tensor:
    return torch.randn_like(deviation) * deviation + mean


SAME = {
    "numbers": (lambda x: x + torch.normal(0.0, 0.1, (8, 6)), lambda x: x + torch.empty(8, 6).normal_(0.0, 0.1)),
    "size=": (lambda x: x + torch.normal(0.0, 0.1, size=(8, 6)), lambda x: x + torch.empty(8, 6).normal_(0.0, 0.1)),
    "a tensor of means": (lambda x: torch.normal(x, 0.1), lambda x: torch.randn_like(x) * 0.1 + x),
    "a tensor of deviations": (
        lambda x: torch.normal(0.5, x.abs()),
        lambda x: scaled(x.abs(), 0.5),
    ),
    "two tensors": (lambda x: torch.normal(x, x.abs()), lambda x: scaled(x.abs(), x)),
    "Normal.sample": (lambda x: Normal(x, 0.1).sample(), lambda x: torch.randn_like(x) * torch.tensor(0.1) + x),
}


@pytest.mark.parametrize("name", SAME)
def test_normal_is_a_mean_and_a_deviation_times_randn(name: str) -> None:
    normal, composed = SAME[name]
    assert root(loss_of(normal)) == root(loss_of(composed))


def test_normal_gives_no_gradient_to_its_mean() -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return torch.normal(model(batch["x"]), 0.1).mean() + model[2].bias.sum()

    with pytest.warns(UserWarning, match=r"3 parameters stay as they are.* 0\.weight"):
        prepared(loss)


def of_multinomial(model: nn.Module, batch: dict) -> torch.Tensor:
    return classify(model, {**batch, "x": batch["x"][torch.multinomial(torch.ones(8), 8, True)]})


def of_category(model: nn.Module, batch: dict) -> torch.Tensor:
    drawn = Categorical(logits=model(batch["x"]))
    return -drawn.log_prob(drawn.sample()).mean()


def of_gumbel(model: nn.Module, batch: dict) -> torch.Tensor:
    drawn = Categorical(logits=model(batch["x"]))
    p = drawn.probs
    return -drawn.log_prob((p.log() - torch.empty_like(p).exponential_().log()).argmax(-1)).mean()


def of_beta(model: nn.Module, batch: dict) -> torch.Tensor:
    return classify(model, batch) * Beta(0.4, 0.4).sample()


def of_poisson(model: nn.Module, batch: dict) -> torch.Tensor:
    return classify(model, batch) * torch.poisson(torch.ones(8)).mean()


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (of_multinomial, rf"torch\.multinomial \({LINE[2:]}\).* Gumbel's maximum"),
        (of_category, rf"torch\.multinomial \({LINE[2:]}\).* Gumbel's maximum"),
        (of_beta, rf"beta.* distribution \({LINE[2:]}\) cannot be drawn; draw it from uniform"),
        (of_poisson, rf"Poisson.* distribution \({LINE[2:]}\) cannot be drawn"),
    ],
)
def test_another_distribution_is_refused_with_the_line(loss, sentence: str) -> None:
    refused(loss, sentence.replace("test_lines", "test_drawn"))


def test_gumbels_maximum_draws_a_class() -> None:
    assert root(of_gumbel)
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.2]).expand(20_000, 3)
    drawn = (p.log() - torch.empty_like(p).exponential_().log()).argmax(-1)
    assert torch.allclose(torch.bincount(drawn) / 20_000, p[0], atol=0.02)


def test_a_randomized_relu_in_evaluation_is_a_leaky_one() -> None:
    leaky = root(lambda m, b: F.cross_entropy(F.leaky_relu(m(b["x"]), (1 / 8 + 1 / 3) / 2), b["y"]))
    assert root(lambda m, b: F.cross_entropy(F.rrelu(m(b["x"])), b["y"])) == leaky
    module = nn.RReLU().eval()
    assert root(lambda m, b: F.cross_entropy(module(m(b["x"])), b["y"])) == leaky


def test_a_randomized_relu_in_training_draws_its_slopes() -> None:
    drawn = lambda y: torch.where(y > 0, y, y * torch.empty_like(y).uniform_(1 / 8, 1 / 3))  # noqa: E731
    leaky = root(lambda m, b: F.cross_entropy(drawn(m(b["x"])), b["y"]))
    assert root(lambda m, b: F.cross_entropy(F.rrelu(m(b["x"]), training=True), b["y"]), whole=False) == leaky


TRAINED = {
    "repeats": lambda m, b: m(b["x"]).repeat_interleave(torch.tensor([1, 2] * 4), 0).square().mean(),
    "repeats of places": lambda m, b: m(b["x"])[torch.repeat_interleave(torch.tensor([1, 2, 0]))].square().mean(),
    "one repeat": lambda m, b: torch.repeat_interleave(m(b["x"]), torch.tensor([2]), dim=1).square().mean(),
    "flat repeats": lambda m, b: torch.repeat_interleave(m(b["x"]), repeats=torch.tensor(2)).square().mean(),
    "combinations": lambda m, b: torch.combinations(m(b["x"])[:, 0]).prod(1).sin().mean(),
    "with replacement": lambda m, b: torch.combinations(m(b["x"])[:, 0], 3, True).prod(1).sin().mean(),
    "a mixed clamp": lambda m, b: m(b["x"]).clamp(b["x"].min(), 0.2).mean(),
    "a mixed clip": lambda m, b: torch.clip(m(b["x"]), min=-0.1, max=b["x"].max()).sin().mean(),
    "names of arguments": lambda m, b: torch.clamp(input=m(b["x"]), min=-0.1, max=0.1).sin().mean(),
    "a mean slope": lambda m, b: F.rrelu(m(b["x"]), 0.1, 0.4).sin().mean(),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_composed_function_trains_as_torch_does(name: str, tmp_path) -> None:
    loss = TRAINED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = vgame.train(prepared(loss, validate=20), tmp_path / "run")
    compare_with_loop(run, loss)


def test_repeats_of_the_data_are_refused_with_the_line() -> None:
    loss = lambda m, b: m(b["x"]).repeat_interleave(b["y"], 0).square().mean()  # noqa: E731
    refused(loss, r"\(a number of repeats, test_drawn\.py line \d+\).* read no number from a tensor")

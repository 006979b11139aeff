"""A refusal of an operator names the user's line that called it, and a replacement; the replacement works."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vgame

LINE = r", test_lines\.py line \d+"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def classify(model: nn.Module, batch: dict) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def samples() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(16, 6), "y": torch.arange(16) % 3}


def prepared(loss, model: nn.Module | None = None, validate: float | None = None) -> vgame.Bundle:
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = vgame.Task(model, loss, optimizer, samples(), batch=8, order="sequential")
    return vgame.prepare(vgame.Job(task, steps=2, interval=1, seed=0), validate=validate)


def compare_with_loop(run: vgame.Run, loss) -> None:
    """The weights of a job of `prepared` with those of torch's loop."""
    model, data = net(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in (slice(0, 8), slice(8, 16)):
        optimizer.zero_grad()
        loss(model, {name: tensor[rows] for name, tensor in data.items()}).backward()
        optimizer.step()
    torch.testing.assert_close(run.state_dict(), dict(model.state_dict()))


def refused(loss, sentence: str, model: nn.Module | None = None) -> str:
    with pytest.raises(vgame.ProgramError, match=sentence) as error:
        prepared(loss, model)
    assert "\n" not in str(error.value) and len(str(error.value)) < 420, str(error.value)
    return str(error.value)


class Inside(nn.Module):
    """An operator in a method of a module."""

    def __init__(self, then) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(6, 3), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.then(y)


def with_a_hook() -> nn.Module:
    model = net()
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    return model


def clips_weights(model: nn.Module, batch: dict) -> torch.Tensor:
    for p in model.parameters():
        p.data.clamp_(-1, 1)
    return classify(model, batch)


OPERATORS = {
    "fft": (lambda m, b: torch.fft.fft(m(b["x"])).abs().mean(), rf"aten\._fft_r2c.* in loss{LINE}; multiply by const"),
    "linalg": (lambda m, b: torch.linalg.det(m(b["x"])[:3]), rf"_linalg_det.* in loss{LINE}; write it with products"),
    "cummax": (lambda m, b: m(b["x"]).cummax(1).values.mean(), rf"cummax\.default in loss{LINE}; write torch\.where"),
    "lgamma": (lambda m, b: m(b["x"]).exp().lgamma().mean(), rf"lgamma.* in loss{LINE}; for large x write Stirling"),
    "multi_margin": (lambda m, b: F.multi_margin_loss(m(b["x"]), b["y"]), rf"multi_margin.* in loss{LINE}; write it"),
    "half": (lambda m, b: F.cross_entropy(m(b["x"]).half().float(), b["y"]), rf"float16 .* in loss{LINE}; leave fl"),
    "reflection": (
        lambda m, b: F.grid_sample(
            m(b["x"]).view(2, 1, 3, 4), torch.zeros(2, 2, 2, 2), padding_mode="reflection"
        ).sum(),
        rf"grid_sample of .* 'reflection' \({LINE[2:]}\) is not supported",
    ),
    "clipped weights": (clips_weights, rf"writes to its parameters .* \(in \(model\){LINE}\)"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_unsupported_operator_is_named_with_the_users_line(name: str) -> None:
    refused(*OPERATORS[name])


MODELS = {
    "in a module": (lambda: Inside(lambda x: x.lgamma()), rf"lgamma\.default, .* in \(model\){LINE}"),
    "max_norm": (
        lambda: nn.Sequential(nn.Embedding(3, 6, max_norm=1.0), nn.Linear(6, 3)),
        rf"parameters 0\.weight \(in 0{LINE}\); remove max_norm of 0",
    ),
    "orthogonal": (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, 3)),
        rf"linalg_matrix_exp\.default in 0\.parametrizations\.weight\.0{LINE}",
    ),
    "a hook": (with_a_hook, rf"hook on its gradient{LINE}; remove"),
}


@pytest.mark.parametrize("name", MODELS)
def test_unsupported_code_of_a_model_is_named_with_the_users_line(name: str) -> None:
    make, sentence = MODELS[name]
    model = make()
    refused(lambda m, b: F.cross_entropy(m(b["y" if name == "max_norm" else "x"]), b["y"]), sentence, model)


def test_of_a_wrong_type_only_the_first_cause_is_named() -> None:
    text = refused(lambda m, b: F.cross_entropy(m(b["x"]).double() * 2 + 1, b["y"]).float(), f"in loss{LINE}; leave fl")
    assert text.count("aten.") == 1 and "_to_copy" in text


def test_a_line_is_that_of_the_call_and_not_of_one_after_it() -> None:
    def loss(model, batch):
        y = model(batch["x"])
        z = y.exp().lgamma()
        return z.mean() + y.mean()

    line = loss.__code__.co_firstlineno + 2
    assert f"in loss, test_lines.py line {line};" in refused(loss, "lgamma")


def cummax(x: torch.Tensor) -> torch.Tensor:
    later = torch.ones(x.shape[-1], x.shape[-1]).triu(1).bool()
    return torch.where(later, -torch.inf, x.unsqueeze(-2)).amax(-1)


def multi_margin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    terms = (1 - x.gather(1, y[:, None]) + x).clamp(min=0)
    return (terms * (1 - F.one_hot(y, x.shape[1]))).sum(1).mean() / x.shape[1]


REPLACEMENTS = {
    "cummax": (lambda m, b: cummax(m(b["x"])).sin().mean(), lambda m, b: m(b["x"]).cummax(1).values.sin().mean()),
    "multi_margin": (
        lambda m, b: multi_margin(m(b["x"]), b["y"]),
        lambda m, b: F.multi_margin_loss(m(b["x"]), b["y"]),
    ),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_the_replacement_trains_as_the_operator_does(name: str, tmp_path) -> None:
    instead, loss = REPLACEMENTS[name]
    compare_with_loop(vgame.train(prepared(instead), tmp_path / "run"), loss)


# ---- constants of other types ----


class With(nn.Module):
    """A constant attribute."""

    def __init__(self, constant: torch.Tensor | None, then) -> None:
        super().__init__()
        self.first, self.constant, self.then = nn.Linear(6, 3), constant, then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.first(x), self.constant)


def roots(*makes) -> set[str]:
    found = set()
    for make in makes:
        torch.manual_seed(0)
        found.add(prepared(classify, make()).program.root.hex())
    return found


WIDE = np.linspace(0.1, 0.9, 3)


def test_a_float64_constant_made_inside_gives_the_program_of_an_attribute() -> None:
    inside = lambda: With(None, lambda y, _: y * torch.from_numpy(WIDE).float())  # noqa: E731
    attribute = lambda: With(torch.tensor(WIDE), lambda y, c: y * c.float())  # noqa: E731
    assert len(roots(inside, attribute)) == 1


def test_a_real_part_of_a_complex_constant_is_a_constant() -> None:
    table = torch.polar(torch.ones(3), torch.arange(3.0))
    program = prepared(classify, With(table, lambda y, c: y * c.real)).program
    assert any(torch.equal(c, torch.view_as_real(table).flatten()) for c in program.constants)


def test_a_rotary_table_of_complex_numbers_is_refused_with_the_line() -> None:
    def turned(y: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(torch.stack([y, y], -1)) * table).sum(-1)

    model = With(torch.polar(torch.ones(3), torch.arange(3.0)), turned)
    refused(classify, rf"a complex constant .*{LINE}; compute with real and imaginary .* tables of cos and sin", model)


SPARSE = torch.eye(8).to_sparse()
MULTIPLIES = {
    "mm": (SPARSE, lambda y, a: torch.sparse.mm(a, y)),
    "spmm": (SPARSE, lambda y, a: torch.spmm(a, y)),
    "csr": (torch.eye(8).to_sparse_csr(), lambda y, a: a @ y),
    "inside": (None, lambda y, a: torch.eye(8).to_sparse() @ y),
}


@pytest.mark.parametrize("name", MULTIPLIES)
def test_a_sparse_matrix_is_refused_with_the_line(name: str) -> None:
    refused(classify, rf"sparse tensor .*{LINE[2:]}\).* dense tensors only; write ", With(*MULTIPLIES[name]))


@pytest.mark.parametrize("used", [True, False])
def test_a_sparse_buffer_is_refused(used: bool) -> None:
    model = With(None, lambda y, _: torch.sparse.mm(model.adj, y) if used else y)
    model.register_buffer("adj", SPARSE)
    refused(classify, r"adj is sparse \(torch\.sparse_coo\).* write adj\.to_dense\(\) where the model is made", model)


def test_a_sparse_constant_can_become_dense() -> None:
    sparse, dense = (lambda: With(SPARSE, lambda y, a: a.to_dense() @ y)), (lambda: With(SPARSE.to_dense(), turn))
    assert len(roots(sparse, dense)) == 1


def turn(y: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return a @ y


# ---- models and losses that torch itself cannot trace ----


def test_a_lazy_module_is_refused_with_a_remedy() -> None:
    refused(
        classify, r"0\.weight has no shape yet: its module is lazy; call the model", nn.Sequential(nn.LazyLinear(3))
    )


def test_a_model_made_in_inference_mode_is_refused_with_a_remedy() -> None:
    with torch.inference_mode():
        model = net()
    refused(classify, r"0\.weight was made in torch\.inference_mode\(\), .*; make it outside", model)


def test_torch_cond_is_refused_with_its_line() -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return torch.cond(batch["x"].sum() > 0, lambda x: x * 2, lambda x: x * 3, (classify(model, batch),))

    text = refused(loss, rf"a function that torch compiles{LINE} \(torch\.cond, .*torch\.where")
    assert "manual_seed" not in text


def test_one_optimizer_for_two_losses_is_refused_as_such() -> None:
    model = net()
    optimizer, other = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    data = {"x": torch.randn(16, 6), "y": torch.arange(16) % 3}
    task = vgame.Task(model, [classify, classify, classify], [optimizer, optimizer, other], data, batch=8)
    with pytest.raises(vgame.ProgramError, match=r"one optimizer for several losses, .* give it the sum of its losses"):
        vgame.prepare(vgame.Job(task, steps=2, interval=1, seed=0))

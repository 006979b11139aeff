"""Features of libraries' optimizers that torch's own do not have: functions of lists, numbers as tensors, any state."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from optimizer_steps import compare, data, equal_layers, loss, lowered, network
from torch import optim
from torch.optim.adamw import adamw

import vgame
from vgame.errors import ProgramError
from vgame.program.schedule import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")


def stepping(each: Callable, **options) -> Callable:
    """An optimizer class that calls `each(p, state, group)` for every parameter in its step."""

    class Own(optim.Optimizer):
        def __init__(self, params) -> None:
            super().__init__(params, {"lr": 0.1} | options)

        @torch.no_grad()
        def step(self, closure=None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    each(p, self.state[p], group)

    return Own


def checked(make: Callable, **settings) -> vgame.Job:
    """Prepare a job; its validation runs the optimizer as a plain loop does. Any warning is an error."""
    model = network()
    task = vgame.Task(model, loss, make(model.parameters()), data(), 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return vgame.prepare(vgame.Job(task, steps=5, seed=1, **settings))


class Belief(optim.Optimizer):
    """As in AdaBelief of pytorch_optimizer, its branch for lists corrects no average, and is the default."""

    def __init__(self, params, foreach: bool | None = None, **options) -> None:
        super().__init__(params, {"lr": 0.02, "betas": (0.9, 0.99), "foreach": foreach, "step": 0} | options)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            group["step"] += 1
            ps = [p for p in group["params"] if p.grad is not None]
            for p in ps:
                if not self.state[p]:
                    self.state[p].update(mean=torch.zeros_like(p), square=torch.zeros_like(p))
            states = [self.state[p] for p in ps]
            several = self.of_one if group["foreach"] is False else self.of_lists
            several(group, ps, [p.grad for p in ps], [s["mean"] for s in states], [s["square"] for s in states])

    def of_one(self, group, ps, grads, means, squares) -> None:
        first, second = group["betas"]
        rate = group["lr"] / (1 - first ** group["step"])
        for p, g, mean, square in zip(ps, grads, means, squares, strict=True):
            mean.lerp_(g, 1 - first)
            square.mul_(second).addcmul_(g - mean, g - mean, value=1 - second).add_(1e-6)
            p.addcdiv_(mean, (square / (1 - second ** group["step"])).sqrt(), value=-rate)

    def of_lists(self, group, ps, grads, means, squares) -> None:
        first, second = group["betas"]
        torch._foreach_lerp_(means, grads, weight=1 - first)
        rest = torch._foreach_sub(grads, means)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, rest, rest, value=1 - second)
        torch._foreach_add_(squares, 1e-6)
        roots = torch._foreach_sqrt(torch._foreach_div(squares, [1 - second ** group["step"]] * len(ps)))
        torch._foreach_maximum_(roots, 1e-5)
        torch._foreach_addcdiv_(ps, means, roots, [-group["lr"]] * len(ps))


@pytest.mark.parametrize("foreach", [None, True, False])
def test_the_branch_that_a_plain_loop_takes_is_trained(foreach: bool | None) -> None:
    compare(lambda p: Belief(p, foreach))
    checked(lambda p: Belief(p, foreach))


def norms(self, group, ps, grads, means, squares) -> None:
    sizes = torch._foreach_add(torch._foreach_norm(grads, 2), torch._foreach_norm(ps))
    torch._foreach_mul_(grads, torch._foreach_reciprocal(torch._foreach_clamp_min(sizes, 0.5)))
    torch._foreach_copy_(means, torch._foreach_minimum(grads, [0.1] * len(grads)))
    torch._foreach_add_(ps, torch._foreach_pow(means, 3), alpha=-0.3)
    torch._foreach_sub_(ps, torch._foreach_mul(means, torch.tensor(0.1)), alpha=2)
    torch._foreach_zero_(squares)


def torchs(self, group, ps, grads, means, squares) -> None:
    counts = [self.state[p].setdefault("count", torch.tensor(0.0)) for p in ps]
    adamw(
        ps, grads, means, squares, [], counts, foreach=True, fused=False, amsgrad=False, maximize=False,
        beta1=0.9, beta2=0.99, lr=0.02, weight_decay=0.1, eps=1e-8,
    )  # fmt: skip


def several_at_once(self, group, ps, grads, means, squares) -> None:
    torch._foreach_sub_(ps, torch._foreach_mul(grads, torch._foreach_norm(grads[::-1])))


@pytest.mark.parametrize("lists", [norms, torchs])
@pytest.mark.parametrize("build", [network, equal_layers])
def test_functions_of_lists_are_those_of_their_tensors(lists: Callable, build: Callable) -> None:
    compare(type("Own", (Belief,), {"of_lists": lists}), build=build)
    checked(type("Own", (Belief,), {"of_lists": lists}))


def test_lists_that_mix_parameters_are_refused() -> None:
    with pytest.raises(ProgramError, match="computes with several parameters at once"):
        lowered(type("Own", (Belief,), {"of_lists": several_at_once}))


@pytest.mark.parametrize(
    ("kind", "variant"),
    [(optim.NAdam, "foreach"), (optim.AdamW, "fused"), (optim.Adagrad, "differentiable"), (optim.Adam, "capturable")],
)
def test_torchs_variants_are_its_plain_loops_also_within_another_class(kind: type, variant: str) -> None:
    def making(chosen: bool) -> Callable:
        class Halving(kind):
            def step(self, closure=None) -> None:
                assert self.param_groups[0][variant] is chosen
                for p in self.param_groups[0]["params"]:
                    p.grad = p.grad * 0.5
                super().step()
                assert self.param_groups[0][variant] is chosen

        def make(p) -> optim.Optimizer:
            optimizer = Halving(p, lr=0.01)
            optimizer.param_groups[0][variant] = chosen
            return optimizer

        return make

    plain, chosen = (lowered(making(chosen), steps=3).program.root for chosen in (False, True))
    assert plain == chosen
    checked(making(True))


# ---- state of any shape, made in any way ----

MADE = {
    "zeros of a shape": lambda p: torch.zeros(p.shape),
    "zeros on a device": lambda p: torch.zeros(p.size(), device=p.device),
    "zeros of numbers": lambda p: torch.zeros(*p.shape),
    "zeros of another type": lambda p: torch.zeros(p.shape).to(p.grad),
    "ones": lambda p: torch.ones(size=p.shape, dtype=p.dtype),
    "full": lambda p: torch.full(p.shape, 0.25),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_state_may_be_made_in_any_way(make: Callable) -> None:
    def each(p, state, group) -> None:
        if not state:
            state["square"], state["count"] = make(p), torch.zeros(1)
        state["count"] += 1
        state["square"].mul_(0.9).add_(p.grad.square(), alpha=0.1)
        p.sub_(p.grad / (state["square"] / (1 - 0.9 ** state["count"].item())).sqrt().add(1e-2), alpha=0.01)

    compare(stepping(each))
    checked(stepping(each))


def test_averages_of_rows_are_state() -> None:
    def each(p, state, group) -> None:
        if not state:
            shape = p.shape
            state["rows"] = torch.zeros(shape[:-1], device=p.device) if p.dim() > 1 else torch.zeros_like(p)
        squares = p.grad.square()
        state["rows"].mul_(0.9).add_(squares.mean(-1) if p.dim() > 1 else squares, alpha=0.1)
        rows = state["rows"].unsqueeze(-1) if p.dim() > 1 else state["rows"]
        p.sub_(p.grad / rows.sqrt().add(1e-2), alpha=0.01)

    compare(stepping(each))


def test_a_result_may_be_written_to_an_empty_tensor() -> None:
    """As in timm's Muon."""

    def each(p, state, group) -> None:
        rows = p.grad.unsqueeze(-1) if p.dim() == 1 else p.grad
        result = torch.empty((*rows.shape[:-1], rows.size(-2)), device=rows.device, dtype=rows.dtype)
        torch.mm(rows, rows.mT, out=result)
        torch.add(result, result, alpha=-0.5, out=(half := torch.empty_like(result)))
        p.sub_((half @ rows).view_as(p) + 0.1 * p.grad, alpha=0.5)

    compare(stepping(each))


class Scaled(torch.nn.Module):
    """A layer times a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(6, 3), torch.nn.Parameter(torch.tensor(1.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


@pytest.mark.parametrize("write", ["lerp", "addcmul", "add"])
def test_state_without_dimensions_that_is_no_number_is_refused(write: str) -> None:
    def averaged(p, state, group) -> None:
        if not state:
            state["mean"] = torch.zeros(list(p.shape))
        if write == "lerp":
            state["mean"].lerp_(p.grad, 0.1)
        elif write == "addcmul":
            state["mean"].addcmul_(p.grad, p.grad)
        else:
            state["mean"].mul_(0.9).add_(p.grad)
        p.sub_(0.1 * state["mean"])

    model = Scaled()
    task = vgame.Task(model, loss, stepping(averaged)(model.parameters()), data(), 16)
    with pytest.raises(ProgramError, match=r"shape \(\) that it made as a number, test_opt.*torch.zeros_like\(p\)"):
        vgame.prepare(vgame.Job(task, steps=5, seed=1))


def test_a_tensor_kept_elsewhere_is_refused() -> None:
    def each(p, state, group) -> None:
        group.setdefault("own", torch.zeros(p.shape, device=p.device)).mul_(0.5)
        p.sub_(p.grad, alpha=0.1)

    with pytest.raises(ProgramError, match=r"belong to no parameter; keep them in state\[parameter\]"):
        lowered(stepping(each))


# ---- numbers ----


def trust(p, state, group) -> None:
    """The ratio of LARS and LAMB."""
    one, size = torch.tensor(1.0), p.grad.norm()
    ratio = torch.where(size > 1e-8, p.norm() / (size + 1e-8), one.to(p.device))
    p.sub_(p.grad * torch.minimum(ratio, torch.tensor(2.0)), alpha=0.05)


def changing(p, state, group) -> None:
    """Numbers of each step in place of tensors, bounds, and fills, as AdaBound and AdaMod have them."""
    state["n"] = n = state.get("n", 0) + 1
    size = torch.full_like(p, 0.1 / n).div_(p.grad.abs() + 0.1).clamp_(0.02 * (1 - 1 / (n + 1)), 0.5 * (1 + 1 / n))
    p.sub_(size * torch.where(p.grad > 0, torch.tensor(1.0 / n), torch.tensor(-0.5)) * p.grad.abs().clamp(max=1 / n))
    p.sub_(torch.maximum(p.grad.abs(), torch.tensor(0.01 * n)).clamp(0.0, 1.0 + n), alpha=0.001)


def shared(p, state, group) -> None:
    p.sub_(torch.where(p.grad.abs() > 0.01, p.grad, 0.0) * torch.where(p.grad > 0, 1, 2), alpha=0.1)


@pytest.mark.parametrize("each", [trust, changing, shared])
def test_numbers_in_place_of_tensors(each: Callable) -> None:
    compare(stepping(each))
    checked(stepping(each))


def test_chance_in_a_step_is_refused() -> None:
    def each(p, state, group) -> None:
        if not state:
            state["v"] = torch.empty_like(p).normal_(std=0.1)
        p.sub_(state["v"].mul_(0.9).add_(p.grad), alpha=0.1)

    with pytest.raises(ProgramError, match=r"draws random numbers \(aten.normal_.*py line \d+, which a program does"):
        lowered(stepping(each))


class Without(optim.Optimizer):
    """Its rate has another name."""

    def __init__(self, params) -> None:
        super().__init__(params, {"step_size": 0.1})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["step_size"])


def test_groups_without_a_rate() -> None:
    compare(Without)
    checked(Without)
    with pytest.raises(ProgramError, match=r"has no lr \(step_size\), which the job's \[schedule\] sets; remove the"):
        checked(Without, schedule=Schedule(lr="0.1"))


class Lookahead(optim.Optimizer):
    """It does not call Optimizer.__init__, as that of torch_optimizer."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.param_groups, self.count = inner, inner.param_groups, 0
        self.state, self.defaults = defaultdict(dict), inner.defaults

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.inner.step()
        self.count += 1
        for p in self.param_groups[0]["params"]:
            slow = self.state[p].setdefault("slow", p.clone())
            if self.count % 2 == 0:
                p.copy_(slow.lerp_(p, 0.5))


def test_an_optimizer_without_torchs_init() -> None:
    compare(lambda p: Lookahead(optim.SGD(p, lr=0.1)))
    checked(lambda p: Lookahead(optim.SGD(p, lr=0.1)))

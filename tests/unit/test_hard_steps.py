"""Steps slowed down by a client's data: clocks cover the slowest step on any data, and timing it changes no word."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from small_programs import World

from vgame.arithmetic.certified import dot, one_hot_sum, sum_rows
from vgame.arithmetic.functions import Function
from vgame.arithmetic.torch.rounding_test import at_worst
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import JobFile, LogTerms, Terms
from vgame.job.terms import KEPT_OUT, Prices, auditor_shortcomings, safe_terms, trainer_shortcomings
from vgame.program.operators import Contract, Gather, Map, Operator, Ref, RefClass, Variant, identity_access
from vgame.runs.folder import executor_of
from vgame.runs.logged_order import with_log
from vgame.runs.pace import measure
from vgame.runs.prepare import prepare

SIZE, TERMS, HARD = 256, 512, 6  # from step HARD on every product cancels to the last bit


def wide(*shape: int) -> torch.Tensor:
    """Numbers of 120 binary orders of magnitude."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=draw)
    return torch.ldexp(x, torch.randint(-60, 60, shape, generator=draw))


def order() -> Bundle:
    """A scalar of the step chooses the product's second operand: an ordinary one, or one with which all sums cancel."""
    left, right = wide(SIZE, TERMS // 2), wide(SIZE, TERMS // 2)
    easy, hard = torch.cat([right, 0.7 * right], 1), torch.cat([right, right], 1)
    data = torch.cat([left, -left], 1).reshape(-1), torch.stack([easy, hard]).reshape(-1)
    scalars = torch.tensor([[0.0 if step < HARD else 1.0] for step in range(1, 11)])
    choice, chosen = (Ref(RefClass.OPERATOR, i) for i in (0, 1))
    operators: list[Operator] = [
        Map(Function.FTOI, (1,), (identity_access(Ref(RefClass.SCALAR, 0), 1),), True),
        Gather(1, SIZE * TERMS, 2, choice, Ref(RefClass.DATA, 1), 0, False),
        Contract(Variant.DOT, 1, SIZE, SIZE, TERMS, Ref(RefClass.DATA, 0), chosen),
    ]
    world = World(data=data, scalars=scalars)
    return Bundle(world.program(operators), (), data, scalars, 1, 10, 1, 5, "correct", Terms())


def seconds(executor: Executor, step: int) -> float:
    executor.step(step, ())
    begin = time.monotonic()
    executor.step(step, ())
    return time.monotonic() - begin


def test_the_clocks_of_a_job_cover_its_slowest_step() -> None:
    """The first steps do not bound later ones: terms that cover twice their time are refused."""
    bundle = order()
    executor = executor_of(bundle, "cpu")
    pace = measure(bundle, executor)
    slowest = seconds(executor, HARD)
    assert slowest > 5 * seconds(executor, 1), "the order is a hard one"
    assert pace.worst > slowest / 2  # both measured on a busy machine
    longer = replace(bundle, steps=10**7)
    naive = safe_terms(longer, replace(pace, worst=0.0), Prices(censorship=KEPT_OUT))
    assert [text.split()[0] for text in trainer_shortcomings(replace(longer, terms=naive), pace, 1)][
        -1
    ] == "claim_window"
    safe = safe_terms(bundle, pace, Prices())
    assert safe.claim_window >= 10 * pace.worst and safe.slot >= 2 * pace.worst
    order_of_it = replace(bundle, terms=safe)
    assert trainer_shortcomings(order_of_it, pace, 1) == auditor_shortcomings(order_of_it, pace) == []


def test_a_long_step_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = order()
    executor = executor_of(bundle, "cpu")
    whole = measure(bundle, executor)
    monkeypatch.setattr("vgame.runs.pace.MEASURED", 1e-9)
    monkeypatch.setattr("vgame.runs.pace.HARDEST", 4e-9 / whole.step)  # a quarter of the sums, about
    part = measure(bundle, executor)
    assert whole.worst / 4 < part.worst < 4 * whole.worst


def test_the_slowest_path_gives_the_same_words() -> None:
    a, b = torch.randn(1, 40, 70), torch.randn(1, 30, 70)
    a[0, 3, 5], b[0, 2, 1] = torch.inf, torch.nan
    index = torch.randint(-1, 9, (1, 70)).int()
    sums = (lambda: dot(a, b)), (lambda: sum_rows(a)), (lambda: one_hot_sum(index, b, 9))
    plain = [f().view(torch.int32) for f in sums]
    with at_worst(1.0):
        hard = [f().view(torch.int32) for f in sums]
    assert all(torch.equal(x, y) for x, y in zip(plain, hard, strict=True))


@pytest.mark.parametrize("mode", ["correct", "logged"])
def test_measuring_a_step_changes_no_word(mode: str) -> None:
    job = JobFile(
        model="vgame.tasks.digits:task", args={"batch": 8}, seed=1, steps=2, interval=1, schedule={"lr": "0.1"}
    )
    bundle = prepare(job)
    if mode == "logged":
        bundle = with_log(replace(bundle, mode=mode), LogTerms(thresholds="proven"))
    executor = executor_of(bundle, "cpu")
    plain = executor.step(1, bundle.state).state
    with at_worst(1.0):
        hard = executor.step(1, bundle.state).state
    assert all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(plain, hard, strict=True))

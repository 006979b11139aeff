"""A rank that computes wrong bits is found by another rank that repeats its work, and is named."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from rank_groups import LocalGroup, single_root, state_root, together
from test_rank_splits import prepared, rows_task

from vgame.arithmetic.vendor import NATIVE, Vendor, using
from vgame.execute.kernels import Correct
from vgame.program.operators import Contract, Variant
from vgame.ranks.check import checked_step
from vgame.ranks.executor import RankExecutor
from vgame.ranks.health import RankError
from vgame.ranks.part import Summed, part_of
from vgame.ranks.plan import make_plan


class Broken(Correct):
    """A device that flips a bit of most words of the first `times` products of this shape."""

    def __init__(self, shape: tuple[int, ...], times: int) -> None:
        self.shape, self.times = shape, times

    def dot(self, a, b, run=None, bfloat16=False, halves=False):
        out = Correct.dot(self, a, b, bfloat16=bfloat16)
        if self.times and tuple(out.shape) == self.shape:
            self.times -= 1
            out.view(torch.int32).view(-1)[5:] ^= 1 << 20
        return out


@pytest.fixture(scope="module")
def bundle():
    return prepared(rows_task(8))


def errors(bundle, world: int, broken: int | None, times: int = 10**9, vendor: Vendor | None = None) -> list[str]:
    """Every rank's error after two steps that are both computed twice, or its state root. The broken rank has wrong
    products, or a wrong library."""

    def work(group: LocalGroup) -> str:
        with using(vendor) if vendor and group.rank == broken else nullcontext():
            return steps(group)

    def steps(group: LocalGroup) -> str:
        executor = RankExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, "cpu", group)
        if group.rank == broken and vendor is None:
            first = next(op for op in executor.program.operators if isinstance(op, Contract))
            executor.kernels = Broken((first.batch, first.m, first.n), times)
        state = executor.to_device(bundle.state)
        try:
            for step in (1, 2):
                state = checked_step(executor, step, state).state
        except RankError as error:
            return f"{error}{' (said)' if error.reported else ''}"
        return state_root(executor, state)

    return together(world, work)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_that_agree_continue(bundle, world):
    assert errors(bundle, world, None) == [single_root(bundle, 2)] * world


@pytest.mark.parametrize(("world", "broken"), [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_a_flipped_bit_is_named(bundle, world, broken):
    text = errors(bundle, world, broken)
    at = next(i for i, op in enumerate(bundle.program.operators) if isinstance(op, Contract))
    name = re.escape(bundle.program.operator_name(at))
    assert re.match(f"rank {broken} computes other bits: step 1, operator {name}, element 5 of rank", text[0]), text[0]
    assert text[1:] == [f"{text[0]} (said)"] * (world - 1), "one sentence, reported by one rank"


def test_a_fault_that_does_not_recur_is_reported(bundle):
    text = errors(bundle, 3, 1, times=1)
    assert "at step 1 a rank computed other bits once, and not when it was repeated" in text[0]


@pytest.mark.parametrize(("world", "broken"), [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_a_rank_with_wrong_sums_of_its_terms_is_named(world, broken):
    """Its error is the same in both executions, and so are the words; the sums of one part are compared, and the exact
    terms decide."""
    bundle = prepared(rows_task(240))

    def part(rank: int) -> list:
        return part_of(bundle.program, make_plan(bundle.program, world), rank).operators

    last = [op.operator for op in part(broken) if isinstance(op, Summed) and op.operator.variant is Variant.DOT][-1]

    def product(a, b, out):
        NATIVE.product(a, b, out)
        if tuple(out.shape[1:]) == (last.m, last.n) and a.shape[2] == last.k:
            out[0, 0] += 1.0

    text = errors(bundle, world, broken, vendor=replace(NATIVE, product=product, multiply=None))
    assert re.match(
        f"rank {broken} computes other bits: step 1, operator .* whose terms it adds up wrongly", text[0]
    ), text[0]
    assert text[1:] == [f"{text[0]} (said)"] * (world - 1), "one sentence, reported by one rank"

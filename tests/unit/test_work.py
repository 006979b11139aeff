"""A step that would take an auditor days is refused before anything is computed; its work is counted from the
shapes."""

from __future__ import annotations

import os

import pytest
import torch
from small_programs import World

from vgame.arithmetic.functions import Function
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.execute.work import FASTEST, LONGEST_STEP, operations, refuse_too_long
from vgame.program.operators import (
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    Philox,
    ReduceMax,
    Ref,
    RefClass,
    Variant,
    identity_access,
)

DATA = Ref(RefClass.DATA)


def contract(variant: Variant, shared_a: bool = False, shared_b: bool = False) -> Contract:
    return Contract(variant, 2, 3, 5, 7, DATA, DATA, shared_a, shared_b)


COUNTS: list[tuple[Operator, int]] = [
    (contract(Variant.DOT), 2 * 3 * 5 * 7),
    (contract(Variant.DOT, shared_a=True), 2 * 3 * 5 * 7),
    (contract(Variant.DOT, shared_a=True, shared_b=True), 3 * 5 * 7),
    (Contract(Variant.SUM, 1, 6, 1, 7, DATA), 6 * 7),
    (contract(Variant.ONE_HOT), 2 * 5 * (3 + 7)),
    (ReduceMax(3, 100, 10, DATA), 300),
    (ArgMax(3, 100, DATA), 300),
    (Map(Function.NEG, (40,), (identity_access(DATA, 40),), False), 40),
    (Copy((40,), (identity_access(DATA, 40),), False), 40),
    (Gather(4, 5, 6, DATA, DATA, 0, False), 20),
    (Philox(9), 9),
]


@pytest.mark.parametrize(("operator", "count"), COUNTS, ids=lambda x: type(x).__name__)
def test_operations_of_a_step(operator: Operator, count: int) -> None:
    assert operations(World().program([operator, operator])) == 2 * count + 1


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_an_untrusted_job_with_too_much_work_is_refused(monkeypatch: pytest.MonkeyPatch, more: int, fits: bool) -> None:
    """Products of 2^12 rows over one small tensor, more than ten minutes of work for the fastest core: refused before
    an agent, which first makes its executor, accepts or disputes anything."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    count = LONGEST_STEP * FASTEST["cpu"] // 2**36 - 1 + more
    operators = [Contract(Variant.DOT, 1, 2**12, 2**12, 2**12, DATA, DATA)] * count
    world = World(data=(torch.zeros(2**24),))
    if fits:
        refuse_too_long(world.program(operators), torch.device("cpu"))
        return
    with pytest.raises(VgameError, match=r"needs 1\.6e\+14 operations, which take this device at least 10 minutes"):
        Executor(world.program(operators), world.data, world.scalars, world.seed)

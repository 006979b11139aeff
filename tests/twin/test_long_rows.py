"""Elements that read long rows, on the real contracts: their gas is within the terms, and the longest valid one fits a
transaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onchain import StepOnChain, deploy_logged, deploy_referee
from referee_programs import STEP, Small, state, tensor
from test_logged_referee import step_of

from vgame.chain.wallet import GAS_CAP
from vgame.job.terms import gas_of
from vgame.program.modes import MODES
from vgame.program.operators import MAX_BLOCKS, ArgMax, Contract, Operator, ReduceMax, Variant
from vgame.program.validate import longest_run

LENGTH = 8_000  # of a row, or of a block of one
INDEX, TERMS, PRODUCTS = state(0), state(1), state(2)
ROWS: dict[str, Operator] = {
    "dot": Contract(Variant.DOT, 1, 1, 1, MAX_BLOCKS * LENGTH, TERMS, TERMS),
    "sum": Contract(Variant.SUM, 1, 1, 1, MAX_BLOCKS * LENGTH, TERMS),
    "one-hot": Contract(Variant.ONE_HOT, 1, 1, 1, MAX_BLOCKS * LENGTH, INDEX, TERMS),
    "argmax": ArgMax(MAX_BLOCKS, LENGTH, TERMS),
    "maximum": ReduceMax(MAX_BLOCKS, LENGTH, LENGTH, TERMS),
    "integer maximum": ReduceMax(MAX_BLOCKS, LENGTH, LENGTH, INDEX, True),
}


def words(count: int) -> torch.Tensor:
    """Finite ones of every exponent."""
    random = np.random.default_rng(1)
    magnitude = random.integers(0, 0x7F800000, count, dtype=np.uint32)
    return tensor(magnitude | random.integers(0, 2, count, dtype=np.uint32) << np.uint32(31))


def step_with(operator: Operator, mode: str, length: int, folder: Path) -> StepOnChain:
    small = Small([operator], [torch.zeros(MAX_BLOCKS * length, dtype=torch.int32), words(MAX_BLOCKS * length)])
    if mode == "logged":
        return step_of(small, 32, deploy_logged(), folder)
    return StepOnChain(deploy_referee(), small.history(folder), STEP)


def prove(step: StepOnChain) -> int:
    """Gas of the first element or block."""
    if step.blocks(0) > 1:
        step.partial(0, 0, 0)
    else:
        step.decide(0, 0)
    return step.referee.gas


@pytest.mark.parametrize("mode", ["correct", "logged"])
@pytest.mark.parametrize("kind", ROWS)
def test_a_long_row_costs_as_much_as_terms_states(kind: str, mode: str, tmp_path: Path) -> None:
    step = step_with(ROWS[kind], mode, LENGTH, tmp_path)
    assert longest_run(ROWS[kind]) == LENGTH
    used, most = prove(step), gas_of(step.history.bundle)["prove"]
    assert used <= most
    assert kind != "dot" or used > 0.8 * most


def test_the_longest_sum_of_mode_logged_fits_a_transaction(tmp_path: Path) -> None:
    """Half a million gas is left for the game's own part."""
    most = MODES["logged"].most_terms
    assert most is not None
    operator = Contract(Variant.SUM, 1, 1, 1, MAX_BLOCKS * most, TERMS)
    step = step_with(operator, "logged", most, tmp_path)
    assert GAS_CAP * 0.8 < prove(step) * 1.05 + 500_000 < GAS_CAP

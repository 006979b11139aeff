"""Every rule of vgame/program/lowering: what a program computes is what torch means (see traced.py for the tolerance)."""

from __future__ import annotations

import cases_indexing
import cases_layers
import cases_models
import cases_pointwise
import pytest
from traced import Case, compare

pytestmark = pytest.mark.usefixtures("one_thread")
CASES: dict[str, Case] = {
    **cases_pointwise.CASES,
    **cases_indexing.CASES,
    **cases_layers.CASES,
    **cases_models.CASES,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_lowered_step_is_torchs_step(case: Case) -> None:
    compare(case)

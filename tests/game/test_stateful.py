"""Any sequence of calls, legal and illegal, by any account at any time: the contract agrees with the ghost after each
(I1..I6).

A call that an honest agent makes never reverts; calls of other accounts are refused exactly as in the model; a damaged
call causes an error of the interface or has no forbidden effect. An honest trainer or auditor loses by its clock only.
"""

from __future__ import annotations

import pytest
from any_calls import AnyCalls
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)


def play_at_random(calls: int, examples: int, steps: int) -> None:
    """The number of calls in an example is random, so examples are played until they have made `calls` calls in all."""
    before = AnyCalls.made
    while AnyCalls.made - before < calls:
        run_state_machine_as_test(
            AnyCalls,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )


def test_any_calls() -> None:
    play_at_random(calls=500, examples=20, steps=40)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_fifty_thousand_calls() -> None:
    play_at_random(calls=50_000, examples=100, steps=60)

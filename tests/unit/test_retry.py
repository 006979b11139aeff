"""Loops survive an endpoint's errors: any error of one look is reported with its place, and no single reply ends
them."""

from __future__ import annotations

import re
import time

import pytest

from vgame.agents.retry import Deferred, Retry
from vgame.chain.wallet import calldata_floor
from vgame.errors import ChainError, Over, VgameError
from vgame.system.progress import Reporter


def test_an_unexpected_error_is_reported_with_its_place_and_survived(capsys: pytest.CaptureFixture[str]) -> None:
    retry = Retry(Reporter(), 0.0, 0.0)
    for _ in range(3):
        with retry:
            calldata_floor(None)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert out.count("unforeseen") == 1
    assert re.search(r"unforeseen AttributeError at vgame/chain/wallet\.py:\d+: .* \(trying again\)", out)


def test_computation_is_not_retried_for_ever() -> None:
    with pytest.raises(ZeroDivisionError), Retry(Reporter(), 0.0, bears=VgameError):
        1 / 0  # noqa: B018


def test_over_ends_a_loop_at_once() -> None:
    """`Over` is raised only after a final state was read."""
    retry = Retry(Reporter(), 0.0, 0.0)
    with retry:
        raise ChainError("no answer")
    with pytest.raises(Over), retry:
        raise Over("over")


def test_a_failed_duty_is_deferred_without_waiting() -> None:
    retry, begin = Deferred(Reporter(), 30.0), time.monotonic()
    assert retry.due
    with retry:
        raise ChainError("no answer")
    assert not retry.due and time.monotonic() - begin < 10

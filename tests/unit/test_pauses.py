"""Pauses between repetitions of a call."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from vgame.chain import pauses
from vgame.errors import Paused

HOUR = 3_600


@pytest.mark.parametrize("shown", [True, False], ids=["receipts", "no receipt"])
def test_repetitions_of_an_included_call_become_rare(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an hour, one node behind a load balancer shows the receipt, and the others the state before it. Without a
    receipt there is no pause: it is the same transaction, offered again until it is included."""
    now = 0.0
    monkeypatch.setattr(pauses, "time", SimpleNamespace(monotonic=lambda: now))
    chain: Any = SimpleNamespace(is_development=False)
    known, sent = pauses.Pauses(chain), 0
    for _ in range(HOUR):
        for _ in range(3):
            with suppress(Paused), known.sending("a contract", "reveal", 7):
                known.check(2)
                known.begin(2)
                if shown:
                    known.included()
                sent += 1
        now += 1
    assert sent == 3 * HOUR if not shown else 2 <= sent <= 5 + HOUR / pauses.LONGEST

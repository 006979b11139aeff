"""How often a call is sent again."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from vgame.chain import pauses
from vgame.errors import Paused

HOUR = 3_600


@pytest.mark.parametrize("shown", [True, False], ids=["receipts", "no receipt"])
def test_a_call_is_included_again_and_again_with_one_number(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer: one node shows the receipt, the others the state before it, for an hour. Without a receipt it is the
    same transaction, offered again until it is included."""
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

"""Players of a sale at three nodes with one rule broken: (place, name, instead)."""

from __future__ import annotations

from typing import Any

from vgame.agents import order
from vgame.chain.turns import Turns

BROKEN: dict[str, tuple[Any, str, Any]] = {
    "uses the first endpoint alone": (Turns, "next", lambda self: None),
    "begins at the first endpoint alone": (order, "anywhere", lambda chain, question: question()),
}

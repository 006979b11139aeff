"""Players of a sale at three nodes with one rule broken: (place, name, instead)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from vgame.chain.turns import Turns

BROKEN: dict[str, tuple[Any, str, Any]] = {
    "uses the first endpoint alone": (Turns, "next", lambda self: None),
    "lets an endpoint hold a look": (Turns, "timed", lambda self: nullcontext()),
}

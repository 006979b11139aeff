"""The world uses the fast chain and the toy machine of the game's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("game", "twin")]

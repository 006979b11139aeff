"""The same computation by compiled loops and by torch passes."""

from __future__ import annotations

import pytest
from certified_data import FAMILIES

families = pytest.mark.parametrize("family", FAMILIES)

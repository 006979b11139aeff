"""torchvision, also if it was built for another build of torch: its own operators (boxes, regions) are then missing,
which transforms and timm's models do not need. Importing this module skips the test if it is not installed.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

spec = importlib.util.find_spec("torchvision")
if spec is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
try:
    import torchvision
except RuntimeError:
    named = re.findall(r"torchvision::(\w+)", Path(spec.origin).with_name("_meta_registrations.py").read_text())
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in set(named):
        library.define(f"{name}(Tensor x) -> Tensor")
    import torchvision

__all__ = ["torchvision"]

"""The Triton kernels in Triton's interpreter: they run on tensors of the CPU, word for word as they would on a GPU.

Skipped with a message if triton is not installed (`pip install -e '.[gpu]'`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vgame.arithmetic import gate

os.environ.setdefault(gate.INTERPRETER_SWITCH, "1")  # before any kernel is defined
sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))  # its operands serve here too


@pytest.fixture(autouse=True)
def by_kernels() -> Iterator[None]:
    """Within a test the kernels compute, on one thread."""
    if not gate.installed():
        pytest.skip("triton is not installed: the GPU's kernels are NOT tested here (pip install -e '.[gpu]')")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with gate.kernels(True):
        yield
    torch.set_num_threads(before)

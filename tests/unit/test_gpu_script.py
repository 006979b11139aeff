"""What needs a GPU says so in one sentence, and does not fall back to anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_programs import World

from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.execute.graph import Recorded

ROOT = Path(__file__).resolve().parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: `make gpu` does its work here")


@without_gpu
def test_make_gpu_without_one() -> None:
    run = subprocess.run([sys.executable, str(ROOT / "scripts/gpu.py")], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.strip() == "make gpu needs a CUDA GPU, and torch finds none; nothing was checked"


def test_a_cpu_records_no_graph() -> None:
    world = World()
    with pytest.raises(VgameError, match="CUDA"):
        Recorded(Executor(world.program(()), world.data, world.scalars, world.seed))

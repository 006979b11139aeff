"""Commands that need a GPU report it in one sentence, without a fallback."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import forked
import pytest
import torch
from small_programs import World

from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.execute.graph import Recorded

ROOT = Path(__file__).resolve().parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: `make gpu` does its work here")


@without_gpu
def test_make_gpu_without_a_gpu() -> None:
    run = forked.run([sys.executable, str(ROOT / "scripts/gpu.py")], cwd=ROOT)
    assert run.returncode == 1
    assert run.stderr.strip() == "make gpu needs a CUDA GPU, and torch finds none; nothing was checked"


def test_a_failed_part_loses_no_results_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is a process: one ends well, one prints an error, one hangs; parts without time are named."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    gpu = importlib.import_module("gpu")
    script = tmp_path / "parts.py"
    script.write_text(
        "import sys, time\n"
        "print('noise')\n"
        "if 'bad' in sys.argv[2]: sys.exit('CUDA error: an illegal memory access')\n"
        "if 'slow' in sys.argv[2]: time.sleep(99)\n"
        "print('{\"right\": true}')\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "FILE", tmp_path / "gpu.json")
    monkeypatch.setattr(gpu, "machine", dict)
    monkeypatch.setattr(gpu, "CHECKS", dict.fromkeys(["check: bad", "check: good", "check: slow"], (0, None)))
    monkeypatch.setattr(gpu, "REST", {"ratio: good": (0, None), "ratio: long": (99, None)})
    record = gpu.perform("", time.monotonic() + 12)
    error = record["check"]["bad"]["error"]
    assert error.strip() == "CUDA error: an illegal memory access"
    assert record["check"]["good"] == record["ratio"]["good"] == {"right": True}
    assert record["check"]["slow"] == {"error": "out of time"} and record["left out"] == ["ratio: long"]
    assert json.loads((tmp_path / "gpu.json").read_text()) == record


def test_a_cpu_records_no_graph() -> None:
    world = World()
    with pytest.raises(VgameError, match="CUDA"):
        Recorded(Executor(world.program(()), world.data, world.scalars, world.seed))

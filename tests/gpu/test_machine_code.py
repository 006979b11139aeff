"""The compiled kernels for a Hopper GPU: no contraction, no flushing, no approximations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from vgame.arithmetic import gate

ROOT = Path(__file__).resolve().parents[2]


def compiled(*options: str) -> dict[str, list[str]]:
    """Offending lines of every kernel, from a process that does not interpret."""
    environment = os.environ | {gate.INTERPRETER_SWITCH: "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("machine_code.py")), *options]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def test_no_instruction_that_could_change_a_bit() -> None:
    found = compiled()
    assert len(found) > 20
    assert not any(found.values()), found


def test_the_search_would_find_contraction() -> None:
    """Red twin: with fusion allowed the elementary functions contain fused multiply-adds."""
    found = compiled("--fused")
    assert any("fma" in line for lines in found.values() for line in lines)

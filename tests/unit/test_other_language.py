"""docs/formats.md in JavaScript (tests/vectors/check.mjs): it agrees with every vector, and reports a wrong one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: the check in JavaScript does not run")


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(NODE), str(folder / "check.mjs")], capture_output=True, text=True, timeout=120)


def test_another_language_agrees() -> None:
    done = check(VECTORS)
    assert done.returncode == 0 and done.stdout == "282 vectors agree\n", done.stderr


def wrong_leaf(trees: Any) -> None:
    trees["tensors"][3]["root"] = trees["tensors"][2]["root"]


def wrong_sum(sums: Any) -> None:
    sums[0]["word"] = f"{int(sums[0]['word'], 16) ^ 1:08x}"


def wrong_shuffle(random: Any) -> None:
    random["shuffle"][-1]["out"][0] ^= 1


def wrong_function(functions: Any) -> None:
    functions["MUL"]["bfloat16"] = functions["ADD"]["bfloat16"]


@pytest.mark.parametrize(
    ("name", "change"),
    [("trees", wrong_leaf), ("sums", wrong_sum), ("random", wrong_shuffle), ("functions", wrong_function)],
)
def test_a_wrong_vector_is_reported(name: str, change: Callable[[Any], None], tmp_path: Path) -> None:
    shutil.copytree(VECTORS, tmp_path / "vectors")
    vectors = json.loads((VECTORS / f"{name}.json").read_text())
    change(vectors)
    (tmp_path / "vectors" / f"{name}.json").write_text(json.dumps(vectors))
    done = check(tmp_path / "vectors")
    assert done.returncode == 1 and "the vectors say" in done.stderr

"""A third party's implementation of the pages on formats gives vgame's results: the golden program, and steps under
autocast."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import third_party as other
import torch
from torch import nn

import vgame

ROOT = Path(__file__).resolve().parents[2]


def words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def test_the_third_partys_code_imports_neither_vgame_nor_torch() -> None:
    tree = ast.parse(Path(other.__file__).read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any(name.split(".")[0] in ("vgame", "torch") for name in names)


def test_the_golden_program() -> None:
    """Every kind and every function, some with bfloat16 outputs; two steps."""
    golden = json.loads((ROOT / "tests/vectors/golden.json").read_text())
    file, state, data = bytes.fromhex(golden["program_file"]), *([*map(words, golden[n])] for n in ("state", "data"))
    for number, expected in enumerate(golden["steps"], 1):
        step = other.Step(file, state, data, words(golden["scalars"]), golden["seed"], number)
        assert [other.tensor_root(x).hex() for x in step.outputs] == expected["operators"]
        state = step.state
        assert other.state_root(state).hex() == expected["state_root"]


@pytest.mark.parametrize("name", list(json.loads((ROOT / "tests/vectors/functions.json").read_text())))
def test_functions_at_eight_bits(name: str) -> None:
    found = json.loads((ROOT / "tests/vectors/functions.json").read_text())[name]
    for precision, bits in (("results", 24), ("bfloat16", 8)):
        tuples = np.stack(np.meshgrid(*map(words, found["operands"]), indexing="ij"), -1).reshape(
            -1, len(found["operands"])
        )
        if precision in found:
            assert [other.function(int(found["code"]), [*map(int, t)], bits) for t in tuples] == [
                *words(found[precision])
            ]


class Net(nn.Module):
    """Products, a bias, a norm, an activation, attention-like products, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        return self.last(nn.functional.dropout(h + torch.softmax(h @ h.T, -1) @ h, 0.2))


def autocast(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_steps_under_autocast(tmp_path: Path) -> None:
    """A bundle's files in; the state roots of a run of it."""
    torch.manual_seed(0)
    model, data = Net(), {"x": torch.randn(9, 6), "y": torch.arange(9) % 3}
    task = vgame.Task(model, autocast, torch.optim.AdamW(model.parameters(), lr=1.0), data, batch=4)
    bundle = vgame.prepare(vgame.Job(task, steps=2, interval=1, seed=3, schedule=vgame.Constant(lr="0.01")))
    vgame.train(bundle, tmp_path / "run")
    folder, roots = tmp_path / "run/job", (tmp_path / "run/roots.bin").read_bytes()
    state, data, (scalars,) = (other.tensors_of(folder / f"{n}.safetensors") for n in ("initial", "data", "scalars"))
    narrow = 0
    for number in (1, 2):
        step = other.Step((folder / "program.vgp").read_bytes(), state, data, scalars, 3, number)
        state = step.state
        assert other.state_root(state) == roots[32 * number - 32 : 32 * number]
        narrow += sum(record[2] & other.BFLOAT16 != 0 for record in step.records)
    assert narrow > 40

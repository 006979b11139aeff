"""Functions that work without the packages of the extras `chain` and `demo`, and the errors of those that need them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits

import vgame
from vgame.errors import MissingPackage
from vgame.system.version import sources
from vgame.tasks import digits

ROOT = Path(__file__).resolve().parents[2]
MISSING = ("web3", "eth", "eth_tester", "eth_account", "eth_keyfile", "starlette", "uvicorn", "sklearn")
TRAINS = """
import torch, vgame

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
data = {"x": torch.randn(24, 4), "y": torch.arange(24) % 3}
loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])

def run(name, seed):
    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=8)
    job = vgame.Job(task, steps=4, interval=2, seed=seed, schedule=vgame.Constant(lr="0.1"))
    return vgame.train(vgame.prepare(job), name)

one, other = run("one", 1), run("other", 2)
assert vgame.audit(one).match
assert vgame.locate("one", "one") is None
model.load_state_dict(one.state_dict())
try:
    vgame.Game
except vgame.MissingPackage as error:
    print(error)
"""
COMMAND = "import sys; from vgame.cli import main; sys.argv = ['vgame', *{!r}]; main()"


def child(code: str, folder: Path, missing: Sequence[str] = MISSING) -> subprocess.CompletedProcess:
    """Python with installed packages that cannot be imported: torch itself searches for some of them."""
    for name in missing:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_training_and_auditing_need_neither_a_chain_nor_the_demo(tmp_path: Path) -> None:
    done = child(TRAINS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(
        "is not installed; this part of vgame needs it: in the clone of vgame, pip install -e '.[chain]'"
    )


def test_a_command_names_the_missing_package(tmp_path: Path) -> None:
    for words, extra in ((["chain"], "chain"), (["demo"], "chain")):
        done = child(COMMAND.format(words), tmp_path)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert f"pip install -e '.[{extra}]'" in done.stderr, done.stderr


@pytest.mark.parametrize("package", ["accelerate", "transformers"])
def test_the_adapter_of_transformers_names_the_missing_package(tmp_path: Path, package: str) -> None:
    done = child("import vgame.hf", tmp_path, [package])
    named = "accelerate" if package == "accelerate" or find_spec("accelerate") is None else "transformers"
    assert f"the package {named} is not installed" in done.stderr, done.stderr
    assert "pip install -e '.[hf]'" in done.stderr and "the above exception" not in done.stderr


def test_the_tests_packages_are_installed_with_them() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (own,) = [d for d in extras["dev"] if d.startswith("verified-training[")]
    assert {"data", "hf", "ray", "remote", "tensorboard"} <= set(own.partition("[")[2].rstrip("]").split(","))
    assert {name.split(">")[0] for name in extras["hf"]} == {"transformers", "accelerate"}


def test_the_version_is_that_of_these_sources(tmp_path: Path) -> None:
    done = child(COMMAND.format(["--version"]), tmp_path)
    assert (done.returncode, done.stdout) == (0, f"vgame {vgame.__version__} ({sources()[-9:-1]})\n"), done.stderr


def test_digits_name_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (None, SimpleNamespace(submodule_search_locations=["nowhere"])):
        monkeypatch.setattr(digits, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(MissingPackage, match=r"pip install -e '\.\[demo\]'"):
            digits.images()


def test_digits_are_those_that_scikit_learn_loads() -> None:
    found, (pixels, labels) = load_digits(), digits.images()
    order = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pixels[:, 0] * 16, torch.from_numpy(found.images)[order].float())
    assert torch.equal(labels, torch.from_numpy(found.target)[order])


def test_the_package_needs_no_chain() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [
        d for d in project["dependencies"] if d.startswith(("web3", "eth-tester", "py-evm", "scikit", "jinja2"))
    ]
    assert {"chain", "demo", "hf", "zoo", "gpu"} <= set(project["optional-dependencies"])

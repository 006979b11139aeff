"""Problems of a first hour: averaged weights, orders that no trainer accepts, a torchvision of another build."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import forked
import pytest
import torch
from safetensors.torch import load_file

import vgame
from vgame.errors import VgameError
from vgame.execute import doctor
from vgame.job.bundle import Bundle
from vgame.job.file import read_job_file
from vgame.job.shown import curve
from vgame.job.terms import Pace, refused_by_all, trainer_shortcomings
from vgame.job.weights import read_weights
from vgame.runs.prepare import prepare

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def digits() -> Bundle:
    return prepare(read_job_file(ROOT / "vgame" / "tasks" / "digits.toml"))


def trained(folder: Path, average: float | None) -> vgame.Run:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(24, 4), "y": torch.arange(24) % 3}

    def loss(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"])

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=8, average=average)
    job = vgame.Job(task, steps=4, interval=2, seed=1, schedule=vgame.Constant(lr="0.1"))
    return vgame.train(vgame.prepare(job), str(folder))


def test_averaged_weights_are_exported_as_the_module_loads_them(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 0.9)
    run.export(tmp_path / "ema.safetensors", average=True)
    found, every = load_file(tmp_path / "ema.safetensors"), run.state_dict(slots=True)
    assert set(found) == {"weight", "bias"}
    assert all(torch.equal(found[n], every[f"average.{n}"]) and not torch.equal(found[n], every[n]) for n in found)
    assert {k: v.tolist() for k, v in run.state_dict(average=True).items()} == {k: v.tolist() for k, v in found.items()}
    assert read_weights(tmp_path / "ema.safetensors")  # its header names the kind of tensors


def cli(*words: str) -> None:
    done = forked.run([sys.executable, "-m", "vgame.cli", *words], cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_card_names_roots_order_and_audit(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 0.9)
    cli("export", str(tmp_path / "run"), "--out", str(tmp_path / "ema.safetensors"), "--average", "--step", "2",
        "--card", str(tmp_path / "README.md"))  # fmt: skip
    text, digest = (tmp_path / "README.md").read_text(), sha256((tmp_path / "ema.safetensors").read_bytes()).hexdigest()
    assert text.startswith("---\nlibrary_name: pytorch\ntags:\n- vgame\n- verified-training\n---\n\n# ema\n")
    expected = (run.root, digest, run.bundle.identity.hex(), run.bundle.data_root.hex(), "a checkpoint every 2")
    assert all(word in text for word in expected) and "not validated: " in text
    again = re.search(r"^    vgame (export RUN .*)$", text, re.MULTILINE)[1].replace("RUN", str(tmp_path / "run"))
    cli(*again.replace("again.safetensors", str(tmp_path / "again.safetensors")).split())
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "ema.safetensors").read_bytes()


def test_markup_in_a_name_is_escaped(digits: Bundle, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", None)
    run.export(tmp_path / "w.safetensors")
    run._store.bundle = replace(run.bundle, name="<b>|[x](y)")
    assert r"# \<b\>\|\[x\](y)" in run.card(tmp_path / "w.safetensors")
    assert "<b>" not in run._repr_html_() and "&lt;b&gt;|[x](y)" in run._repr_html_()


def test_a_notebook_shows_curve_root_and_validation(
    digits: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VGAME_VALIDATE", "5")
    run = trained(tmp_path / "run", None)
    page = ElementTree.fromstring(f"<div>{run._repr_html_()}</div>")
    cells = {row[0].text: row[1].text for row in page.iter("tr")}
    assert (cells["run root"], cells["step"]) == (run.root, "4 of 4") and cells["checked"].startswith("validated: ")
    points = page.find("svg/polyline").get("points").split()
    assert len(points) == len(run.losses) == 4
    heights = [float(point.split(",")[1]) for point in points]
    assert sorted(range(4), key=lambda i: -heights[i]) == sorted(range(4), key=lambda i: run.losses[i])
    assert digits.program.root.hex() in digits._repr_html_() and "svg" not in digits._repr_html_()


@pytest.mark.parametrize(
    "losses, points", [([], 0), ([1.0], 0), ([1.0, 1.0], 2), ([2.0, math.nan, 1.0], 2), ([1.0] * 1001, 334)]
)
def test_a_curve_accepts_all_values_of_a_run(losses: list[float], points: int) -> None:
    drawn = re.search('points="(.*?)"', curve(losses))
    assert (len(drawn[1].split()) if drawn else 0) == points and "nan" not in curve(losses)


def test_objects_print_as_one_line_without_their_data(digits: Bundle) -> None:
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(2400, 4), "y": torch.arange(2400) % 3}
    task = vgame.Task(model, lambda m, b: m(b["x"]).sum(), torch.optim.SGD(model.parameters(), lr=1.0), data, batch=8)
    assert repr(task) == "Task(Linear, SGD, 2400 samples of x, y)"
    job = vgame.Job(task, steps=4, interval=2, seed=1)
    assert "tensor(" not in repr(job) and "\n" not in repr(job)
    assert repr(digits).startswith("Bundle(240 steps, 126 operators, ") and len(repr(digits)) < 120


def test_a_job_and_its_bundle_give_the_same_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(24, 4), "y": torch.arange(24) % 3}

    def loss(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"])

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, batch=8)
    job = vgame.Job(task, steps=4, interval=2, seed=1)
    prepared = vgame.train(vgame.prepare(job), tmp_path / "prepared")
    run = vgame.train(job, tmp_path / "job")
    assert run.root == prepared.root and "\n" not in repr(run)


@pytest.mark.parametrize("steps, interval", [(40, 4), (45, 4), (9, 1), (1, 1)])
def test_a_job_needs_neither_interval_nor_seed(tmp_path: Path, steps: int, interval: int) -> None:
    (tmp_path / "job.toml").write_text(f'model = "mine:task"\nsteps = {steps}\n')
    read = read_job_file(tmp_path / "job.toml")
    assert (read.seed, read.interval) == (0, interval)
    model = torch.nn.Linear(4, 1)
    task = vgame.Task(
        model, lambda m, b: m(b["x"]).mean(), torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.ones(8, 4)}, 4
    )
    bundle = vgame.prepare(vgame.Job(task, steps=steps), validate=0)
    assert (bundle.seed, bundle.interval) == (0, interval)


@pytest.mark.parametrize(
    "line, expected",
    [("", "`steps` is missing"), ("steps = 0", "`steps` = 0; it should be greater than or equal to 1"),
     ('steps = "9"', "`steps` = '9'; it should be a valid integer"),
     ("steps = 9\ninterval = 0", "`interval` = 0; it should be greater than or equal to 1")],
)  # fmt: skip
def test_an_error_of_steps_is_the_only_one_reported(tmp_path: Path, line: str, expected: str) -> None:
    (tmp_path / "job.toml").write_text(f'model = "mine:task"\n{line}\n')
    with pytest.raises(VgameError) as error:
        read_job_file(tmp_path / "job.toml")
    assert str(error.value).endswith(f"job.toml: {expected}")


def test_an_average_that_the_run_does_not_have_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(VgameError, match="keeps no average"):
        trained(tmp_path / "run", None).export(tmp_path / "ema.safetensors", average=True)
    assert not (tmp_path / "ema.safetensors").exists()


@pytest.mark.parametrize(
    "terms, word",
    [({}, ""), ({"slot": 1, "trainer_budget": 60}, "trainer_budget"), ({"claim_window": 60}, "claim_window"),
     ({"challenge_window": 2**31}, "challenge_window"), ({"diverged_pay": 1}, "diverged_pay")],
)  # fmt: skip
def test_orders_that_every_trainer_refuses_give_a_warning(digits: Bundle, terms: dict[str, int], word: str) -> None:
    bundle = replace(digits, terms=digits.terms.model_copy(update=terms))
    refusal = refused_by_all(bundle)
    assert bool(refusal) == bool(word) and word in refusal
    assert bool(trainer_shortcomings(bundle, Pace(1e-6, 1e-6), 0)) == bool(refusal)


def test_the_price_of_gas_counts_when_it_is_known(digits: Bundle) -> None:
    assert not refused_by_all(digits) and "auditor_bond" in refused_by_all(digits, 10**15)


@pytest.mark.parametrize(
    "versions, ok",
    [({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, True),
     ({"torch": "2.13.0+cpu", "torchvision": "0.28.0"}, False),
     ({"torch": "2.13.0", "torchvision": "0.28.0"}, True),
     ({"torch": "2.13.0+cu130", "torchvision": "0.28.0+cpu"}, False)],
)  # fmt: skip
def test_a_torchvision_of_another_build_is_reported(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], ok: bool
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise doctor.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(doctor, "version", version)
    (found,) = doctor._other_builds()
    assert found.ok is ok and ("pip install" in found.detail) is not ok


def test_the_deliverys_job_file_is_complete(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "delivery.md").read_text(), re.DOTALL)
    (tmp_path / "job.toml").write_text(text)
    bundle = prepare(read_job_file(tmp_path / "job.toml"))
    assert bundle.terms.confirm_window == tomllib.loads(text)["terms"]["confirm_window"] > 0
    assert bundle.name == "digits, delivered" and not refused_by_all(bundle)

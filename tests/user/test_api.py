"""The public names, used as the tutorial uses them: a task of ordinary torch objects in the user's own script."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vgame
from vgame.job.bundle import ordered_differences
from vgame.job.state_keys import keys_root, load_keys
from vgame.runs.logged_history import LoggedHistory


class Net(nn.Module):
    """Tied weights, an integer buffer, and one that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scratch", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.first(x)))) + self.scratch


def loss(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def job(**options) -> vgame.Job:
    torch.manual_seed(1)
    model = Net()
    x = torch.randn(32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    task = vgame.Task(model, loss, optimizer, {"x": x, "y": x.argmax(1)}, batch=8)
    fields = {"steps": 7, "interval": 2, "seed": 3, "schedule": vgame.Cosine(lr="0.1", warmup=2)}
    return vgame.Job(task, **(fields | options))


@pytest.fixture(scope="module")
def bundle() -> vgame.Bundle:
    return vgame.prepare(job())


@pytest.fixture(scope="module")
def run(bundle: vgame.Bundle, tmp_path_factory: pytest.TempPathFactory) -> vgame.Run:
    return vgame.train(bundle, tmp_path_factory.mktemp("runs") / "run")


def test_importing_loads_nothing() -> None:
    code = (
        "import time; begin = time.process_time(); import vgame; dir(vgame); spent = time.process_time() - begin; "
        "import sys; assert not {'torch', 'numba', 'web3', 'numpy'} & set(sys.modules); assert spent < 0.3, spent"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exactly_the_public_names_are_exported() -> None:
    assert all(getattr(vgame, name) is not None for name in vgame.__all__)
    assert vgame.__version__[0].isdigit()
    assert dir(vgame) == sorted(vgame.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'; public are"):
        _ = vgame.nothing


def test_a_task_in_ones_own_script_is_trained_and_audited(run: vgame.Run) -> None:
    assert run.done and run.step == 7 and run.divergence is None and run.losses.shape == (7,)
    assert vgame.Run.open(run.folder).root == run.root
    result = vgame.audit(run)
    assert isinstance(result, vgame.AuditResult) and result.match and result.mine == result.theirs == run.root
    assert result.checked == (1, 2, 3, 4) and result.complete and result.differs is None
    assert vgame.audit(run, segments=(2, 3)).checked == (2, 3)
    assert vgame.audit(run, sample=0.5, seed=1).match


def test_a_state_loads_into_the_module(run: vgame.Run) -> None:
    state, model = run.state_dict(), Net()
    assert set(state) == set(model.state_dict())
    assert {k: t.dtype for k, t in state.items()} == {k: t.dtype for k, t in model.state_dict().items()}
    model.load_state_dict(state)
    assert model.norm.num_batches_tracked == 7 and torch.equal(state["last.weight"], state["first.weight"])
    slots = set(run.state_dict(slots=True)) - set(state)
    assert "scratch" in slots and not any(name.endswith("last.weight") for name in slots)
    torch.testing.assert_close(run.state_dict(0)["first.weight"], job().task.model.first.weight.detach())


def test_a_state_between_checkpoints_is_executed_again(run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path) -> None:
    sparse = vgame.train(bundle, tmp_path, keep=9)
    for step in (2, 3, 7):
        a, b = run.state_dict(step), sparse.state_dict(step)
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert a["norm.num_batches_tracked"] == step
    with pytest.raises(vgame.VgameError, match="from 0 to 7"):
        run.state_dict(8)


def test_keys_survive_a_bundle_on_disk_and_a_wrong_one_is_refused(bundle: vgame.Bundle, tmp_path: Path) -> None:
    bundle.save(tmp_path)
    assert vgame.Bundle.load(tmp_path).keys == bundle.keys
    path = tmp_path / "module.json"
    swapped = path.read_text().replace('"first.bias": [\n   "first.bias"', '"first.bias": [\n   "last.bias"')
    assert swapped != path.read_text()
    path.write_text(swapped)
    with pytest.raises(vgame.BundleError, match=r"the key 'first.bias' is 'last.bias'"):
        vgame.Bundle.load(tmp_path)


@pytest.mark.parametrize("old, new", [("int64", "float32"), ("float32", "int8")])
def test_a_type_that_changes_the_words_is_refused(bundle: vgame.Bundle, tmp_path: Path, old: str, new: str) -> None:
    bundle.save(tmp_path)
    path = tmp_path / "module.json"
    path.write_text(path.read_text().replace(f'"{old}"', f'"{new}"', 1))
    with pytest.raises(vgame.BundleError, match=f"is of '{new}', but .* holds"):
        vgame.Bundle.load(tmp_path)


def test_an_audit_compares_the_keys_with_the_order(run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path) -> None:
    """Another tensor under a tied key: spec.json shows it, and if that is altered too, the client's order does."""
    bundle.save(tmp_path / "order")
    other = vgame.train(bundle, tmp_path / "run")
    assert vgame.audit(other, order=tmp_path / "order", segments=(1, 1)).match
    path, spec = other.folder / "job" / "module.json", other.folder / "job" / "spec.json"
    tied = '"last.weight": [\n   "first.weight"'
    assert tied in path.read_text()
    path.write_text(path.read_text().replace(tied, '"last.weight": [\n   "norm.weight"'))
    with pytest.raises(vgame.BundleError, match="the keys root of the files is"):
        vgame.audit(other, segments=(1, 1))
    root = keys_root(*load_keys(path.parent, bundle.program.labels.state)).hex()
    spec.write_text(re.sub(r'(?<="keys_root": ")\w+', root, spec.read_text()))
    assert vgame.audit(other, segments=(1, 1)).match, "no order is given"
    with pytest.raises(vgame.StoreError, match="other names"):
        vgame.audit(other, order=tmp_path / "order", segments=(1, 1))


def test_the_steps_before_the_first_are_those_of_the_order(
    run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path
) -> None:
    bundle.save(tmp_path / "order")
    shutil.copytree(run.folder, tmp_path / "run")
    path, spec = tmp_path / "run" / "job" / "module.json", tmp_path / "run" / "job" / "spec.json"
    output = path.read_text()
    path.write_text(output.replace('"before": 0', '"before": 3'))
    with pytest.raises(vgame.BundleError, match="the keys root of the files is"):
        vgame.audit(tmp_path / "run", segments=(1, 1))
    root = keys_root(*load_keys(path.parent, bundle.program.labels.state)).hex()
    spec.write_text(re.sub(r'(?<="keys_root": ")\w+', root, spec.read_text()))
    with pytest.raises(vgame.StoreError, match="other steps before the first"):
        vgame.audit(tmp_path / "run", order=tmp_path / "order", segments=(1, 1))


@pytest.mark.parametrize("keys", ["all", "none"])
def test_a_bundle_without_its_keys_is_refused(bundle: vgame.Bundle, tmp_path: Path, keys: str) -> None:
    """Also if its spec.json states no root of them, or names none."""
    bundle.save(tmp_path)
    order, spec = vgame.Bundle.load(tmp_path), json.loads((tmp_path / "spec.json").read_text())
    spec.pop("keys_root")
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    if keys == "all":
        (tmp_path / "module.json").unlink()
        with pytest.raises(vgame.BundleError, match=r"module.json cannot be read: No such file"):
            vgame.Bundle.load(tmp_path)
    else:
        (tmp_path / "module.json").write_text('{"keys": {}, "before": 0}')
        with pytest.raises(vgame.BundleError, match=r"the keys root of the files is .*, spec.json orders None"):
            vgame.Bundle.load(tmp_path)
    assert ordered_differences(order, replace(order, keys={})) == ["names"]


def test_another_device_runs_in_a_process_of_its_own(
    run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, seen = dict(os.environ), []
    with caplog.at_level(logging.INFO, "vgame"):
        other = vgame.train(bundle, tmp_path / "run", device="compatible", progress=lambda *output: seen.append(output))
    assert other.root == run.root and "a process of its own" in caplog.text and dict(os.environ) == before
    assert seen[-1][:3] == ("training", 7, 7)
    assert vgame.audit(run, device="compatible", segments=(1, 2)).checked == (1, 2)


@pytest.mark.wide
def test_a_difference_on_another_device_is_reported(run: vgame.Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "other")
    other = vgame.Run.open(tmp_path / "other")
    assert vgame.locate(run, other, device="compatible") is None
    with pytest.raises(vgame.VgameError, match="1 <= I <= J <= 4"):
        vgame.audit(run, device="compatible", segments=(3, 9))


def test_a_changed_byte_is_found(run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path) -> None:
    other = vgame.train(bundle, tmp_path / "other")
    path = sorted((other.folder / "states").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = vgame.audit(other)
    assert not result.match and result.differs == 4
    found = vgame.locate(run, other)
    assert isinstance(found, vgame.Difference) and found.step == 7 and found.first != found.second


def test_cancelled_training_is_resumed(run: vgame.Run, bundle: vgame.Bundle, tmp_path: Path) -> None:
    seen = []
    with pytest.raises(vgame.Cancelled, match="training was cancelled at 5 of 7"):
        vgame.train(bundle, tmp_path, progress=lambda *output: seen.append(output), cancel=lambda: seen[-1][1] == 5)
    assert vgame.Run.open(tmp_path).step == 4
    assert vgame.train(bundle, tmp_path).root == run.root


def test_a_diverging_run_reports_the_place(tmp_path: Path) -> None:
    run = vgame.train(vgame.prepare(job(schedule=vgame.Constant(lr="1e38"))), tmp_path)
    assert isinstance(run.divergence, vgame.Divergence) and run.divergence.step <= 7 and run.done


@pytest.mark.parametrize(
    "schedule", [None, vgame.Linear(lr="0.1", final="0.01"), vgame.StepDecay(lr="0.1", every=3, factor="0.5")]
)
def test_schedules_and_terms_are_in_the_bundle(schedule) -> None:
    bundle = vgame.prepare(job(schedule=schedule, terms=vgame.Terms(slot=60)))
    assert bundle.terms.slot == 60 and len(bundle.scalars) == 7


def test_a_job_file_is_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('model = "vgame.tasks.digits:task"\nseed = 1\nsteps = 2\ninterval = 1\n[schedule]\nlr = "0.1"\n')
    assert vgame.prepare(vgame.Job.from_toml(path)).steps == 2
    with pytest.raises(vgame.JobFileError, match="cannot be read"):
        vgame.Job.from_toml(tmp_path / "none.toml")


def test_mode_logged_has_terms_of_its_own(tmp_path: Path) -> None:
    logged = vgame.LogTerms(bits=32, thresholds="proven")
    run = vgame.train(vgame.prepare(job(mode="logged", log=logged)), tmp_path, keep=9)
    assert vgame.audit(run, device="reversed").match and run.state_dict(3)["norm.num_batches_tracked"] == 3


def test_errors_are_one_tree_and_name_the_problem(run: vgame.Run, tmp_path: Path) -> None:
    with pytest.raises(vgame.JobFileError, match=r"`steps` = 0; .*; `schedule.*` .*write lr = "):
        vgame.prepare(job(steps=0, schedule=vgame.Constant(lr=0.1)))
    with pytest.raises(vgame.StoreError, match="is not the folder of a run"):
        vgame.Run.open(tmp_path)
    with pytest.raises(vgame.StoreError, match="holds another job"):
        vgame.train(vgame.prepare(job(seed=4)), run.folder)
    names = ("Cancelled", "ChainError", "ContractError", "DataError", "ProgramError", "UnsupportedOperators")
    assert all(issubclass(getattr(vgame, name), vgame.VgameError) for name in names)


def test_a_game_is_played_in_python(
    bundle: vgame.Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.save(tmp_path / "bundle")
    with vgame.embedded_chain() as node, caplog.at_level(logging.INFO, "vgame"):
        assert isinstance(node, vgame.Node)
        chain = vgame.connect(node.url)
        assert isinstance(chain, vgame.Chain)
        client, trainer, auditor = (vgame.Wallet(chain, key) for key in node.keys[:3])
        game = vgame.Game.deploy(client)
        order = game.post(bundle)
        assert isinstance(order, vgame.Order) and order.phase == "created"
        with pytest.raises(vgame.ChainError, match="cannot be ended yet"):
            order.close()
        seller = vgame.TrainerAgent(
            vgame.Game(chain, game.address, trainer), order, tmp_path / "bundle", tmp_path / "seller"
        )
        while seller.step():
            pass
        assert order.phase == "claimed"
        watcher = vgame.AuditorAgent(
            vgame.Game(chain, game.address, auditor), tmp_path / "bundle", tmp_path / "watcher"
        )
        assert not watcher.step() and "auditor: job" in caplog.text and "MATCH, own root" in caplog.text
        chain.advance(bundle.terms.challenge_window + 1)
        with monkeypatch.context() as patch:
            patch.setattr("vgame.agents.local_run.LocalRun.__init__", None)  # `run` continues the run of `step`
            assert seller.run() == "final" and order.phase == "final"
        watcher.run()
        with pytest.raises(vgame.VgameError, match="start `vgame trainer --device compatible`"):
            vgame.TrainerAgent(game, order, tmp_path / "bundle", tmp_path / "seller", device="compatible")
    other = vgame.Order(game, order.job)
    assert other == order


def test_an_auditor_in_python_equals_that_of_the_command_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mode `logged` it needs the log; it rehearses a dispute before it watches; it plays the given orders."""
    bundle = vgame.prepare(job(mode="logged", log=vgame.LogTerms(thresholds="proven")))
    bundle.save(tmp_path / "bundle")
    rehearsed: list[Path] = []
    usual = LoggedHistory.rehearse
    monkeypatch.setattr(LoggedHistory, "rehearse", lambda own: rehearsed.append(own.store.folder) or usual(own))
    with vgame.embedded_chain() as node, caplog.at_level(logging.INFO, "vgame"):
        chain = vgame.connect(node.url)
        client, trainer, auditor = (vgame.Wallet(chain, key) for key in node.keys[:3])
        game = vgame.Game.deploy(client)
        orders = [game.post(bundle, nonce) for nonce in (0, 1)]
        own = vgame.Game(chain, game.address, auditor)
        blind = vgame.AuditorAgent(own, tmp_path / "bundle", tmp_path / "blind")
        for play in (blind.step, blind.run):
            with pytest.raises(vgame.VgameError, match="is audited by its log"):
                play()
        seller = vgame.TrainerAgent(
            vgame.Game(chain, game.address, trainer), orders[0], tmp_path / "bundle", tmp_path / "seller"
        )
        while seller.step():
            pass
        rehearsed.clear()
        given = {"log": tmp_path / "seller" / bundle.identity.hex()[:16], "orders": orders[:1]}
        watcher = vgame.AuditorAgent(own, tmp_path / "bundle", tmp_path / "watcher", **given)
        watcher.step()
        assert [folder.parent for folder in rehearsed] == [tmp_path / "watcher"]
        assert f"auditor: plays job {orders[0].job.hex()[:16]}" in caplog.text and ": MATCH, own root" in caplog.text
        unknown = vgame.AuditorAgent(
            own, tmp_path / "bundle", tmp_path / "watcher", orders=[vgame.Order(own, bytes(32))]
        )
        unknown.seat = watcher.seat
        with pytest.raises(vgame.ChainError, match="there is no job 0000"):
            unknown.step()

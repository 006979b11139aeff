"""Uses of a run: take its weights, continue from them, start from other weights, compare a file with a claim."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import vgame
from vgame.cli import app
from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.job.weights import check_weights


class Net(nn.Module):
    """Tied weights and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


def loss(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def task(optimizer=torch.optim.Adam, model: nn.Module | None = None, **options) -> vgame.Task:
    torch.manual_seed(1)
    model = model or Net()
    x = torch.randn(16, 4)
    return vgame.Task(
        model, loss, optimizer(model.parameters(), lr=0.01), {"x": x, "y": x.argmax(1)}, batch=8, **options
    )


def job(steps: int = 4, task: vgame.Task | None = None, **options) -> vgame.Job:
    return vgame.Job(
        task or globals()["task"](order="sequential"), **{"steps": steps, "interval": 2, "seed": 3, **options}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vgame.Run:
    return vgame.train(vgame.prepare(job()), tmp_path_factory.mktemp("runs") / "run")


def final_root(run: vgame.Run) -> bytes:
    return tensors_root(Kind.STATE, run._at(None)[1])


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(result.exception, vgame.VgameError), result.output
    return str(result.exception)


def test_an_exported_file_loads_into_the_module(run: vgame.Run, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(run.folder), "--out", str(tmp_path / "model.safetensors")])
    assert done.exit_code == 0 and "after step 4 of 4" in done.output and run.root in done.output.replace("\n", "")
    model, found = Net(), load_file(tmp_path / "model.safetensors")
    model.load_state_dict(found)
    assert {k: t.dtype for k, t in found.items()} == {k: t.dtype for k, t in Net().state_dict().items()}
    assert torch.equal(found["last.weight"], run.state_dict()["first.weight"]) and model.norm.num_batches_tracked == 4
    run.export(tmp_path / "slots.safetensors", 2, slots=True)
    assert set(load_file(tmp_path / "slots.safetensors")) - set(found) and "step 9" in refused(
        "export", run.folder, "--out", tmp_path / "x", "--step", 9
    ).replace("step = 9", "step 9")
    assert "is a folder" in refused("export", run.folder, "--out", tmp_path)


def test_a_file_is_compared_with_a_final_state(run: vgame.Run, tmp_path: Path) -> None:
    path, root = tmp_path / "model.safetensors", final_root(run)
    run.export(path)
    assert set(check_weights(path, root, run.bundle)) == set(Net().state_dict())
    assert check_weights(run.folder / "states" / "0000000004.safetensors", root, run.bundle)
    run.export(path, step=2)
    with pytest.raises(vgame.VgameError, match="not what the claim certifies: its state has the root"):
        check_weights(path, root)


def rewritten(run: vgame.Run, path: Path, change) -> Path:
    """An exported file with other tensors under the same header."""
    from safetensors import safe_open

    run.export(path)
    with safe_open(path, "pt") as file:
        head = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, head)
    return path


def test_a_changed_word_another_name_and_a_missing_tensor_are_found(run: vgame.Run, tmp_path: Path) -> None:
    path, root = tmp_path / "model.safetensors", final_root(run)
    with pytest.raises(vgame.VgameError, match=r"the tensor first.bias holds other words"):
        check_weights(rewritten(run, path, lambda t: t["first.bias"].add_(1)), root)
    with pytest.raises(
        vgame.VgameError, match=r"first.bias is torch.float16; what a claim certifies are float32 words"
    ):
        check_weights(rewritten(run, path, lambda t: t.update({"first.bias": t["first.bias"].half()})), root)
    missing = rewritten(run, path, lambda t: t.pop("first.bias"))
    assert check_weights(missing, root)
    with pytest.raises(
        vgame.BundleError, match=r"the order's first.bias is the state tensor first.bias, the file says nothing"
    ):
        check_weights(missing, root, run.bundle)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(vgame.VgameError, match="does not say which state it is of"):
        check_weights(path, root)
    path.write_bytes(b"no tensors at all")
    with pytest.raises(vgame.VgameError, match="is not a safetensors file"):
        check_weights(path, root)


def test_save_pretrained_calls_the_models_own_method(run: vgame.Run, tmp_path: Path) -> None:
    class Saving(Net):
        def save_pretrained(self, folder: Path) -> None:
            torch.save(self.state_dict(), folder / "weights.pt")

    run.save_pretrained(tmp_path, Saving())
    assert torch.equal(torch.load(tmp_path / "weights.pt")["last.bias"], run.state_dict()["last.bias"])
    with pytest.raises(vgame.VgameError, match="Net has no save_pretrained"):
        run.save_pretrained(tmp_path, Net())


def test_a_continued_run_is_the_longer_run(run: vgame.Run, tmp_path: Path) -> None:
    """Weights, Adam's moments and its count of steps, the place in the data: eight steps at once give the same
    state."""
    more = vgame.train(vgame.prepare(job(task=task(order="sequential"), initial=run)), tmp_path / "more")
    whole = vgame.train(vgame.prepare(job(8)), tmp_path / "whole")
    a, b = more.state_dict(slots=True), whole.state_dict(slots=True)
    assert set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)
    assert more.bundle.before == 4 and vgame.Bundle.load(more.folder / "job").before == 4 and vgame.audit(more).match
    third = vgame.prepare(job(task=task(order="sequential"), initial=more.folder))
    assert third.before == 8


def test_the_schedule_of_a_continued_run_counts_its_own_steps(run: vgame.Run) -> None:
    fresh = {"optimizer": torch.optim.SGD}
    schedule = vgame.Linear(lr="0.5")
    first = vgame.prepare(job(6, task=task(**fresh), schedule=schedule))
    start = vgame.prepare(job(6, task=task(**fresh), schedule=schedule, initial=run.state_dict()))
    assert torch.equal(first.scalars, start.scalars) and first.initial_root != start.initial_root


def test_unusable_initial_states_are_named(run: vgame.Run, tmp_path: Path) -> None:
    with pytest.raises(vgame.JobFileError, match=r"was trained by Adam, whose state SGD .*initial=run.state_dict\(\)"):
        vgame.prepare(job(task=task(torch.optim.SGD), initial=run))
    with pytest.raises(vgame.VgameError, match=r"cannot be continued by this job: .*initial=run.state_dict\(\)"):
        vgame.prepare(job(task=task(partial(torch.optim.Adam, amsgrad=True)), initial=run))
    half = vgame.train(vgame.prepare(job(4)), tmp_path / "half", cancel=None)
    (half.folder / "roots.bin").write_bytes((half.folder / "roots.bin").read_bytes()[:32])
    with pytest.raises(vgame.VgameError, match="is at step 2 of 4: train it to its end first"):
        vgame.prepare(job(initial=half.folder))
    with pytest.raises(vgame.VgameError, match=r"it has no first\.weight, .* and \d more, has other"):
        vgame.prepare(job(initial={"other": torch.ones(1)}))
    with pytest.raises(vgame.JobFileError, match="initial = int: a run, the path"):
        vgame.prepare(job(initial=3))


def test_weights_from_elsewhere_can_be_the_initial_state(tmp_path: Path) -> None:
    torch.manual_seed(5)
    other = Net()
    torch.save(other.state_dict(), tmp_path / "other.pt")
    bundle = vgame.prepare(job(initial=tmp_path / "other.pt"))
    names = [label.name for label in bundle.program.labels.state]
    assert torch.equal(bundle.state[names.index("first.weight")], other.first.weight.detach().reshape(-1))
    torch.save(other, tmp_path / "whole.pt")
    with pytest.raises(vgame.VgameError, match=r"save module.state_dict\(\) alone"):
        vgame.prepare(job(initial=tmp_path / "whole.pt"))
    with pytest.raises(vgame.VgameError, match="cannot be read: No such file"):
        vgame.prepare(job(initial=tmp_path / "none.pt"))


def test_another_order_is_reported_with_its_differences(run: vgame.Run, tmp_path: Path) -> None:
    def text(**options) -> str:
        vgame.prepare(job(**options)).save(tmp_path / "order")
        with pytest.raises(vgame.StoreError) as error:
            vgame.audit(run, order=tmp_path / "order")
        return str(error.value)

    assert "other program (the optimizer differs), initial state (" in text(
        task=task(torch.optim.SGD, order="sequential")
    )
    other = copy.deepcopy(task(order="sequential"))
    other.data["x"][3, 2] = 5
    assert text(task=other).endswith("other data (x)")
    assert text(seed=4).endswith("other seed (3, not 4)")
    relu = task(order="sequential")
    relu.model.forward = lambda x: relu.model.last(torch.tanh(relu.model.norm(relu.model.first(x))))
    assert "other program (" in text(task=relu) and "optimizer" not in text(task=relu)


def test_a_diverged_run_is_reported_as_a_diverged_match(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    wild = vgame.train(
        vgame.prepare(job(9, schedule=vgame.Constant(lr="1e38"), task=task(torch.optim.SGD))), tmp_path / "run"
    )
    assert wild.divergence is not None
    done = CliRunner().invoke(app, ["audit", str(wild.folder)])
    assert done.exit_code == 0 and f"MATCH (diverged at step {wild.divergence.step}): " in done.output


# ---- on a chain ----


def test_a_claim_certifies_its_weights_and_a_roles_store_is_a_run(tmp_path: Path) -> None:
    terms = vgame.Terms(challenge_window=1_000_000)
    bundle = vgame.prepare(job(2, terms=terms))
    bundle.save(tmp_path / "bundle")
    with vgame.embedded_chain() as node:
        chain = vgame.connect(node.url)
        game = vgame.Game.deploy(vgame.Wallet(chain, node.keys[0]))
        order, theirs = game.post(bundle), vgame.Game(chain, game.address, vgame.Wallet(chain, node.keys[1]))
        agent = vgame.TrainerAgent(theirs, order, tmp_path / "bundle", tmp_path / "store", any_terms=True)
        while agent.step():
            pass
        store = tmp_path / "store" / bundle.identity.hex()[:16]
        done = CliRunner().invoke(app, ["audit", str(store), "--bundle", str(tmp_path / "bundle")])
        assert done.exit_code == 0 and "MATCH" in done.output
        vgame.Run.open(store).export(tmp_path / "weights.safetensors")
        command = [
            "check",
            tmp_path / "weights.safetensors",
            "--rpc",
            node.url,
            "--game",
            game.address,
            "--job",
            order.job.hex(),
        ]
        assert "is claimed: only a final claim certifies weights" in refused(*command)
        chain.advance(terms.challenge_window + 1)
        while agent.step():
            pass
        assert order.phase == "final" and agent._player.withdrawn == terms.reward + terms.trainer_bond
        done = CliRunner().invoke(app, [*map(str, command), "--bundle", str(tmp_path / "bundle"), "--json"])
        assert done.exit_code == 0 and '"names": true' in done.output
        vgame.Run.open(store).export(tmp_path / "weights.safetensors", step=0)
        assert "is not what the claim certifies" in refused(*command)


# ---- job files ----

MODULE = """
import torch
from torch import nn
from vgame import Task
{before}
def task({arguments}):
    {seeding}
    model = nn.Linear(2, 2)
    data = {{"x": torch.ones(4, 2)}}
    return Task(model, lambda m, b: m(b["x"]).square().mean(), torch.optim.SGD(model.parameters(), lr={lr}), data,
                batch=2)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])

    def write(name: str, arguments="seed", seeding="torch.manual_seed(seed)", lr="0.1", more="", before="") -> Path:
        (tmp_path / f"{name}.py").write_text(MODULE.format(before=before, arguments=arguments, seeding=seeding, lr=lr))
        path = tmp_path / f"{name}.toml"
        path.write_text(f'model = "{name}:task"\nseed = 9\nsteps = 2\ninterval = 1\n{more}')
        return path

    return write


def prepared(path: Path) -> vgame.Bundle:
    return vgame.prepare(vgame.Job.from_toml(path))


def test_a_factory_with_a_seed_parameter_gets_the_jobs_seed(file) -> None:
    torch.manual_seed(9)
    wanted = nn.Linear(2, 2).weight.detach().reshape(-1)
    assert torch.equal(prepared(file("asks")).state[0], wanted)
    assert not torch.equal(prepared(file("own", arguments="seed=4")).state[0], wanted)
    assert not torch.equal(prepared(file("given", more="[args]\nseed = 5\n")).state[0], wanted)


def test_a_factory_with_other_weights_at_each_call_gives_a_warning(file, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"other weights at each call \(weight is one of 2\).*def task\(seed\)"):
        done = CliRunner().invoke(app, ["prepare", str(file("loose", "", "pass")), "--out", str(tmp_path / "bundle")])
    assert done.exit_code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(file("firm"))


def test_a_bundle_is_not_overwritten_silently(file, tmp_path: Path) -> None:
    command = ["prepare", str(file("twice")), "--out", str(tmp_path / "bundle")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert "overwrite it with --force" in refused(*command)
    assert CliRunner().invoke(app, [*command, "--force"]).exit_code == 0


def test_an_unused_rate_gives_a_warning(file) -> None:
    with pytest.warns(UserWarning, match=r"the optimizer's lr = 0.3 is not used, the schedule's lr = 0.1 is"):
        prepared(file("rate", lr="0.3", more='[schedule]\nlr = "0.1"\n'))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(file("same", lr="0.1", more='[schedule]\nlr = "0.1"\n'))
        alone = prepared(file("alone", lr="0.3"))
    assert torch.equal(alone.scalars, torch.full((2, 1), 0.3))


def test_a_job_file_names_its_initial_state(file, tmp_path: Path) -> None:
    first = vgame.train(prepared(file("first")), tmp_path / "run")
    second = prepared(file("second", more='initial = "./run"\n'))
    assert second.before == 2 and torch.equal(second.state[0], first.state_dict()["weight"].reshape(-1))


def test_callbacks_see_the_module_at_every_checkpoint(tmp_path: Path) -> None:
    seen, mine = [], task(order="sequential")
    bundle = vgame.prepare(job(5, task=mine))

    def note(step: int, model: nn.Module, losses: list[float]) -> None:
        seen.append((step, model.first.bias.detach().clone(), len(losses)))
        model.first.bias.data.fill_(7)  # changes nothing in the run

    run = vgame.train(bundle, tmp_path / "run", callbacks=[note], model=mine.model)
    assert [(step, count) for step, _, count in seen] == [(2, 2), (4, 2), (5, 1)] and vgame.audit(run).match
    assert all(torch.equal(bias, run.state_dict(step)["first.bias"]) for step, bias, _ in seen)
    with pytest.raises(vgame.VgameError, match=r"pass the module: vgame.train\(\.\.\., model=model\)"):
        vgame.train(bundle, tmp_path / "other", callbacks=[note])

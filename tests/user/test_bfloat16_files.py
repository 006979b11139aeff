"""bfloat16 parameters in all files: bundle, run, export, weights, a continued run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import vgame
from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.job.weights import check_weights


class Net(nn.Module):
    """Two layers, one or both in bfloat16; tied weights, a buffer of each kind."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        if whole:
            self.bfloat16()
            self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x.bfloat16())).to(self.last.weight.dtype)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(hidden.mean(0))
            self.seen += 1
        return self.last(hidden).float()


def loss(model: nn.Module, batch) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def job(whole: bool, steps: int = 4, **options) -> vgame.Job:
    torch.manual_seed(3)
    model, x = Net(whole), torch.randn(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    data = {"x": x, "y": x.flip(0)}
    task = vgame.Task(model, loss, optimizer, data, 8, order="sequential")
    return vgame.Job(task, steps=steps, interval=2, seed=1, **options)


@pytest.fixture(scope="module", params=[True, False], ids=["all", "one layer"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> vgame.Run:
    folder = tmp_path_factory.mktemp("runs")
    vgame.prepare(job(request.param)).save(folder / "bundle")
    return vgame.train(folder / "bundle", folder / "run")


def is_whole(run: vgame.Run) -> bool:
    return run.state_dict()["last.weight"].dtype == torch.bfloat16


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return {k: t.dtype for k, t in a.items()} == {k: t.dtype for k, t in b.items()} and all(
        torch.equal(a[k], b[k]) for k in a
    )


def test_the_state_has_the_modules_types_and_every_audit_matches(run: vgame.Run, tmp_path: Path) -> None:
    model, found = Net(is_whole(run)), vgame.Run.open(run.folder).state_dict()
    assert {k: t.dtype for k, t in found.items()} == {k: t.dtype for k, t in model.state_dict().items()}
    model.load_state_dict(found)
    assert same(model.state_dict(), found) and model.seen == 4
    assert vgame.audit(run.folder).match and vgame.audit(run, device="reversed", order=run.folder / "job").match
    assert vgame.train(vgame.Bundle.load(run.folder / "job"), tmp_path / "again").root == run.root


def test_an_export_has_the_modules_types_and_the_states_words(run: vgame.Run, tmp_path: Path) -> None:
    path, root = tmp_path / "model.safetensors", tensors_root(Kind.STATE, run._at(None)[1])
    run.export(path)
    assert same(load_file(path), run.state_dict())
    assert set(check_weights(path, root, run.bundle)) == set(run.state_dict())
    run.export(path, slots=True)
    assert load_file(path)["exp_avg.first.bias"].dtype == torch.float32
    run.export(path, step=2)
    with pytest.raises(vgame.VgameError, match="not what the claim certifies"):
        check_weights(path, root, run.bundle)


def test_a_run_is_continued_and_its_weights_are_an_initial_state(run: vgame.Run, tmp_path: Path) -> None:
    whole = is_whole(run)
    longer = vgame.train(vgame.prepare(job(whole, 8)), tmp_path / "longer")
    more = vgame.train(vgame.prepare(job(whole, initial=run.folder)), tmp_path / "more")
    assert same(more.state_dict(slots=True), longer.state_dict(slots=True)) and more.bundle.before == 4
    run.export(tmp_path / "model.safetensors")
    torch.save(run.state_dict(), tmp_path / "model.pt")
    for start in (run.state_dict(), tmp_path / "model.safetensors", tmp_path / "model.pt"):
        bundle = vgame.prepare(job(whole, initial=start))
        names = [label.name for label in bundle.program.labels.state]
        assert torch.equal(bundle.state[names.index("first.bias")], run.state_dict()["first.bias"].float())


def test_a_stopped_run_is_resumed_in_its_folder(run: vgame.Run, tmp_path: Path) -> None:
    looks = iter(range(100))
    with pytest.raises(vgame.Cancelled):
        vgame.train(run.bundle, tmp_path / "run", cancel=lambda: next(looks) > 2)
    seen, model = [], Net(is_whole(run))
    again = vgame.train(
        tmp_path / "run" / "job", tmp_path / "run", callbacks=[lambda t, m, _: seen.append(t)], model=model
    )
    assert again.root == run.root and seen[-1] == 4 and same(model.state_dict(), run.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_types_are_refused_by_name(dtype: torch.dtype) -> None:
    model = Net(True).to(dtype)
    data = {"x": torch.ones(8, 4), "y": torch.ones(8, 4)}
    task = vgame.Task(model, loss, torch.optim.Adam(model.parameters()), data, 4, order="sequential")
    with pytest.raises(vgame.ProgramError, match=rf"first.weight, .* are {dtype}; vgame trains in float32 and bf"):
        vgame.prepare(vgame.Job(task, steps=1, interval=1, seed=1))

"""A sum of 65,536 terms on the real contracts: what its 64 partial sums cost the trainer, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_jobs import AtElement, Scene, train_run
from revm_chain import RevmChain

from vgame.chain.records import Phase
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import LogTerms, read_job_file
from vgame.job.terms import gas_of
from vgame.program.operators import Contract
from vgame.runs.folder import executor_of
from vgame.runs.history import History
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train

ROOT = Path(__file__).resolve().parents[2]


def run_of(bundle: Bundle, folder: Path) -> History:
    if bundle.mode == "logged":
        return train_run(bundle, folder)
    store, executor = Store(folder, bundle), executor_of(bundle, "cpu")
    train(store, executor)
    return History(store, executor)


@pytest.mark.parametrize("mode", ["correct", "logged"])
def test_many_partial_sums_cost_as_much_as_terms_states(
    system: tuple[RevmChain, str], tmp_path: Path, mode: str
) -> None:
    """At least four fifths of the bound; the accuser loses."""
    job = read_job_file(ROOT / "vgame/tasks/digits.toml")
    log = LogTerms(thresholds="proven") if mode == "logged" else None
    changed = {"args": job.args | {"batch": 1024}, "steps": 1, "interval": 1, "mode": mode, "log": log}
    save_bundle(prepare(job.model_copy(update=changed)), tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    operator = max(
        (i for i, op in enumerate(bundle.program.operators) if isinstance(op, Contract)),
        key=lambda i: bundle.program.operators[i].blocks,
    )
    assert bundle.program.operators[operator].blocks == 64
    run, scene = run_of(bundle, tmp_path / "run"), Scene(system, bundle)
    trainer = scene.trainer(run)
    accuser = AtElement(scene.game(), scene.id, run, step_wanted=1, operator=operator, element=0)
    assert scene.play(trainer, accuser) is Phase.FINAL and scene.causes == [("Dismissed", "element")]
    most = gas_of(bundle)
    assert all(used <= most[name] for name, used in scene.gas.items() if name != "createJob"), scene.gas
    assert scene.gas["postPartials"] > 0.8 * most["postPartials"], (scene.gas, most)

"""An auditor that checks the trainer's published states with several workers, on the real contracts: it disputes a
differing segment with its own nodes on the path and equal nodes left of it, and the reward rule pays it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from published_runs import REPORTER, computed, cut, damage, follow, publish
from real_jobs import Scene

from vgame.agents import followed_run
from vgame.agents.auditor_service import AuditorService
from vgame.agents.config import AgentConfig
from vgame.agents.followed_run import FollowedRun
from vgame.agents.local_run import LocalRun
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import CheatingTrainer
from vgame.attacks.cheat import Cheat
from vgame.chain.records import Job, Phase
from vgame.commit.trees import run_tree
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import read_job_file
from vgame.job.terms import Pace
from vgame.runs.audit import audit_parts
from vgame.runs.pace import measure
from vgame.runs.prepare import prepare

pytestmark = pytest.mark.usefixtures("quick_workers")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six checkpoints of two steps."""
    made, job = tmp_path_factory.mktemp("jobs") / "bundle", read_job_file(ROOT / "vgame/tasks/digits.toml")
    small = {"args": job.args | {"batch": 2}, "steps": 12, "interval": 2}
    save_bundle(prepare(job.model_copy(update=small)), made)
    return made


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return load_bundle(folder)


@pytest.fixture(scope="module")
def honest(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    return computed(folder, tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def cheat(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    """A run that is wrong from step 7 on, in the interval of checkpoint 4."""
    return computed(folder, tmp_path_factory.mktemp("cheat"), Cheat("poisoned-sample", 7))


@pytest.fixture
def seat(folder: Path, tmp_path: Path) -> AgentConfig:
    return AgentConfig("", "", folder, tmp_path / "auditor")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that this process executes itself, without the measurement of its pace."""
    executed: list[int] = []
    step = Executor.step

    def measured(*given: Any) -> Pace:  # once, before anything else
        found = measure(*given)
        executed.clear()
        return found

    monkeypatch.setattr("vgame.agents.local_run.measure", measured)
    monkeypatch.setattr(Executor, "step", lambda self, n, *given: executed.append(n) or step(self, n, *given))
    return executed


@pytest.fixture
def clock(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which a step takes a second, and nothing else takes time."""
    monkeypatch.setattr(followed_run, "time", SimpleNamespace(monotonic=lambda: float(len(steps))))


def watch(scene: Scene, run: LocalRun) -> SimpleNamespace:
    """The auditor's process, round by round."""
    game = scene.game()
    service = AuditorService(game, run, REPORTER, 0.0, Limits(any_clocks=True, jobs=frozenset({scene.id})))
    return SimpleNamespace(step=service.round, address=game.wallet.address, service=service)


def paid(scene: Scene) -> list[str]:
    return [e.args["winner"] for e in scene.view.events("Convicted", scene.id)]


def test_a_cheat_is_disputed_from_its_own_states_and_the_reward_paid(
    system, bundle: Bundle, cheat: LocalRun, seat: AgentConfig, steps: list[int]
) -> None:
    run = follow(seat, cheat.store.folder, workers=2)
    assert run.has_mismatch and len(run.store.roots) == 4 and steps == [7, 8]
    assert run.store.roots[:3] == cheat.store.roots[:3] and run.store.roots[3] != cheat.store.roots[3]
    scene = Scene(system, bundle)
    trainer = scene.trainer(cheat.history, CheatingTrainer, silent=frozenset())
    auditor = watch(scene, run)
    assert scene.play(auditor, trainer) is Phase.CONVICTED
    assert [name for name, _ in scene.causes] == ["Convicted"] and scene.causes[0][1] != "timeout"
    assert paid(scene) == [auditor.address]
    assert max(steps) <= 8  # no step right of the difference was executed


def test_another_claim_is_compared_with_a_whole_run(
    system, bundle: Bundle, cheat: LocalRun, honest: LocalRun, seat: AgentConfig
) -> None:
    """The part right of the difference is unknown, so it proves nothing about another claim."""
    run, scene = follow(seat, cheat.store.folder), Scene(system, bundle)
    assert scene.play(watch(scene, run), scene.trainer(honest.history)) is Phase.FINAL and not scene.causes
    assert run._whole.run_root == honest.run_root
    again = follow(seat, "/nowhere")  # a restart, when the published run is gone
    assert again.has_mismatch and again.store.roots == run.store.roots


def test_a_claim_that_appears_between_two_queries_is_compared_first(
    system, bundle: Bundle, cheat: LocalRun, honest: LocalRun, seat: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain shows no claim, then an honest one. The auditor must not dispute it with a run computed for another
    claim."""
    run, scene = follow(seat, cheat.store.folder), Scene(system, bundle)
    trainer, auditor = Trainer(scene.game(), scene.id, honest.history), watch(scene, run)
    trainer.accept()
    while auditor.step():
        pass
    usual = auditor.service.game.jobs

    def then_a_claim(jobs: list[bytes]) -> list[Job]:
        found = usual(jobs)
        if any(job.phase is Phase.ACCEPTED for job in found):
            trainer.claim()
        return found

    monkeypatch.setattr(auditor.service.game, "jobs", then_a_claim)
    assert scene.play(auditor, trainer) is Phase.FINAL and not scene.view.disputes(scene.id, 0)


def test_a_dispute_does_not_wait_for_the_reserve_of_a_claim(
    system, bundle: Bundle, cheat: LocalRun, seat: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders without a claim: nothing is computed for them while a dispute is open, and nothing twice."""
    run, scene = follow(seat, cheat.store.folder), Scene(system, bundle)
    for _ in range(5):
        Scene(system, bundle)
    auditor, engaged = watch(scene, run), []

    def ahead(clock: bool, until: float, real: Callable[[bool, float], bool] = run.compute_ahead) -> bool:
        engaged.append(clock and scene.view.job(scene.id).phase is Phase.CLAIMED)
        return real(clock, 0.0)

    monkeypatch.setattr(run, "compute_ahead", ahead)
    assert auditor.step() and engaged == [False] and len(run._whole.store.roots) == 1
    trainer = scene.trainer(cheat.history, CheatingTrainer, silent=frozenset())
    assert scene.play(auditor, trainer) is Phase.CONVICTED and not any(engaged)


def test_a_whole_run_is_computed_before_there_is_a_claim(
    system, bundle: Bundle, cheat: LocalRun, honest: LocalRun, seat: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer publishes one wrong run and claims another: a run computed only then may be too late for the window."""
    run, scene = follow(seat, cheat.store.folder), Scene(system, bundle)
    auditor = watch(scene, run)
    while auditor.step():
        assert scene.view.job(scene.id).phase is Phase.CREATED
    assert run._whole.run_root == honest.run_root
    monkeypatch.setattr(Executor, "step", lambda *_: pytest.fail("nothing is left to compute"))
    assert scene.play(auditor, scene.trainer(honest.history)) is Phase.FINAL


def test_an_honest_run_is_adopted(honest: LocalRun, seat: AgentConfig, steps: list[int]) -> None:
    run = follow(seat, honest.store.folder)
    assert not run.has_mismatch and run.run_root == honest.run_root and steps == list(range(1, 13))
    assert run.store.losses().tobytes() == honest.store.losses().tobytes()
    assert run.history.segment(5) == honest.history.segment(5)
    assert follow(replace(seat, keep=1), honest.store.folder).run_root == honest.run_root  # a restart


def test_unpublished_states_are_computed(honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps) -> None:
    copy = Path(shutil.copytree(honest.store.folder, tmp_path / "copy"))
    for name in ("roots.bin", "checks.bin"):
        (copy / name).write_bytes((copy / name).read_bytes()[: 3 * 32])
    run = follow(seat, copy)
    assert run.run_root == honest.run_root and steps == list(range(1, 13))  # none twice


def test_a_run_without_its_states_is_executed_once_not_at_every_look(
    honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "VISIT", 0.0)
    copy = Path(shutil.copytree(honest.store.folder, tmp_path / "copy"))
    shutil.rmtree(copy / "states")
    assert follow(seat, copy).run_root == honest.run_root and steps == list(range(1, 13))


def test_a_first_interval_with_compilation_is_not_used_as_the_pace(
    honest: LocalRun, seat: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only own interval: each look would have time as if every interval took so long."""
    run, real = FollowedRun(replace(seat, published=(str(honest.store.folder),)), "cpu", REPORTER), followed_run.train
    monkeypatch.setattr(followed_run, "train", lambda *given, **how: time.sleep(0.5) or real(*given, **how))
    run._compute(run)
    assert run._follow() and len(run.store.roots) == 6 and run._spent > -1


@pytest.mark.usefixtures("clock")
def test_after_a_failed_look_as_many_steps_are_computed_before_the_next(
    folder: Path, honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last state but one is bad: otherwise every look would execute all steps before it in vain (42 steps)."""
    for pause in ("VISIT", "AWAY"):
        monkeypatch.setattr(followed_run, pause, 0.0)
    published = computed(folder, tmp_path / "trainer").store.folder
    damage("states/0000000010.safetensors")(published)
    steps.clear()
    assert follow(seat, published).run_root == honest.run_root and len(steps) == 10 + 12


def test_roots_are_adopted_only_after_execution(
    cheat: LocalRun, honest: LocalRun, seat: AgentConfig, tmp_path: Path
) -> None:
    """The newest state is wrong, and workers report it before they execute anything: its roots must not be adopted."""
    copy = Path(shutil.copytree(cheat.store.folder, tmp_path / "copy"))
    damage("states/0000000012.safetensors")(copy)
    assert follow(seat, copy, workers=2).store.roots[:4] == honest.store.roots[:4]


@pytest.mark.usefixtures("clock")
def test_roots_are_adopted_only_up_to_a_state_to_continue_from(
    folder: Path, honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss near the end is wrong, and only the last state is published: an auditor that adopted the roots before it
    would execute all steps again, and take that time for the pace of an interval."""
    monkeypatch.setattr(followed_run, "VISIT", 0.0)
    published = computed(folder, tmp_path / "trainer", keep=6).store.folder
    damage("losses.bin", 40)(published)
    steps.clear()
    run = follow(seat, published)
    assert run.run_root == honest.run_root and len(steps) <= 24 and run._spent <= run._computed + followed_run.LEAST


@pytest.mark.usefixtures("clock")
def test_a_look_ends_in_time(
    folder: Path,
    honest: LocalRun,
    seat: AgentConfig,
    steps: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server may send its states as slowly as it likes."""
    published = computed(folder, tmp_path / "trainer").store.folder
    capsys.readouterr()
    for pause in ("VISIT", "AWAY"):
        monkeypatch.setattr(followed_run, pause, 0.0)
    slow = lambda *given: steps.extend([0] * 100) or audit_parts(*given)  # noqa: E731
    monkeypatch.setattr(followed_run, "audit_parts", slow)
    assert follow(seat, published).run_root == honest.run_root
    assert capsys.readouterr().out.count("the check has reached its time limit") == 1


def test_fewer_roots_than_the_own_run_has(honest: LocalRun, cheat: LocalRun, seat: AgentConfig, tmp_path: Path) -> None:
    """One of the published roots is wrong, or their number shrinks: the auditor must not end."""
    copy = Path(shutil.copytree(honest.store.folder, tmp_path / "copy"))
    publish(copy, honest.store.roots[:3])
    run = FollowedRun(replace(seat, published=(str(copy),)), "cpu", REPORTER)
    assert run._follow() and len(run.store.roots) == 3
    publish(copy, [bytes(32)])
    run.store.release()
    again = follow(seat, copy)
    assert again.has_mismatch and again.theirs == [bytes(32)]
    publish(copy, cheat.store.roots)
    assert again.compute_ahead(False, 0.0) and again.theirs == [bytes(32)]
    again.store.release(), again._whole.store.release()
    assert follow(seat, copy).has_mismatch


def test_a_found_fault_stays_despite_later_publications(
    honest: LocalRun, cheat: LocalRun, seat: AgentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispute about it may be open, and the auditor may restart: a longer run counts as the same one, any other does
    not."""
    copy = Path(shutil.copytree(cheat.store.folder, tmp_path / "copy"))
    publish(copy, cheat.store.roots[:5])
    run = follow(seat, copy)
    claim = SimpleNamespace(diverged_at=11, run_root=run_tree(cheat.store.roots[:5], 5).root)
    assert run.has_mismatch and run.history_of(claim) is run.history
    monkeypatch.setattr(run, "_advance", lambda: setattr(run, "_computed", 1e9))
    for roots in ([*cheat.store.roots[:4], bytes(32)], cheat.store.roots[:4], [bytes(32)] * 6, cheat.store.roots):
        publish(copy, roots)
        run._next = 0.0
        assert run.theirs == list(cheat.store.roots[:5]) and run.compute_ahead(False, 0.0)
    assert run.theirs == list(cheat.store.roots) and run.history_of(claim) is run.history
    assert run.history_of(SimpleNamespace(diverged_at=0, run_root=cheat.run_root)) is run.history
    assert run.history_of(SimpleNamespace(diverged_at=7, run_root=run_tree(cheat.store.roots[:3], 3).root)) is None
    assert not run._whole.store.roots  # for another account's claim nothing is copied at once, while a clock may run


def test_states_missing_between_two_others_are_computed(
    honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps: list[int]
) -> None:
    """A trainer publishes only some states: an auditor that adopted the roots between them would execute these steps
    while a clock runs."""
    copy = Path(shutil.copytree(honest.store.folder, tmp_path / "copy"))
    for step in (4, 6, 8, 10):
        (copy / f"states/{step:010d}.safetensors").unlink()
    run = follow(seat, copy)
    assert run.run_root == honest.run_root and steps == list(range(1, 13))
    assert all(run.store.keeps(c) for c in range(1, 7))


def test_the_own_order_is_read_and_not_the_published_one(
    folder: Path, honest: LocalRun, seat: AgentConfig, tmp_path: Path, steps: list[int]
) -> None:
    """Its tensors could have any size, and its files could shrink while they are read."""
    published = computed(folder, tmp_path / "trainer").store.folder
    shutil.rmtree(published / "job")
    steps.clear()
    assert follow(seat, published, workers=2).run_root == honest.run_root and not steps


def test_an_unexpected_error_does_not_end_an_auditor(
    honest: LocalRun, seat: AgentConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(followed_run, "audit_parts", lambda *_: [].pop())
    monkeypatch.setattr(followed_run, "VISIT", 0.0)
    assert follow(seat, honest.store.folder).run_root == honest.run_root
    assert "unforeseen IndexError at vgame/agents/followed_run.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "damaged",
    [
        damage("states/0000000006.safetensors"),
        damage("losses.bin", 20),
        cut("losses.bin", 5),
        damage("roots.bin"),
        damage("run.json", 20),
        shutil.rmtree,
    ],
    ids=["state", "loss", "losses", "roots", "header", "gone"],
)
def test_unusable_published_states_are_computed(honest: LocalRun, seat: AgentConfig, tmp_path: Path, damaged) -> None:
    """A trainer that publishes invalid data costs only time."""
    copy = Path(shutil.copytree(honest.store.folder, tmp_path / "copy"))
    damaged(copy)
    assert follow(seat, copy).run_root == honest.run_root


def test_the_run_of_another_job(
    folder: Path, honest: LocalRun, cheat: LocalRun, seat: AgentConfig, tmp_path: Path
) -> None:
    replace(load_bundle(folder), seed=99).save(tmp_path / "other")
    foreign = computed(tmp_path / "other", tmp_path / "foreign")
    assert follow(seat, foreign.store.folder).run_root == honest.run_root


def test_published_states_of_a_run_with_a_log_are_refused(
    seat: AgentConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        followed_run.LocalRun, "__init__", lambda self, *given: setattr(self, "bundle", SimpleNamespace(log=object()))
    )
    with pytest.raises(Abstain, match="--published is for runs without a log"):
        follow(seat, "/nowhere")

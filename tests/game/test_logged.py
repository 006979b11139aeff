"""Jobs in mode `logged` on the real contracts: honest trainers on devices with different errors, and tampered logs
(T23)."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from perturbed import perturbed_products
from real_jobs import AtElement, Scene, train_run

from vgame.agents.client import off_chain
from vgame.agents.config import AgentConfig
from vgame.agents.local_run import LocalRun
from vgame.agents.retry import Retry
from vgame.arithmetic.reference.sums import Partial
from vgame.attacks.adversaries import CheatingTrainer
from vgame.attacks.tampered_log import Tampering
from vgame.chain.records import Level, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView, Entry
from vgame.errors import Abstain, ContractError, StoreError
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import LogTerms, read_job_file
from vgame.job.terms import gas_of
from vgame.logged.admissible import Moments, merge_moments, moments_sum
from vgame.logged.encoding import LogError
from vgame.logged.kernels import sum_operators
from vgame.program.operators import Contract
from vgame.runs.header import Divergence, write_header
from vgame.runs.logged_history import LoggedHistory
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.prepare import prepare
from vgame.runs.published_log import FILES, PublishedLog
from vgame.runs.store import Store
from vgame.runs.training import train
from vgame.system.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Three steps in two intervals; batches so large that a weight gradient is decided in blocks."""
    folder, job = tmp_path_factory.mktemp("bundle"), read_job_file(ROOT / "vgame/tasks/digits.toml")
    small = {"args": job.args | {"batch": 20}, "steps": 3, "interval": 2, "mode": "logged"}
    save_bundle(prepare(job.model_copy(update=small | {"log": LogTerms(thresholds="proven")})), folder)
    made = load_bundle(folder)
    assert any(isinstance(op, Contract) and op.blocks > 1 for op in made.program.operators)
    return made


def audit_run(bundle: Bundle, source: Path, folder: Path) -> tuple[LoggedHistory, PublishedLog]:
    """An auditor's run, by the log in the trainer's folder."""
    log, executor = PublishedLog(source, folder / "log", bundle), make_executor(bundle, "cpu")
    log.follow(executor)
    store = Store(folder / "run", bundle)
    train(store, executor)
    return LoggedHistory(store, executor, log), log


def operator_called(bundle: Bundle, label: str, long: bool = False) -> int:
    """A sum of a layer; `long`: one that is decided in blocks."""
    program = bundle.program
    return next(
        i
        for i in sum_operators(program)
        if label in program.labels.operators[i] and (program.operators[i].blocks > 1) == long
    )


def test_an_honest_run_becomes_final_on_any_devices(system, bundle: Bundle, tmp_path: Path) -> None:
    """The trainer's sums err upwards, the auditor's downwards, by almost the whole bound; accusers of a logged element
    lose."""
    with perturbed_products("up"):
        run = train_run(bundle, tmp_path / "trainer")
    with perturbed_products("down"):
        mine, log = audit_run(bundle, tmp_path / "trainer", tmp_path / "auditor")
        scene = Scene(system, bundle)
        trainer = scene.trainer(run)
        job = scene.view.job(scene.id)
        assert job.spec.mode == 32 and log.log_mismatch(job.run_root, None) == ""
        auditor = Auditor(scene.game(), scene.id, mine)
        assert auditor.agrees() and sum(map(len, log.store.log.read(1).values())) > 0
        accusers = [at_log(scene, mine, log, step) for step in (1, 3)]
        assert scene.play(trainer, auditor, *accusers) is Phase.FINAL
    assert scene.causes == [("Dismissed", "element")] * 2


def at_log(scene: Scene, mine: LoggedHistory, log: PublishedLog, step: int) -> AtElement:
    """Accuses an element that has an entry, of the first operator with one."""
    entries = log.store.log.read(step)
    operator = min(entries)
    element = int(entries[operator].positions[0])
    return AtElement(scene.game(), scene.id, mine, step_wanted=step, operator=operator, element=element)


def diverging(bundle: Bundle, folder: Path, step: int) -> LoggedHistory:
    """A run that overflows in step 1, from a huge weight, or in step 2, after a huge learning rate."""
    scalars, state = bundle.scalars.clone(), [x.clone() for x in bundle.state]
    if step == 1:
        next(x for x in state if x.dtype == torch.float32 and x.numel() > 100).fill_(3e38)
    else:
        scalars[0].fill_(3e38)
    save_bundle(replace(bundle, scalars=scalars, state=state), folder / "bundle")
    return train_run(load_bundle(folder / "bundle"), folder / "run")


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_that_diverges_is_paid_as_agreed(system, bundle: Bundle, tmp_path: Path, step: int) -> None:
    """The log of the interval up to that step is committed with the claim."""
    run = diverging(bundle, tmp_path, step)
    job = run.store.bundle
    mine, log = audit_run(job, run.store.folder, tmp_path / "auditor")
    scene = Scene(system, job)
    trainer = scene.trainer(run)
    claimed = scene.view.job(scene.id)
    assert claimed.diverged_at == run.stop.step == mine.stop.step == step
    assert log.partial_root == run.logs[0] and log.log_mismatch(claimed.run_root, log.partial_root) == ""
    auditor = Auditor(scene.game(), scene.id, mine)
    assert auditor.agrees() and scene.play(trainer, auditor) is Phase.FINAL and not scene.causes


def test_a_challenge_of_a_piece_names_its_log(system, bundle: Bundle, tmp_path: Path) -> None:
    """If elements are decided with a log, a piece is contested together with the log that was read."""
    run = diverging(bundle, tmp_path, 2)
    mine, _ = audit_run(run.store.bundle, run.store.folder, tmp_path / "auditor")
    scene = Scene(system, run.store.bundle)
    scene.trainer(run)
    auditor = Auditor(scene.game(), scene.id, mine)
    view = ClaimView(auditor, scene.view.job(scene.id))
    assert scene.view.posts(scene.id, Level.SEGMENT, [1])[0].log == run.logs[0]
    for entry in (Entry(Level.SEGMENT, 1), Entry(Level.TRACE, 2)):
        ends, segment, log = view.basis(entry)
        assert log == run.logs[0]
        game = scene.game()
        place = (scene.id, int(entry.level), entry.where, view.claimed_root(entry))
        for other in (bytes(32), bytes([log[0] ^ 1]) + log[1:]):
            with pytest.raises(ContractError) as caught:
                game.send("challenge", *place, (ends, segment, other), value=view.job.spec.stake)
            assert (caught.value.name, caught.value.args_) == ("BadProof", (other, log))
        game.send("challenge", *place, (ends, segment, log), value=view.job.spec.stake)


class Overflowing(Tampering):
    """A trainer that makes one element infinite."""

    def _steer(self, *_) -> None:
        self.steered = torch.tensor([7]), torch.tensor([torch.inf])


@pytest.mark.parametrize("step", [1, 2])
def test_a_divergence_that_was_steered_convicts(system, bundle: Bundle, tmp_path: Path, step: int) -> None:
    """The claimed word is not finite, but the arithmetic gives a finite one for any entry."""
    operator = operator_called(bundle, "hidden")
    run = train_run(
        bundle, tmp_path / "trainer", lambda k: k.strike(step, operator, lambda *_: [7], False), Overflowing
    )
    mine, log = audit_run(bundle, tmp_path / "trainer", tmp_path / "auditor")
    scene = Scene(system, bundle)
    trainer = scene.trainer(run, Persistent, silent=frozenset({"prove"}))
    assert scene.view.job(scene.id).diverged_at == step
    assert log.log_mismatch(scene.view.job(scene.id).run_root, log.partial_root) == ""
    assert scene.play(trainer, Auditor(scene.game(), scene.id, mine)) is Phase.CONVICTED
    assert scene.causes == [("Convicted", "element")]


@pytest.mark.parametrize("long", [False, True], ids=["short sum", "long sum"])
@pytest.mark.parametrize("logged", [True, False], ids=["flipped direction", "no entry"])
def test_a_steered_value_convicts(system, bundle: Bundle, tmp_path: Path, logged: bool, long: bool) -> None:
    """T23: far from a midpoint the log's entry does not count, and a value steered without an entry has none in its
    favour."""
    operator = operator_called(bundle, "conv" if long else "hidden", long)
    steered = list(range(40)) if long else [7, 70]
    run = train_run(bundle, tmp_path / "trainer", lambda k: k.strike(2, operator, lambda *_: steered, logged))
    mine, log = audit_run(bundle, tmp_path / "trainer", tmp_path / "auditor")
    scene = Scene(system, bundle)
    trainer = scene.trainer(Forging(run.store, run.stepper, run.store), Persistent, silent=frozenset({"prove"}))
    assert log.log_mismatch(scene.view.job(scene.id).run_root, None) == ""
    auditor = Auditor(scene.game(), scene.id, mine)
    assert not auditor.agrees()
    assert scene.play(trainer, auditor) is Phase.CONVICTED and scene.causes == [("Convicted", "element")]
    assert "prove" in scene.gas or "selectPartial" in scene.gas
    assert all(used <= gas_of(bundle)[name] for name, used in scene.gas.items() if name != "createJob"), scene.gas
    verdict = scene.view.verdict(scene.id)
    assert (verdict.step, verdict.operator) == (2, operator)
    assert (verdict.level, verdict.index in steered) == (Level.PARTIAL if long else Level.ELEMENT, True)


class Forging(LoggedHistory):
    """The history of a cheat: its partial sums add up to its claimed word."""

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        claimed = int.from_bytes(self.words(step, operator)[4 * element : 4 * element + 4], "little")
        sums = [Moments.decode(p) for p in super().partials(step, operator, element)]
        total, first = merge_moments(sums).value.value, sums[0]
        sums[0] = replace(first, value=Partial(0, first.value.value + moments_sum([claimed]).value.value - total))
        return [m.encode() for m in sums]


class Persistent(CheatingTrainer):
    """A cheat that continues as long as the contract permits."""

    def step(self) -> bool:
        try:
            return super().step()
        except (Abstain, ContractError):
            return False


def test_a_log_that_was_not_committed_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """T23: another log, or one with an entry more, and the auditor abstains instead of losing its bond."""
    run = train_run(bundle, tmp_path / "trainer")
    operator = operator_called(bundle, "hidden")
    train_run(bundle, tmp_path / "other", lambda k: k.strike(1, operator, lambda *_: [3], True))
    root = PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle).run_root
    other = PublishedLog(tmp_path / "other", tmp_path / "second", bundle)
    assert "is not the one that the claim commits" in other.log_mismatch(root, None)
    for name in FILES:
        assert (tmp_path / "trainer" / name).exists()
    mixed = shutil.copytree(tmp_path / "trainer", tmp_path / "mixed")
    shutil.copy(tmp_path / "other" / "rounding.vglog", mixed / "rounding.vglog")
    with pytest.raises(Abstain, match=r"has the root .* was committed with checkpoint 1"):
        audit_run(bundle, mixed, tmp_path / "third")
    (mixed / "logs.bin").unlink()
    with pytest.raises(Abstain, match=r"the trainer's log is not there: .*logs.bin"):
        PublishedLog(mixed, tmp_path / "fourth", bundle)
    assert run.logs == PublishedLog(tmp_path / "trainer", tmp_path / "fifth", bundle).log_roots


def test_a_restarted_auditor_has_its_copy_of_the_log(bundle: Bundle, tmp_path: Path) -> None:
    """During a dispute, after the trainer removed or replaced its log; a damaged copy is made again."""
    run = train_run(bundle, tmp_path / "trainer")
    PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    kept = shutil.move(tmp_path / "trainer", tmp_path / "away")
    again = PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    assert again.log_roots == run.logs and again.committed(2)
    train_run(
        bundle, tmp_path / "trainer", lambda k: k.strike(1, operator_called(bundle, "hidden"), lambda *_: [3], True)
    )
    assert PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle).log_roots == run.logs
    damaged = tmp_path / "own" / "rounding.vglog"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert PublishedLog(kept, tmp_path / "own", bundle).committed(2)


def test_a_copy_that_the_own_disk_does_not_take(bundle: Bundle, tmp_path: Path) -> None:
    """The trainer's log exists: it is not reported as missing."""
    train_run(bundle, tmp_path / "trainer")
    (tmp_path / "file").touch()
    (tmp_path / "own" / "logs.bin").mkdir(parents=True)
    for own, why in ((tmp_path / "file" / "own", "Not a directory"), (tmp_path / "own", "Is a directory")):
        with pytest.raises(StoreError, match=f"cannot be copied to .*: {why}; free space, or choose another --store"):
            PublishedLog(tmp_path / "trainer", own, bundle)


def test_a_log_that_grows_while_it_is_copied(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is bounded, and no part of it stays."""
    train_run(bundle, tmp_path / "trainer")
    path, keep, copied = tmp_path / "trainer" / "rounding.vglog", PublishedLog._keep, []
    most = LoggedStore.files(bundle)[path.name]

    def grow(log: PublishedLog, name: str, *arguments) -> None:
        if name == path.name:
            os.truncate(path, 3 * most)
        keep(log, name, *arguments)
        copied.append((log.own / name).stat().st_size)

    monkeypatch.setattr(PublishedLog, "_keep", grow)
    with pytest.raises(Abstain, match=f"rounding.vglog: more than {most:,} bytes, which no log of this job has"):
        PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    assert copied[-1] == most + 1 and not (tmp_path / "own" / path.name).exists()


def test_the_copy_of_a_sparse_log_is_sparse(bundle: Bundle, tmp_path: Path) -> None:
    """Holes cost a trainer nothing."""
    train_run(bundle, tmp_path / "trainer")
    os.truncate(tmp_path / "trainer" / "rounding.vglog", LoggedStore.files(bundle)["rounding.vglog"])
    with pytest.raises(LogError):
        PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    copy = (tmp_path / "own" / "rounding.vglog").stat()
    assert copy.st_size == LoggedStore.files(bundle)["rounding.vglog"] > 2**21 > 512 * copy.st_blocks


def test_a_copy_that_does_not_fit_on_the_disk_leaves_no_part(bundle: Bundle, tmp_path: Path) -> None:
    train_run(bundle, tmp_path / "trainer")
    copy = tmp_path / "own" / "rounding.vglog"
    copy.parent.mkdir()
    copy.symlink_to("/dev/full")
    with pytest.raises(StoreError, match="No space left on device; free space"):
        PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    assert not copy.is_symlink()


def test_logs_of_two_trainers_in_one_store(bundle: Bundle, tmp_path: Path) -> None:
    """Two auditors that share a folder do not write over each other's copies."""
    train_run(bundle, tmp_path / "first")
    train_run(
        bundle, tmp_path / "second", lambda k: k.strike(1, operator_called(bundle, "hidden"), lambda *_: [3], True)
    )
    save_bundle(bundle, tmp_path / "bundle")
    seats = [
        AgentConfig("", "", tmp_path / "bundle", tmp_path / "store", log=tmp_path / n) for n in ("first", "second")
    ]
    first, second = (LocalRun(seat, "cpu", Reporter(json_lines=True)).published for seat in seats)
    assert first.committed(1) and second.committed(1) and first.run_root != second.run_root


@pytest.mark.parametrize("wrong", ["a step is missing", "other entries", "an early end"])
def test_an_auditor_waits_for_the_committed_log(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    """An rsync in progress, or a trainer that tries to end its auditor: all roots are published."""
    honest = train_run(bundle, tmp_path / "trainer")
    operator = operator_called(bundle, "hidden")
    published = shutil.copytree(tmp_path / "trainer", tmp_path / "published")
    if wrong == "other entries":
        train_run(bundle, tmp_path / "other", lambda k: k.strike(1, operator, lambda *_: [3], True))
        shutil.copy(tmp_path / "other" / "rounding.vglog", published)
    elif wrong == "a step is missing":
        LoggedStore(published, bundle).log.keep(2)
    else:
        write_header(published, bundle, Divergence(1, 0, 0))
    mend = partial(shutil.copytree, tmp_path / "trainer", published, dirs_exist_ok=True)
    monkeypatch.setattr(Retry, "wait", lambda _: mend())
    save_bundle(bundle, tmp_path / "bundle")
    seat = AgentConfig("", "", tmp_path / "bundle", tmp_path / "store", log=published)
    run = LocalRun(seat, "cpu", Reporter(json_lines=True))
    run.run()
    assert f"the log in {published} cannot be followed yet: " in capsys.readouterr().out
    assert run.store.roots == honest.store.roots and run.published.log_roots == honest.logs


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_log_that_ends_too_early_is_not_followed(bundle: Bundle, tmp_path: Path, steps: int) -> None:
    """A run by half a log would differ from an honest claim: its auditor would lose its bond."""
    train_run(bundle, tmp_path / "trainer").store.log.keep(steps)
    with pytest.raises(Abstain, match=f"ends after step {steps}: the entries of step {steps + 1} are missing"):
        audit_run(bundle, tmp_path / "trainer", tmp_path / "auditor")


def test_a_log_without_its_last_root_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """The root of the interval in which a run stopped is missing."""
    run = train_run(bundle, tmp_path / "trainer")
    write_header(tmp_path / "trainer", bundle, Divergence(3, 0, 0))
    (tmp_path / "trainer" / "logs.bin").write_bytes(run.logs[0])
    log = PublishedLog(tmp_path / "trainer", tmp_path / "own", bundle)
    assert log.partial_root is None and log.log_mismatch(log.run_root, run.logs[1])


def test_an_unclaimable_divergence_is_explained(bundle: Bundle) -> None:
    log = bundle.log
    assert off_chain(bundle) == ""
    few = replace(bundle, log=log.model_copy(update={"bits": 29}))
    assert "the contract cannot compute exp, log with 29 bits" in off_chain(few)
    narrow = replace(bundle, log=log.model_copy(update={"windows": (1.0, *log.windows[1:])}))
    assert "order [log] thresholds = 'proven'" in off_chain(narrow)

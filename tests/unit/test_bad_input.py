"""What people do to runs and their folders: each ends in one sentence that says what is wrong, never in a traceback or
a false verdict."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from job_files import write
from safetensors.torch import load_file, save_file

import vgame.runs.store
from vgame.cli.runs import audit_offline, locate, ranges, train_offline
from vgame.errors import BundleError, JobFileError, StoreError, VgameError
from vgame.job.bundle import differences, load_bundle, save_bundle
from vgame.job.file import read_job_file
from vgame.program.file import load_program
from vgame.runs.folder import executor_of, open_run
from vgame.runs.local import prepare_run
from vgame.runs.prepare import prepare
from vgame.runs.store import Divergence, Store
from vgame.runs.training import train
from vgame.system.progress import Reporter

QUIET = Reporter(json_lines=True)
STEPS, INTERVAL = 6, 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train_offline(write(folder / "job.toml"), folder / "run", "default", 1, QUIET)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def begun(run: Path, tmp_path: Path) -> Path:
    """The same run when it has made one checkpoint of three, and a half."""
    roots, losses = run / "roots.bin", run / "losses.bin"
    roots.write_bytes(roots.read_bytes()[:32])
    losses.write_bytes(losses.read_bytes()[:20])  # the next two steps' losses are there, their root is not yet
    for step in (4, 6):
        (run / f"states/{step:010d}.safetensors").unlink()
    return run


def audit(run: Path, segment: str | None = None, sample: float | None = None, seed: int = 1) -> bool:
    return audit_offline(run, "default", segment, sample, seed, QUIET)


def told(capsys: pytest.CaptureFixture[str], event: str) -> dict:
    """The last event of that name."""
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return [line for line in lines if line["event"] == event][-1]


def sentence(capsys: pytest.CaptureFixture[str], run: Path, **chosen) -> str:
    """What a person reads at the end of an audit."""
    capsys.readouterr()
    audit_offline(run, "default", chosen.get("segment"), chosen.get("sample"), 1, Reporter())
    return capsys.readouterr().out.strip().splitlines()[-1]


# ---- weights that are not those of the run ----


def weights(run: Path, step: int) -> Path:
    return run / f"states/{step:010d}.safetensors"


def key_of(state: dict[str, torch.Tensor], name: str) -> str:
    """What the file of a state calls a tensor."""
    (key,) = (key for key in state if key.endswith(f" {name}"))
    return key


def replace_weights(run: Path, step: int, word: int = 0) -> None:
    """Another valid file: one weight is another."""
    state = load_file(weights(run, step))
    state[key_of(state, "conv1.bias")].view(torch.int32)[word] ^= 1
    save_file(state, weights(run, step))


def truncate(run: Path, step: int) -> None:
    weights(run, step).write_bytes(weights(run, step).read_bytes()[:-8])


@pytest.mark.parametrize("chosen", [{}, {"segment": "1..1"}, {"sample": 0.01}])
def test_an_audit_reads_the_final_weights(chosen: dict, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(run, **chosen)
    replace_weights(run, 6)
    assert not audit(run, **chosen)
    assert told(capsys, "audited")["differs"] == 3
    assert sentence(capsys, run, **chosen).startswith("NO MATCH at checkpoint 3: committed ")
    truncate(run, 6)
    with pytest.raises(StoreError, match=r"checkpoint 3 is damaged: .*0000000006\.safetensors cannot be read"):
        audit(run, **chosen)
    weights(run, 6).unlink()
    with pytest.raises(StoreError, match="checkpoint 3 is damaged"):
        audit(run, **chosen)


def test_an_audit_reads_every_kept_state_in_its_scope(run: Path) -> None:
    replace_weights(run, 2)
    assert audit(run, "3..3")
    assert not audit(run, "2..2")  # it would start there
    assert not audit(run)
    weights(run, 2).unlink()  # not kept: nothing to compare
    assert audit(run)


def test_locate_reads_the_kept_states(trained: Path, run: Path) -> None:
    assert locate(trained, run, "default", QUIET) is None
    replace_weights(run, 4, 5)
    for first, second, place in ((trained, run, "second"), (run, trained, "first")):
        found = locate(first, second, "default", QUIET)
        assert found is not None
        assert (found.step, found.tensor, found.element) == (4, "conv1.bias", 5)
        assert int(found.first, 16) ^ int(found.second, 16) == 1
        assert found.note == f"the file of checkpoint 2 of the {place} run does not hold what that run committed"
        state = load_file(weights(run, 4))
        stored = state[key_of(state, "conv1.bias")].view(torch.int32)[5].item() & 0xFFFFFFFF
        assert int(found.first if place == "first" else found.second, 16) == stored
    shutil.copy(weights(trained, 4), weights(run, 4))
    truncate(run, 6)
    with pytest.raises(StoreError, match="checkpoint 3 is damaged"):
        locate(run, run, "default", QUIET)


def test_swapped_names_and_tensors_too_many_are_refused(run: Path) -> None:
    """They passed as MATCH, and whoever loaded the weights by name got them in the wrong layers."""
    state = load_file(weights(run, 6))
    one, other = (key_of(state, name) for name in ("conv1.bias", "conv2.bias"))
    names = {one: one.replace("conv1", "conv2"), other: other.replace("conv2", "conv1")}
    save_file({names.get(key, key): t for key, t in state.items()}, weights(run, 6))
    with pytest.raises(StoreError, match=r"checkpoint 3 is damaged: .* conv1\.bias should be .* found nothing"):
        audit(run)
    save_file(state | {"0099 backdoor": torch.zeros(3)}, weights(run, 6))
    with pytest.raises(StoreError, match="holds '0099 backdoor', which is no tensor of the job"):
        audit(run)


def test_nothing_is_committed_that_cannot_be_read_back(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roots would be right, and the trainer could not answer for them."""

    def damaged(path: Path, data: bytes) -> None:
        whole(path, data[:-1] + bytes([data[-1] ^ 1]) if path.suffix == ".safetensors" else data)

    whole, roots = vgame.runs.store.write_atomic, (begun / "roots.bin").read_bytes()
    store = Store(begun, load_bundle(begun / "job"))
    with monkeypatch.context() as patch:
        patch.setattr("vgame.runs.store.write_atomic", damaged)
        with pytest.raises(StoreError, match="does not hold what was written: its root is"):
            train(store, executor_of(store.bundle, "cpu"))
    assert (begun / "roots.bin").read_bytes() == roots
    store.release()
    train_offline(begun / "job", begun, "default", 1, QUIET)
    assert audit(begun)


# ---- a folder that holds another job ----


def test_a_run_goes_on_with_its_own_job_only(run: Path, trained: Path, tmp_path: Path) -> None:
    same, other = write(tmp_path / "same.toml"), write(tmp_path / "other.toml", seed="2", schedule='lr = "0.2"')
    save_bundle(prepare(read_job_file(other)), tmp_path / "bundle")
    for source in (same, trained / "job", run / "job"):
        assert prepare_run(source, run).identity == load_bundle(trained / "job").identity
    for source in (other, tmp_path / "bundle"):
        with pytest.raises(StoreError, match=r"holds another job \(other scalars, seed\); choose another folder"):
            train_offline(source, run, "default", 1, QUIET)


def test_what_differs_is_all_that_the_identity_covers(trained: Path) -> None:
    from dataclasses import replace

    bundle = load_bundle(trained / "job")
    flipped = [bundle.state[0] + 1, *bundle.state[1:]]
    pixels = [bundle.data[0] * 0.5, *bundle.data[1:]]
    for name, other in (
        ("seed", replace(bundle, seed=9)),
        ("steps", replace(bundle, steps=5)),
        ("interval", replace(bundle, interval=3)),
        ("mode", replace(bundle, mode="nearest")),
        ("initial state", replace(bundle, state=tuple(flipped))),
        ("data", replace(bundle, data=tuple(pixels))),
        ("scalars", replace(bundle, scalars=bundle.scalars * 2)),
    ):
        assert differences(bundle, other) == [name] and other.identity != bundle.identity
    assert differences(bundle, replace(bundle, depth=3)) == []


def test_a_logged_job_with_measured_windows_goes_on(tmp_path: Path) -> None:
    """Without measuring them again, which another machine would do otherwise."""
    job = write(tmp_path / "job.toml", schedule='lr = "0.1"\n[log]\nbits = 32\nthresholds = "proven"')
    text = job.read_text().replace("seed = 1", 'seed = 1\nmode = "logged"')
    job.write_text(text)
    held = prepare_run(job, tmp_path / "run")
    measured = (held.log.windows[0] / 2, *held.log.windows[1:])
    spec = tmp_path / "run/job/spec.json"
    fields = json.loads(spec.read_text())
    spec.write_text(json.dumps(fields | {"log": fields["log"] | {"windows": measured}}))
    with pytest.raises(StoreError, match=r"holds another job \(other log\)"):
        prepare_run(job, tmp_path / "run")
    job.write_text(text.replace("proven", "adaptive"))
    assert prepare_run(job, tmp_path / "run").log.windows == measured
    job.write_text(text.replace("proven", "adaptive").replace("bits = 32", "bits = 30"))
    with pytest.raises(StoreError, match=r"holds another job \(other log\)"):
        prepare_run(job, tmp_path / "run")


def test_locate_says_in_what_two_jobs_differ(trained: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "job.toml", seed="3")
    train_offline(other, tmp_path / "run", "default", 1, QUIET)
    with pytest.raises(VgameError, match=r"of different jobs \(other seed\)"):
        locate(trained, tmp_path / "run", "default", QUIET)


# ---- runs in progress, parts of runs, runs that diverged ----


def test_a_run_in_progress_matches_so_far(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(begun)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[-1]["match"], lines[-1]["complete"], lines[-1]["checked"]) == (True, False, [1])
    assert {line["total"] for line in lines if line["event"] == "progress"} == {2}  # no step beyond what is stored
    assert sentence(capsys, begun).startswith("MATCH so far: 1 of 3 checkpoints: theirs ")
    roots = begun / "roots.bin"
    roots.write_bytes(bytes(32))
    weights(begun, 2).unlink()
    with pytest.raises(StoreError, match="checkpoint 1 is damaged"):
        audit(begun)


def test_who_reads_a_run_in_progress_changes_nothing(begun: Path, trained: Path) -> None:
    (begun / "roots.bin").write_bytes((begun / "roots.bin").read_bytes() + b"half")
    before = {name: (begun / name).read_bytes() for name in ("roots.bin", "losses.bin")}
    store = open_run(begun, writable=True)
    assert (len(store.roots), len(store.losses())) == (1, 2)
    assert {name: (begun / name).read_bytes() for name in before} == before
    train(store, executor_of(store.bundle, "cpu"))
    for name in before:
        assert (begun / name).read_bytes() == (trained / name).read_bytes()


def test_a_fork_that_was_killed_is_forked_again(trained: Path, tmp_path: Path) -> None:
    store = open_run(trained)
    store.fork(tmp_path / "fork", 2)
    (tmp_path / "fork/roots.bin").write_bytes(b"half")  # all losses, not a single root
    again = store.fork(tmp_path / "fork", 2)
    assert (again.roots, again.losses().tolist()) == (store.roots[:2], store.losses()[:4].tolist())
    assert (tmp_path / "fork/roots.bin").read_bytes() == b"".join(store.roots[:2])
    assert (tmp_path / "fork/losses.bin").stat().st_size == 16


def test_what_was_checked_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence(capsys, run, segment="2..3").startswith("MATCH of 2 of 3 checkpoints (2..3 only): theirs ")
    assert sentence(capsys, run, sample=1.0).startswith("MATCH of 3 of 3 checkpoints (1..3): theirs ")
    assert sentence(capsys, run).startswith("MATCH: theirs ")
    assert ranges([2, 5, 6, 7, 9]) == "2, 5..7, 9"
    assert ranges(range(1, 99, 2)).endswith(" ...")


def test_segment_or_sample(run: Path) -> None:
    with pytest.raises(VgameError, match=r"--segment and --sample were both given"):
        audit(run, "1..2", 0.5)


def diverged(run: Path, step: int) -> Path:
    """A run that says so at a step, and holds what came before."""
    store = open_run(run, writable=True)
    store.roots = store.roots[: (step - 1) // INTERVAL]
    (run / "roots.bin").write_bytes(b"".join(store.roots))
    store.diverged(Divergence(step, 0, 0))
    return run


def test_no_part_of_a_run_that_diverged_at_once(run: Path) -> None:
    diverged(run, 1)
    for segment, sample in ((None, 0.5), ("1..1", None)):
        with pytest.raises(VgameError, match="diverged before its first checkpoint"):
            audit(run, segment, sample)


def test_a_divergence_that_is_none_is_found_at_its_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diverged(run, 3)
    assert audit(run, "1..1")
    assert "that it diverged was not checked" in sentence(capsys, run, segment="1..1")
    assert not audit(run)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["differs"] == 2 and {line["total"] for line in lines if line["event"] == "progress"} == {3}


@pytest.mark.parametrize(("stops", "step"), [((3, None), 3), ((None, 4), 4), ((5, 3), 3), ((3, 4), 3)])
def test_locate_names_a_divergence_that_only_one_run_has(
    stops: tuple, step: int, trained: Path, tmp_path: Path
) -> None:
    runs = [shutil.copytree(trained, tmp_path / name) for name in ("first", "second")]
    for run, stop in zip(runs, stops, strict=True):
        if stop:
            diverged(run, stop)
    found = locate(*runs, "default", QUIET)
    which = stops.index(step)
    assert found is not None and (found.step, found.element, (found.first, found.second)[which]) == (
        step,
        0,
        "not finite",
    )
    assert found.note.startswith(
        f"only the {('first', 'second')[which]} run says that it diverged there; re-execution gives 0x"
    )
    assert found.operator == load_bundle(trained / "job").program.operator_name(0)


def test_locate_takes_a_run_in_progress_for_what_it_is(begun: Path, trained: Path, tmp_path: Path) -> None:
    other = diverged(shutil.copytree(trained, tmp_path / "other"), 3)
    assert locate(begun, other, "default", QUIET) is None  # one has not come to where the other diverged
    assert locate(other, other, "default", QUIET) is None


def test_a_last_state_that_is_gone_is_made_again(run: Path, trained: Path) -> None:
    for step in (4, 6):
        weights(run, step).unlink()
    train_offline(run / "job", run, "default", 1, QUIET)
    assert weights(run, 6).read_bytes() == weights(trained, 6).read_bytes() and audit(run)


def test_another_root_in_a_mode_that_does_not_replicate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path / "job.toml")
    job.write_text(job.read_text().replace("seed = 1", 'seed = 1\nmode = "fp32"'))
    train_offline(job, tmp_path / "run", "default", 1, QUIET)
    roots = tmp_path / "run/roots.bin"
    roots.write_bytes(bytes(32) + roots.read_bytes()[32:])
    for file in (tmp_path / "run/states").glob("*2.safetensors"):
        file.unlink()
    said = sentence(capsys, tmp_path / "run")
    assert said.startswith("NO MATCH") and said.endswith(
        "in mode 'fp32' an honest run on another device may differ too"
    )


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"identity": None},
        {"divergence": {"step": 1, "operator": 0, "element": 0, "colour": 3}},
        {"divergence": [1]},
        {"divergence": {"step": 7, "operator": 0, "element": 0}},
        {"divergence": {"step": "1", "operator": 0, "element": 0}},
        {"divergence": {"step": 1, "operator": 10**6, "element": 0}},
        {"divergence": {"step": 1, "operator": 0, "element": 2**30}},
    ],
)
def test_a_damaged_header(header: object, run: Path) -> None:
    path = run / "run.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | header if isinstance(header, dict) else header))
    with pytest.raises(StoreError, match=r"is damaged|holds another run") as caught:
        open_run(run)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/run cannot be used for a run|states cannot be used for a run"):
        Store(tmp_path / "file" / "run", load_bundle(trained / "job"))
    (tmp_path / "roots.bin").mkdir()
    with pytest.raises(StoreError, match=r"roots\.bin cannot be used for a run"):
        Store(tmp_path, load_bundle(trained / "job"))


def test_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"nowhere is not there; a job file .* or the folder of a bundle"):
        train_offline(tmp_path / "nowhere", tmp_path / "run", "default", 1, QUIET)


@pytest.mark.parametrize("damage", [lambda s: [1, 2], lambda s: s | {"terms": 3}, lambda s: {}, lambda s: "text"])
def test_a_damaged_spec(damage: Callable, run: Path) -> None:
    path = run / "job/spec.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(BundleError) as caught:
        load_bundle(run / "job")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0}, {"steps": 2**24 + 1}, {"steps": True}, {"interval": 0}, {"interval": 2**32}, {"depth": 0},
        {"depth": 9}, {"seed": 2**64}, {"seed": -1}, {"mode": [[]]}, {"mode": {}},
    ],
)  # fmt: skip
def test_a_spec_with_numbers_that_no_job_has(wrong: dict, run: Path) -> None:
    """Before anything is computed from them."""
    path = run / "job/spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(BundleError, match="is not a job spec of this version") as caught:
        load_bundle(run / "job")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["spec.json", "program.vgp", "data.safetensors", "../run.json", "../roots.bin"])
@pytest.mark.parametrize("what", ["device", "pipe", "folder", "nesting", "digits"])
@pytest.mark.usefixtures("calls_of_an_agent")
def test_a_file_of_a_bundle_that_is_none(name: str, what: str, run: Path) -> None:
    if name == "../roots.bin" and what in ("nesting", "digits"):
        return  # as good as any
    path = run / "job" / name
    path.unlink()
    match what:
        case "device":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "nesting":
            path.write_text("[" * 10**6)
        case "digits":
            path.write_text('{"seed": ' + "9" * 10**5 + "}")
    with pytest.raises(
        VgameError, match=r"cannot be read|is damaged|is not a vgame program file|cannot be used"
    ) as caught:
        open_run(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("segment", ["²..3", "1..²", "0..1", "1..4", "2..1", "", "1..", "1" * 5000 + "..2", "1..2..3"])
def test_a_segment_that_is_none(segment: str, run: Path) -> None:
    with pytest.raises(VgameError, match=r"two checkpoints I\.\.J with 1 <= I <= J <= 3 are expected"):
        audit(run, segment)


# ---- files of strangers are only read ----


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("logged")
    job = write(folder / "job.toml", schedule='lr = "0.1"\n[log]\nbits = 32\nthresholds = "proven"')
    job.write_text(job.read_text().replace("seed = 1", 'seed = 1\nmode = "logged"'))
    train_offline(job, folder / "run", "default", 1, QUIET)
    return folder / "run"


@pytest.mark.parametrize("what", ["missing", "link", "dangling", "pipe", "short", "sparse"])
@pytest.mark.usefixtures("calls_of_an_agent")
def test_an_audit_writes_nothing_into_a_log(what: str, logged: Path, tmp_path: Path) -> None:
    """It made a missing log, through a link to anywhere: as root a disk would have been overwritten; a pipe was read
    for ever."""
    run, mine = Path(shutil.copytree(logged, tmp_path / "run")), tmp_path / "mine"
    log = run / "rounding.vglog"
    mine.write_bytes(b"precious")
    match what:
        case "short":
            os.truncate(log, 7)
        case "sparse":
            os.truncate(log, 44)
            with open(log, "ab") as file:
                file.write(struct.pack("<II", 1, 2**32 - 1))
            os.truncate(log, 2**33)
        case _:
            log.unlink()
    if what == "pipe":
        os.mkfifo(log)
    if what in ("link", "dangling"):
        log.symlink_to(mine if what == "link" else tmp_path / "nothing")
    before = contents(tmp_path)
    with pytest.raises(VgameError, match=r"cannot be read|ends at byte 7, 44|a step has at most"):
        audit(run)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["run.json", "roots.bin", "losses.bin", "states/0000000006.safetensors"])
def test_an_audit_of_a_run_without_a_file_makes_none(name: str, run: Path, tmp_path: Path) -> None:
    (run / name).unlink()
    before = contents(run)
    with contextlib.suppress(VgameError):
        audit(run)
    assert contents(run) == before
    (run / name).symlink_to(tmp_path / "nothing")
    with contextlib.suppress(VgameError):
        audit(run)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["roots.bin", "losses.bin", "checks.bin", "lock"])
def test_who_resumes_a_run_of_somebody_else_writes_through_no_link(name: str, begun: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    if name != "lock":
        (begun / name).rename(mine)
    (begun / name).unlink(missing_ok=True)
    (begun / name).symlink_to(mine)
    before = mine.read_bytes() if mine.exists() else None
    with contextlib.suppress(VgameError):
        train_offline(begun / "job", begun, "default", 1, QUIET)
    assert (mine.read_bytes() if mine.exists() else None) == before


def test_a_key_that_stands_twice(run: Path) -> None:
    """Readers would take different ones."""
    path = run / "job/spec.json"
    path.write_text('{"seed": 2, ' + path.read_text().lstrip("{"))
    with pytest.raises(BundleError, match="the key 'seed' stands in it twice"):
        open_run(run)


# ---- what else an audit compares ----


@pytest.mark.parametrize("chosen", [{}, {"segment": "2..2"}])
def test_a_recorded_loss_that_is_another_one(chosen: dict, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The curve that a trainer shows is audited like its weights."""
    path = run / "losses.bin"
    losses = bytearray(path.read_bytes())
    losses[4 * 2] ^= 1
    path.write_bytes(losses)
    assert not audit(run, **chosen)
    found = told(capsys, "audited")
    assert (found["match"], found["step"], found["differs"]) == (False, 3, 2) and found["theirs"] != found["mine"]
    assert sentence(capsys, run, **chosen).startswith("NO MATCH at step 3: the recorded loss is another one: theirs ")
    assert audit(run, "1..1")
    path.write_bytes(losses[:12])
    assert not audit(run, "3..3") and told(capsys, "audited")["theirs"] == "missing"


def test_a_checkpoint_that_differs_is_told_by_its_own_root(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The roots of the whole runs stood there."""
    honest = open_run(run).roots
    wrong = bytes([honest[1][0] ^ 1]) + honest[1][1:]
    weights(run, 4).unlink()
    (run / "roots.bin").write_bytes(honest[0] + wrong + honest[2])
    assert not audit(run)
    found = told(capsys, "audited")
    assert (found["differs"], found["theirs"], found["mine"]) == (2, wrong.hex(), honest[1].hex())


def swap_names(job: Path) -> None:
    """Two layers of one shape change names in a bundle, its stated label root too: every other root stays."""
    program, folder = load_program(job / "program.vgp"), job
    names = {"conv1.bias": "conv2.bias", "conv2.bias": "conv1.bias"}
    first, second = (next(l for l in program.labels.state if l.name == name) for name in names)
    state = [replace(l, name=names.get(l.name, l.name)) for l in program.labels.state]
    assert first != second
    labels = replace(program.labels, state=tuple(state))
    bundle = load_bundle(folder)
    save_bundle(replace(bundle, program=replace(program, labels=labels)), folder)


def test_names_are_compared_with_the_order(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    order = shutil.copytree(trained / "job", tmp_path / "order")
    assert audit_offline(run, "default", None, None, 1, QUIET, order)
    bundle = load_bundle(order)
    said = told(capsys, "audited_job")
    roots = (bundle.identity, bundle.data_root, bundle.initial_root, bundle.program.labels.root)
    assert tuple(said[what] for what in ("job", "data", "initial_state", "names")) == tuple(r.hex() for r in roots)
    swap_names(run / "job")
    assert load_bundle(run / "job").identity == bundle.identity  # no root of the order tells
    with pytest.raises(StoreError, match="holds a run whose tensors have other names"):
        audit(run)
    (run / "run.json").write_text((run / "run.json").read_text().replace(
        bundle.program.labels.root.hex(), load_bundle(run / "job").program.labels.root.hex()
    ))  # fmt: skip
    with pytest.raises(StoreError, match=r"is not a run of the order in .*: other names$"):
        audit_offline(run, "default", None, None, 1, QUIET, order)
    with pytest.raises(StoreError, match=r"holds another job \(other names\)"):
        prepare_run(order, run)


def test_names_that_are_not_those_that_the_order_states(run: Path) -> None:
    spec = (run / "job/spec.json").read_text()
    swap_names(run / "job")
    (run / "job/spec.json").write_text(spec)
    with pytest.raises(BundleError, match="the label root of the files is"):
        load_bundle(run / "job")

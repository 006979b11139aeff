"""Damaged or untrusted files of a bundle and a run: one sentence each, no writes through links, names compared."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from audited_runs import renew_checks
from job_files import write
from runs_at_hand import QUIET, audit, last_event, sentence, weights

from vgame.cli.runs import audit_offline, train_offline
from vgame.errors import BundleError, JobFileError, StoreError, VgameError
from vgame.job.bundle import load_bundle, save_bundle
from vgame.program.file import load_program
from vgame.program.program import TensorLabel
from vgame.program.tensor_file import read_tensors
from vgame.runs.folder import open_run
from vgame.runs.local import prepare_run
from vgame.runs.store import Store


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


def test_a_tensor_larger_than_memory(tmp_path: Path) -> None:
    """A sparse file of four kilobytes with the size of a terabyte."""
    labels, path = [TensorLabel("x", (2**19, 2**19))], tmp_path / "huge.safetensors"
    header = json.dumps({"0000 x": {"dtype": "F32", "shape": [2**19, 2**19], "data_offsets": [0, 2**40]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**40)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**39, hard))  # some systems promise any memory
    try:
        with pytest.raises(BundleError, match=r"cannot be read as a safetensors file: .*allocate"):
            read_tensors(path, labels)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_folder_that_cannot_be_created(trained: Path, tmp_path: Path) -> None:
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
def test_a_spec_with_impossible_numbers(wrong: dict, run: Path) -> None:
    """Refused before any computation with them."""
    path = run / "job/spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(BundleError, match="is not a job spec of this version") as caught:
        load_bundle(run / "job")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["spec.json", "program.vgp", "data.safetensors", "../run.json", "../roots.bin"])
@pytest.mark.parametrize("what", ["device", "pipe", "folder", "nesting", "digits"])
def test_an_unreadable_file_of_a_bundle(name: str, what: str, run: Path) -> None:
    if name == "../roots.bin" and what in ("nesting", "digits"):
        return  # any bytes are valid roots
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
def test_an_invalid_segment(segment: str, run: Path) -> None:
    with pytest.raises(VgameError, match=r"two checkpoints I\.\.J with 1 <= I <= J <= 3 are expected"):
        audit(run, segment)


# ---- untrusted files are only read ----


def contents(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    """The first megabyte of each file, and its size: one has a hole of eight gigabytes."""

    def start(path: Path) -> tuple[bytes, int]:
        with open(path, "rb") as file:
            return file.read(2**20), os.fstat(file.fileno()).st_size

    return {str(p.relative_to(folder)): start(p) if p.is_file() else None for p in folder.rglob("*")}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    folder = tmp_path_factory.mktemp("logged")
    job = write(folder / "job.toml", schedule='lr = "0.1"\n[log]\nbits = 32\nthresholds = "proven"')
    job.write_text(job.read_text().replace("seed = 1", 'seed = 1\nmode = "logged"'))
    train_offline(job, folder / "run", "default", 1, QUIET)
    return folder / "run"


@pytest.mark.parametrize("what", ["missing", "link", "dangling", "pipe", "short", "sparse"])
def test_an_audit_writes_nothing_into_a_log(what: str, logged: Path, tmp_path: Path) -> None:
    """It creates no missing log, follows no link and reads no pipe."""
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
def test_an_audit_creates_no_missing_file(name: str, run: Path, tmp_path: Path) -> None:
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
def test_resuming_an_untrusted_run_writes_through_no_link(name: str, begun: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    if name != "lock":
        (begun / name).rename(mine)
    (begun / name).unlink(missing_ok=True)
    (begun / name).symlink_to(mine)
    before = mine.read_bytes() if mine.exists() else None
    with contextlib.suppress(VgameError):
        train_offline(begun / "job", begun, "default", 1, QUIET)
    assert (mine.read_bytes() if mine.exists() else None) == before


@pytest.mark.parametrize("name", ["states", "job"])
def test_resuming_deletes_no_target_of_a_link(name: str, begun: Path, tmp_path: Path) -> None:
    mine = (begun / name).rename(tmp_path / "mine")
    (begun / name).symlink_to(mine)
    for file in ("0000000002.safetensors", ".dead.half"):
        (mine / file).touch()
    before = sorted(mine.iterdir())
    with pytest.raises(VgameError, match=f"{name} cannot be used for a run: it is a link; move the folder that"):
        train_offline(begun / "job", begun, "default", 2, QUIET)
    assert sorted(mine.iterdir()) == before


@pytest.mark.parametrize("chosen", [{}, {"segment": "4..4"}, {"sample": 1.0}, {"segment": "1..1"}])
def test_an_additional_root(chosen: dict, run: Path) -> None:
    with open(run / "roots.bin", "ab") as roots:
        roots.write(roots.name.encode().ljust(32)[:32])
    renew_checks(run)
    with pytest.raises(StoreError, match="holds 4 checkpoints, its order has 3"):
        audit(run, **chosen)


def test_a_duplicate_key(run: Path) -> None:
    """Two readers could use different values."""
    path = run / "job/spec.json"
    path.write_text('{"seed": 2, ' + path.read_text().lstrip("{"))
    with pytest.raises(BundleError, match="the key 'seed' stands in it twice"):
        open_run(run)


# ---- further comparisons of an audit ----


@pytest.mark.parametrize("chosen", [{}, {"segment": "2..2"}])
def test_a_wrong_recorded_loss(chosen: dict, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trainer's loss curve is audited like its weights."""
    path = run / "losses.bin"
    losses = bytearray(path.read_bytes())
    losses[4 * 2] ^= 1
    path.write_bytes(losses)
    assert not audit(run, **chosen)
    found = last_event(capsys, "audited")
    assert (found["match"], found["step"], found["differs"]) == (False, 3, 2) and found["theirs"] != found["mine"]
    assert sentence(capsys, run, **chosen).startswith("NO MATCH at step 3: the recorded loss differs: theirs ")
    assert audit(run, "1..1")
    path.write_bytes(losses[:12])
    assert not audit(run, "3..3") and last_event(capsys, "audited")["theirs"] == "missing"


def test_a_different_checkpoint_is_reported_with_its_own_root(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not with the roots of the whole runs."""
    honest = open_run(run).roots
    wrong = bytes([honest[1][0] ^ 1]) + honest[1][1:]
    weights(run, 4).unlink()
    (run / "roots.bin").write_bytes(honest[0] + wrong + honest[2])
    assert not audit(run)
    found = last_event(capsys, "audited")
    assert (found["differs"], found["theirs"], found["mine"]) == (2, wrong.hex(), honest[1].hex())


def swap_names(job: Path) -> None:
    """Exchange the names of two layers of one shape in a bundle, and its label root; every other root stays."""
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
    output = last_event(capsys, "audited_job")
    roots = (bundle.identity, bundle.data_root, bundle.initial_root, bundle.program.labels.root)
    assert tuple(output[what] for what in ("job", "data", "initial_state", "names")) == tuple(r.hex() for r in roots)
    swap_names(run / "job")
    assert load_bundle(run / "job").identity == bundle.identity  # no root of the order shows it
    with pytest.raises(StoreError, match="holds a run whose tensors have other names"):
        audit(run)
    (run / "run.json").write_text((run / "run.json").read_text().replace(
        bundle.program.labels.root.hex(), load_bundle(run / "job").program.labels.root.hex()
    ))  # fmt: skip
    with pytest.raises(StoreError, match=r"is not a run of the order in .*: other names$"):
        audit_offline(run, "default", None, None, 1, QUIET, order)
    with pytest.raises(StoreError, match=r"holds another job \(other names\)"):
        prepare_run(order, run)


def test_names_with_another_root_than_the_orders(run: Path) -> None:
    spec = (run / "job/spec.json").read_text()
    swap_names(run / "job")
    (run / "job/spec.json").write_text(spec)
    with pytest.raises(BundleError, match="the label root of the files is"):
        load_bundle(run / "job")

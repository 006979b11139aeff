"""Misuse of runs and their folders: each case ends with one sentence about the problem, never with a traceback or a
false verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from job_files import write
from runs_at_hand import QUIET, audit, last_event, sentence, weights
from safetensors.torch import load_file, save_file

import vgame.runs.store
from vgame.cli.runs import locate, train_offline
from vgame.errors import StoreError, VgameError
from vgame.job.bundle import differences, load_bundle, save_bundle
from vgame.job.file import read_job_file
from vgame.runs.folder import executor_of
from vgame.runs.local import prepare_run
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train


def key_of(state: dict[str, torch.Tensor], name: str) -> str:
    """The key of a tensor in the file of a state."""
    (key,) = (key for key in state if key.endswith(f" {name}"))
    return key


def replace_weights(run: Path, step: int, word: int = 0) -> None:
    """Write another valid file, with one different weight."""
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
    assert last_event(capsys, "audited")["differs"] == 3
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
    assert not audit(run, "2..2")  # it would start from this state
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


def test_swapped_names_and_additional_tensors_are_refused(run: Path) -> None:
    """Otherwise weights loaded by name would be in the wrong layers."""
    state = load_file(weights(run, 6))
    one, other = (key_of(state, name) for name in ("conv1.bias", "conv2.bias"))
    names = {one: one.replace("conv1", "conv2"), other: other.replace("conv2", "conv1")}
    save_file({names.get(key, key): t for key, t in state.items()}, weights(run, 6))
    with pytest.raises(StoreError, match=r"checkpoint 3 is damaged: .* conv1\.bias should be .* found nothing"):
        audit(run)
    save_file(state | {"0099 backdoor": torch.zeros(3)}, weights(run, 6))
    with pytest.raises(StoreError, match="holds '0099 backdoor', which is not a tensor of the job"):
        audit(run)


def test_a_state_that_cannot_be_read_back_is_not_committed(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roots would be right, but the trainer could not answer disputes."""

    def damaged(path: Path, data: bytes | Iterable[bytes]) -> None:
        data = data if isinstance(data, bytes) else b"".join(data)
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


def test_a_run_is_resumed_with_its_own_job_only(run: Path, trained: Path, tmp_path: Path) -> None:
    same, other = write(tmp_path / "same.toml"), write(tmp_path / "other.toml", seed="2", schedule='lr = "0.2"')
    save_bundle(prepare(read_job_file(other)), tmp_path / "bundle")
    for source in (same, trained / "job", run / "job"):
        assert prepare_run(source, run).identity == load_bundle(trained / "job").identity
    for source in (other, tmp_path / "bundle"):
        with pytest.raises(StoreError, match=r"holds another job \(other scalars, seed\); choose another folder"):
            train_offline(source, run, "default", 1, QUIET)


def test_differences_cover_the_whole_identity(trained: Path) -> None:
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


def test_a_logged_job_with_measured_windows_is_resumed(tmp_path: Path) -> None:
    """Without a new measurement, which could differ on another machine."""
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


def test_locate_names_the_differences_of_two_jobs(trained: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "job.toml", seed="3")
    train_offline(other, tmp_path / "run", "default", 1, QUIET)
    with pytest.raises(VgameError, match=r"of different jobs \(other seed\)"):
        locate(trained, tmp_path / "run", "default", QUIET)

"""An untrusted bundle: a role copies from its folder only the files of a bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tasks import squares

import vgame
from vgame.agents.config import AgentConfig
from vgame.agents.local_run import LocalRun
from vgame.errors import StoreError
from vgame.job.bundle import load_bundle
from vgame.job.state_keys import MOST_COPIES, state_dict
from vgame.runs.local import prepare_run
from vgame.system.progress import Reporter

pytestmark = pytest.mark.usefixtures("one_thread")
HOLE = 64 * 2**20


def job(x: torch.Tensor, steps: int = 4) -> vgame.Job:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    task = vgame.Task(model, squares, torch.optim.SGD(model.parameters(), lr=0.1), {"x": x}, batch=4)
    return vgame.Job(task, steps=steps, interval=1)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Its data stays in a file."""
    np.save(tmp_path / "x.npy", torch.randn(8, 6).numpy())
    vgame.prepare(job(vgame.mapped(tmp_path / "x.npy")), validate=0).save(tmp_path / "bundle")
    return tmp_path / "bundle"


def kept(bundle: Path) -> Path:
    """The copy of the bundle that `vgame trainer` keeps."""
    run = LocalRun(AgentConfig("", "", bundle, bundle.parent / "trainer"), "cpu", Reporter())
    return run.store.folder / "job"


def test_a_role_keeps_the_bundle_byte_for_byte(bundle: Path) -> None:
    mine = kept(bundle)
    assert {p.name: p.read_bytes() for p in mine.iterdir()} == {p.name: p.read_bytes() for p in bundle.iterdir()}
    assert load_bundle(mine).identity == load_bundle(bundle).identity


def test_a_link_to_a_private_file_is_not_followed(bundle: Path) -> None:
    secret = bundle.parent / "trainer/delivery/0123456789abcdef/key"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"K" * 32)
    (bundle / "README.txt").symlink_to("../trainer/delivery/0123456789abcdef/key")
    (bundle / "data-9999.words").symlink_to(secret)
    files = [p for p in kept(bundle).iterdir() if b"K" * 32 in p.read_bytes()]
    assert files == []


def test_holes_are_not_written_out(bundle: Path) -> None:
    """In a file that no bundle has, and behind the words of the data."""
    (bundle / "more").touch()
    for name in ("more", "data-0000.words"):
        with open(bundle / name, "r+b") as file:
            file.truncate(HOLE)
    mine = kept(bundle)
    prepare_run(bundle, bundle.parent / "run")  # `vgame train`
    for folder in (mine, bundle.parent / "run/job"):
        assert sum(p.stat().st_size for p in folder.iterdir()) < 2**20
        assert load_bundle(folder).identity == load_bundle(bundle).identity


def test_a_hole_before_the_words_of_the_data_stays_a_hole(bundle: Path) -> None:
    words = bundle / "data-0000.words"
    data = words.read_bytes()[-4 * 8 * 6 :]
    with open(words, "wb") as sparse:
        sparse.seek(HOLE)
        sparse.write(data)
    (bundle / "data.json").write_text(json.dumps({"files": {"0": [words.name, HOLE]}}))
    copy = kept(bundle) / words.name
    assert copy.stat().st_size == HOLE + len(data) and copy.stat().st_blocks * 512 < 2**20


def named(bundle: Path, copies: int) -> Path:
    """The bundle with `copies` keys for every tensor of the state."""
    held = load_bundle(bundle)
    keys = {f"{k}.{label.name}": (label.name, "bfloat16") for label in held.program.labels.state for k in range(copies)}
    replace(held, keys=keys).save(bundle.parent / "named")
    return bundle.parent / "named"


def test_keys_hold_a_few_times_the_state_at_most(bundle: Path) -> None:
    with pytest.raises(vgame.BundleError, match=r"json: its keys hold 1,155 words, 32 times the state .* 1,120"):
        load_bundle(named(bundle, MOST_COPIES + 1))
    assert len(load_bundle(named(bundle, MOST_COPIES)).keys) == 2 * MOST_COPIES


def test_a_tensor_under_several_keys_is_held_once(bundle: Path) -> None:
    held = load_bundle(named(bundle, 3))
    found = state_dict(held.keys, held.program.labels.state, held.state, slots=False)
    assert len(found) == 6 and len({tensor.data_ptr() for tensor in found.values()}) == 2


@pytest.mark.parametrize("other", ["types", "before"])
def test_a_run_begun_with_another_bundle_of_the_program_is_refused(bundle: Path, other: str) -> None:
    """No root on chain covers keys: an export from the run would hold the stranger's."""
    mine = load_bundle(bundle)
    keys = {key: (name, "bfloat16") for key, (name, _) in mine.keys.items()}
    strange = replace(mine, keys=keys) if other == "types" else replace(mine, before=10**9)
    strange.save(bundle.parent / "strange")
    assert strange.identity == mine.identity
    kept(bundle.parent / "strange")
    with pytest.raises(StoreError, match="whose tensors have other names or types"):
        kept(bundle)

"""A bundle on disk: read back bit for bit; whatever the order's roots do not fix cannot change a bit either."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vgame.errors import BundleError, ProgramError
from vgame.program.file import save_program
from vgame.spec import MODES, Bundle, JobFile, load_bundle, prepare, save_bundle


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    job = JobFile(model="vgame.tasks.digits:task", seed=1, steps=8, interval=4, schedule={"lr": "0.1"})
    folder = tmp_path_factory.mktemp("bundle")
    bundle = prepare(job)
    save_bundle(bundle, folder)
    return bundle, folder


@pytest.fixture
def copy(saved: tuple[Bundle, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "copy"))


def respell(folder: Path, **fields: object) -> None:
    path = folder / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_it_comes_back(saved: tuple[Bundle, Path]) -> None:
    bundle, folder = saved
    again = load_bundle(folder)
    assert (again.order, again.identity) == (bundle.order, bundle.identity)
    assert all(torch.equal(a, b) for a, b in zip(again.state + again.data, bundle.state + bundle.data, strict=True))


@pytest.mark.parametrize("mode", MODES[1:3])
def test_another_mode_is_another_order(saved: tuple[Bundle, Path], copy: Path, mode: str) -> None:
    """Or a client could order `correct` and hand the trainer a bundle that computes in binary32."""
    respell(copy, mode=mode)
    other = load_bundle(copy)
    assert other.order["mode"] == MODES.index(mode) != saved[0].order["mode"] == 0
    assert other.identity != saved[0].identity


def scalars_as_integers(words: torch.Tensor) -> torch.Tensor:
    return words.view(torch.int32)


def scalars_of_another_shape(words: torch.Tensor) -> torch.Tensor:
    """The same first words, one more column: other rates from step 2 on, and the same leaves."""
    return torch.cat([words.reshape(-1), torch.zeros(words.shape[0])]).reshape(words.shape[0], -1)


@pytest.mark.parametrize("change", [scalars_as_integers, scalars_of_another_shape])
def test_scalars_have_the_programs_shape_and_type(copy: Path, change) -> None:
    path = copy / "scalars.safetensors"
    save_file({"scalars": change(load_file(path)["scalars"]).contiguous()}, path)
    with pytest.raises(BundleError, match="the scalars are"):
        load_bundle(copy)


def test_scalars_must_be_there(copy: Path) -> None:
    save_file({"other": torch.zeros(3)}, copy / "scalars.safetensors")
    with pytest.raises(BundleError, match="the scalars are"):
        load_bundle(copy)


def relabel(saved: tuple[Bundle, Path], copy: Path, change) -> None:
    """The same program root and the same words, other labels."""
    program = saved[0].program
    labels = [change(label) for label in program.labels.state]
    save_program(replace(program, labels=replace(program.labels, state=tuple(labels))), copy / "program.vgp")
    path = copy / "initial.safetensors"
    tensors = load_file(path)
    for old, new in zip(program.labels.state, labels, strict=True):
        words = tensors[old.name].reshape(-1)
        size = torch.Size(new.shape).numel()
        words = torch.cat([words, words.new_zeros(size - words.numel())]).reshape(new.shape)
        tensors[old.name] = words.view(torch.int32) if new.integer and not old.integer else words
    save_file(tensors, path)


def test_labels_cannot_change_a_type(saved: tuple[Bundle, Path], copy: Path) -> None:
    relabel(saved, copy, lambda l: replace(l, integer=True) if l.name == "conv1.bias" else l)
    with pytest.raises(BundleError, match=r"initial state conv1.bias is .*int32, the program has .*float32"):
        load_bundle(copy)


def test_labels_cannot_change_a_size(saved: tuple[Bundle, Path], copy: Path) -> None:
    relabel(saved, copy, lambda l: replace(l, shape=(*l.shape[:-1], l.shape[-1] + 1)) if l.name == "conv1.bias" else l)
    with pytest.raises(BundleError, match="initial state conv1"):
        load_bundle(copy)


def test_numbers_are_whole(copy: Path) -> None:
    for field, value in (("seed", "1"), ("steps", 8.0), ("interval", True), ("mode", "exact")):
        before = (copy / "spec.json").read_text()
        respell(copy, **{field: value})
        with pytest.raises(BundleError, match="not a job spec of this version"):
            load_bundle(copy)
        (copy / "spec.json").write_text(before)


@pytest.mark.parametrize(
    "name", ["program.vgp", "initial.safetensors", "data.safetensors", "scalars.safetensors", "spec.json"]
)
def test_a_damaged_file_is_one_clear_error(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises((BundleError, ProgramError)):
        load_bundle(copy)


@pytest.mark.parametrize("name", ["initial.safetensors", "data.safetensors", "scalars.safetensors"])
def test_a_flipped_bit_is_named(copy: Path, name: str) -> None:
    path = copy / name
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BundleError, match="root of the files"):
        load_bundle(copy)

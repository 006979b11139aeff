"""A bundle on disk: read back bit for bit; content outside the order's roots cannot change a bit either."""

from __future__ import annotations

import json
import os
import shutil
import struct
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import nn

from vgame.errors import BundleError, ProgramError
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import JobFile
from vgame.program.file import save_program
from vgame.program.lower import lower_task
from vgame.program.modes import MODES
from vgame.program.program import TensorLabel
from vgame.program.schedule import Schedule
from vgame.program.tensor_file import keys, pack_tensors, read_tensors
from vgame.runs.prepare import prepare
from vgame.tasks.task import Task


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


def test_a_saved_bundle_is_read_back_bit_for_bit(saved: tuple[Bundle, Path]) -> None:
    bundle, folder = saved
    again = load_bundle(folder)
    assert (again.order, again.identity) == (bundle.order, bundle.identity)
    assert all(torch.equal(a, b) for a, b in zip(again.state + again.data, bundle.state + bundle.data, strict=True))


@pytest.mark.parametrize("mode", ("nearest", "fp32"))
def test_another_mode_is_another_order(saved: tuple[Bundle, Path], copy: Path, mode: str) -> None:
    """Otherwise a client could order `correct` and give the trainer a bundle that computes in binary32."""
    respell(copy, mode=mode)
    other = load_bundle(copy)
    assert other.order["mode"] == list(MODES).index(mode) != saved[0].order["mode"] == 0
    assert other.identity != saved[0].identity


def scalars_as_integers(words: torch.Tensor) -> torch.Tensor:
    return words.view(torch.int32)


def scalars_of_another_shape(words: torch.Tensor) -> torch.Tensor:
    """The same first words and one more column: other rates from step 2 on, with the same leaves."""
    return torch.cat([words.reshape(-1), torch.zeros(words.shape[0])]).reshape(words.shape[0], -1)


@pytest.mark.parametrize("change", [scalars_as_integers, scalars_of_another_shape])
def test_scalars_have_the_programs_shape_and_type(copy: Path, change) -> None:
    path = copy / "scalars.safetensors"
    save_file({"0000 scalars": change(load_file(path)["0000 scalars"]).contiguous()}, path)
    with pytest.raises(BundleError, match="scalars should be"):
        load_bundle(copy)


def test_missing_scalars_are_refused(copy: Path) -> None:
    save_file({"other": torch.zeros(3)}, copy / "scalars.safetensors")
    with pytest.raises(BundleError, match=r"scalars should be .* found nothing"):
        load_bundle(copy)


def relabel(saved: tuple[Bundle, Path], copy: Path, change) -> None:
    """The same program root and the same words, other labels."""
    program = saved[0].program
    labels = [change(label) for label in program.labels.state]
    save_program(replace(program, labels=replace(program.labels, state=tuple(labels))), copy / "program.vgp")
    path = copy / "initial.safetensors"
    tensors = load_file(path)
    for key, old, new in zip(keys(labels), program.labels.state, labels, strict=True):
        words = tensors[key].reshape(-1)
        size = torch.Size(new.shape).numel()
        words = torch.cat([words, words.new_zeros(size - words.numel())]).reshape(new.shape)
        tensors[key] = words.view(torch.int32) if new.integer and not old.integer else words
    save_file(tensors, path)


def test_labels_cannot_change_a_type(saved: tuple[Bundle, Path], copy: Path) -> None:
    relabel(saved, copy, lambda l: replace(l, integer=True) if l.name == "conv1.bias" else l)
    with pytest.raises(BundleError, match=r"'conv1.bias' holds integers"):
        load_bundle(copy)
    (copy / "module.json").write_text('{"keys": {}, "before": 0}')
    with pytest.raises(BundleError, match=r"initial state conv1.bias is .*int32, the program has .*float32"):
        load_bundle(copy)


def test_labels_cannot_change_a_size(saved: tuple[Bundle, Path], copy: Path) -> None:
    relabel(saved, copy, lambda l: replace(l, shape=(*l.shape[:-1], l.shape[-1] + 1)) if l.name == "conv1.bias" else l)
    with pytest.raises(BundleError, match="initial state conv1"):
        load_bundle(copy)


def test_invalid_values_of_a_spec_are_refused(copy: Path) -> None:
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


# ---- names ----


def rename_in_the_file(path: Path, old: str, new: str) -> None:
    """Other labels in a program file: the same header, so the same root."""
    raw = path.read_bytes()
    at = raw.index(b'{"data": ')
    labels = raw[at:].replace(old.encode(), new.encode())
    assert labels != raw[at:]
    path.write_bytes(raw[: at - 4] + struct.pack(">I", len(labels)) + labels)


def test_two_tensors_with_one_name_are_refused(copy: Path) -> None:
    """A checkpoint packed by name would lose one of them although all roots are right: the trainer could not answer
    disputes."""
    path, program = copy / "initial.safetensors", load_bundle(copy).program
    rename_in_the_file(copy / "program.vgp", '"conv1.bias"', '"hidden.bias"')
    named = {
        label.name.replace("conv1.bias", "hidden.bias"): t
        for label, t in zip(program.labels.state, load_file(path).values(), strict=True)
    }
    save_file(named, path)
    with pytest.raises(
        ProgramError, match=r"names of state tensors are used more than once; the first is 'hidden\.bias'"
    ):
        load_bundle(copy)


def test_a_model_that_uses_the_optimizers_names_is_refused() -> None:
    """Adam keeps `exp_avg.lin.weight` for `lin.weight`; a module `exp_avg.lin` has a weight of that name."""
    model = nn.ModuleDict({"lin": nn.Linear(3, 3), "exp_avg": nn.ModuleDict({"lin": nn.Linear(3, 3)})})
    task = Task(
        model,
        lambda m, batch: m["exp_avg"]["lin"](m["lin"](batch["x"])).square().mean(),
        torch.optim.Adam(model.parameters(), lr=1.0),
        {"x": torch.ones(8, 3)},
        batch=4,
    )
    with pytest.raises(ProgramError, match=r"the name 'exp_avg\.lin\.weight': .* rename the module"):
        lower_task(task, Schedule(lr="0.1"), 2)


def test_a_label_with_terminal_commands_is_refused(copy: Path) -> None:
    rename_in_the_file(copy / "program.vgp", '"conv1.bias"', '"\\u202econv1.bias"')
    with pytest.raises(ProgramError, match="control character"):
        load_bundle(copy)


def test_a_label_with_an_impossible_shape_is_refused(copy: Path) -> None:
    rename_in_the_file(copy / "program.vgp", '"shape": [10]', '"shape": [-2, -5]')
    with pytest.raises(ProgramError, match="a shape with a size below 0"):
        load_bundle(copy)


# ---- tensors on disk ----


def file_with(header: dict | bytes, words: bytes) -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + words


LABELS = (TensorLabel("a", (2,)), TensorLabel("b", (1, 1), integer=True))
TENSORS = (torch.tensor([1.0, 2.0]), torch.tensor([3], dtype=torch.int32))
A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "I32", "shape": [1, 1], "data_offsets": [8, 12]}
BOTH = {"0000 a": A, "0001 b": B}


def test_tensors_are_read_by_place_and_by_the_names_of_earlier_versions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    shaped = {"b": TENSORS[1].reshape(1, 1), "a": TENSORS[0]}
    for data in (
        b"".join(pack_tensors(LABELS, TENSORS)),
        save(shaped),
        file_with(BOTH, b"".join(t.numpy().tobytes() for t in TENSORS)),
    ):
        path.write_bytes(data)
        assert all(torch.equal(x, y) for x, y in zip(read_tensors(path, LABELS), TENSORS, strict=True))


def test_a_file_equals_the_librarys_byte_for_byte() -> None:
    names = ['"quoted"\\', "b\x00\x1f\x7f\n\t", "é", "\u2028 \ufeff", "\U0001f600", "", "a.b"]
    labels = [TensorLabel(n, ((), (0, 3), (2, 3))[i % 3], integer=i % 2 == 1) for i, n in enumerate(names)]
    words = [torch.arange(prod(label.shape), dtype=torch.int32) for label in labels]
    tensors = [w if label.integer else w.view(torch.float32) for w, label in zip(words, labels, strict=True)]
    shaped = {key: t.reshape(l.shape) for key, t, l in zip(keys(labels), tensors, labels, strict=True)}
    assert b"".join(pack_tensors(labels, tensors)) == save(shaped)
    assert b"".join(pack_tensors([], [])) == save({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_with(BOTH | {"0002 c": A}, bytes(12)), "'0002 c', which is not a tensor of the job"),
        (file_with({"0000 b": A, "0001 a": B}, bytes(12)), "a should be"),
        (file_with({"0000 a": B, "0001 b": A}, bytes(12)), "a should be"),
        (file_with({"0000 a": A}, bytes(8)), "b should be .* found nothing"),
        (file_with({"0000 a": A, "b": B}, bytes(12)), "b should be .* found nothing"),
        (file_with(json.dumps(BOTH).encode()[:-1] + b', "0000 a": 1}', bytes(12)), "stands in it twice"),
        (file_with(BOTH, bytes(11)), "have 11 bytes, 12 are expected"),
        (file_with(BOTH, bytes(16)), "have 16 bytes, 12 are expected"),
        (file_with(BOTH | {"0001 b": B | {"data_offsets": [4, 8]}}, bytes(12)), "stands at byte 4"),
        (file_with(BOTH | {"0001 b": B | {"data_offsets": [-4, 0]}}, bytes(12)), "stands at byte -4"),
        (file_with(BOTH | {"0001 b": B | {"data_offsets": [8.0, 12.0]}}, bytes(12)), "its entry for b is damaged"),
        (file_with(BOTH | {"0001 b": 1}, bytes(12)), "its entry for b is damaged"),
        (file_with(b"[]", b""), "not a table of tensors"),
        (struct.pack("<Q", 2**62), "its header has 4,611,686"),
        (b"", "cannot be read"),
    ],
)  # fmt: skip
def test_a_file_with_other_tensors(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BundleError, match=message):
        read_tensors(tmp_path / "file", LABELS)


def test_changes_of_a_file_after_reading_have_no_effect(tmp_path: Path) -> None:
    """Tensors are read into memory: later writes change no hashed bit, and a truncated file causes no signal."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(pack_tensors(LABELS, TENSORS)))
    read = read_tensors(path, LABELS)
    with open(path, "r+b") as file:
        file.seek(-12, 2)
        file.write(bytes(12))
    assert read[0].tolist() == [1.0, 2.0] and read[1].tolist() == [3]
    os.truncate(path, 0)
    assert read[0].tolist() == [1.0, 2.0] and read[1].tolist() == [3]


def test_a_link_is_not_followed(copy: Path) -> None:
    (copy / "data.safetensors").rename(copy / "elsewhere")
    (copy / "data.safetensors").symlink_to("elsewhere")
    with pytest.raises(BundleError, match="a file is expected, it is a link"):
        load_bundle(copy)


@pytest.mark.parametrize("version", [1, 2, None])
def test_a_bundle_of_another_version_is_refused(copy: Path, version: int | None) -> None:
    """Earlier orders had a window for rewards: their identity cannot be computed here."""
    respell(copy, version=version)
    message = f"is a bundle of version {version}, this vgame reads version 3, .* prepare the job again"
    with pytest.raises(BundleError, match=message):
        load_bundle(copy)

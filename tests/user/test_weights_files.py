"""Files of weights: one digest for the same words, and no other type, shape or key than the order's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_afterwards import Net, final_root, job, rewritten
from torch import nn

import vgame
from vgame.commit.mapped import PIECE, join_pieces, piece_root
from vgame.commit.tensor import tensor_bytes, tensor_root
from vgame.job.start import load_weights
from vgame.job.weights import check_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vgame.Run:
    return vgame.train(vgame.prepare(job()), tmp_path_factory.mktemp("runs") / "run")


AGAIN = "import sys, vgame; vgame.Run.open(sys.argv[1]).export(sys.argv[2], slots=sys.argv[3] == 'slots')"


@pytest.mark.parametrize("slots", ["weights", "slots"])
def test_an_export_has_one_digest(run: vgame.Run, tmp_path: Path, slots: str) -> None:
    """Again, in other processes, after a resumed run, from a bundle whose keys stand in another order."""
    resumed = tmp_path / "resumed"
    with pytest.raises(vgame.Cancelled):
        vgame.train(run.folder / "job", resumed, cancel=iter([False, False, False, True]).__next__)
    other = vgame.train(run.folder / "job", resumed)
    module = json.loads((resumed / "job" / "module.json").read_text())
    turned = module | {"keys": dict(reversed(module["keys"].items()))}
    (resumed / "job" / "module.json").write_text(json.dumps(turned))
    for n, exported in enumerate([run] * 5 + [other, vgame.Run.open(resumed)]):
        exported.export(tmp_path / f"{n}.safetensors", slots=slots == "slots")
    for n, folder in enumerate([run.folder, resumed], 7):
        command = [sys.executable, "-c", AGAIN, str(folder), str(tmp_path / f"{n}.safetensors"), slots]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": str(n)})
    assert len({(tmp_path / f"{n}.safetensors").read_bytes() for n in range(9)}) == 1


INTO = {
    "int32 patterns": lambda t: t["first.bias"].view(torch.int32),
    "int64 patterns": lambda t: t["first.bias"].view(torch.int32).long(),
    "another shape": lambda t: t["first.bias"].reshape(1, -1),
}


@pytest.mark.parametrize("into", INTO)
def test_the_same_words_of_another_type_or_shape_are_not_the_order(run: vgame.Run, tmp_path: Path, into: str) -> None:
    path, root = tmp_path / "model.safetensors", final_root(run)
    rewritten(run, path, lambda t: t.update({"first.bias": INTO[into](t).contiguous()}))
    with pytest.raises(
        vgame.BundleError, match=r"first.bias is \(.*\) of torch.\w+, the order's is \(\d+,\) of torch.float32"
    ):
        check_weights(path, root, run.bundle)


def test_counts_as_floating_point_numbers_are_not_the_order(run: vgame.Run, tmp_path: Path) -> None:
    key, path = "norm.num_batches_tracked", tmp_path / "model.safetensors"
    count = lambda t: t[key].to(torch.int32).view(torch.float32)  # noqa: E731
    rewritten(run, path, lambda t: t.update({key: count(t)}))
    with pytest.raises(vgame.BundleError, match=r"the order's is \(\) of torch.int64"):
        check_weights(path, final_root(run), run.bundle)


def test_a_checkpoint_of_another_type_is_not_the_order(run: vgame.Run, tmp_path: Path) -> None:
    path, state = tmp_path / "state.safetensors", load_file(run.folder / "states" / "0000000004.safetensors")
    save_file(state, path)
    assert check_weights(path, final_root(run), run.bundle)
    key = next(key for key, tensor in state.items() if tensor.is_floating_point())
    save_file(state | {key: state[key].view(torch.int32)}, path)
    with pytest.raises(vgame.BundleError, match=r"of torch.int32, the order's is .* of torch.float32"):
        check_weights(path, final_root(run), run.bundle)


def test_weights_without_the_second_key_of_a_tied_tensor(run: vgame.Run) -> None:
    """As `save_pretrained` of transformers writes them."""
    given, model = {k: t for k, t in run.state_dict().items() if k != "last.weight"}, Net()
    load_weights(model, given, "it")
    assert all(torch.equal(t, run.state_dict()[k]) for k, t in model.state_dict().items())
    model.last.weight = nn.Parameter(model.last.weight.detach().clone())
    with pytest.raises(vgame.VgameError, match=r"it has no last\.weight"):
        load_weights(model, given, "it")


def test_words_read_as_integers_are_not_accepted_as_initial_weights(run: vgame.Run, tmp_path: Path) -> None:
    path = rewritten(
        run, tmp_path / "model.safetensors", lambda t: t.update({"first.bias": t["first.bias"].view(torch.int32)})
    )
    with pytest.raises(
        vgame.VgameError,
        match=r"has integers instead of floating-point numbers, or the other way round, in first.bias",
    ):
        load_weights(Net(), load_file(path), str(path))


#: Peak memory of a check of a file whose only tensor is U8 and sparse, relative to the file.
SPARSE = """
import json, re, sys, vgame
from pathlib import Path
from vgame.job.weights import check_weights
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
path, size = Path(sys.argv[1]), 1 << 28
state = json.dumps({"state": [["a", "00" * 32]], "keys": {"a": "a"}})
head = json.dumps({"__metadata__": {"vgame": state}, "a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
with open(path, "wb") as file:
    file.write(len(head).to_bytes(8, "little") + head.encode())
    file.truncate(file.tell() + size)
before = peak()
try:
    check_weights(path, bytes(32))
except vgame.VgameError as error:
    assert "holds other words" in str(error), error
print((peak() - before) / size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a peak of memory is read from /proc")
def test_narrow_numbers_in_a_file_take_no_more_memory_than_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SPARSE, str(tmp_path / "model.safetensors")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(found.stdout) < 2


@pytest.mark.parametrize("count", [0, 1, 129, PIECE, PIECE + 1])
def test_pieces_have_the_root_of_the_tensor(count: int) -> None:
    pieces = torch.arange(count).float().split(PIECE)
    roots = [piece_root(tensor_bytes(piece), count) for piece in pieces]
    assert join_pieces(roots, count) == tensor_root(torch.arange(count).float())

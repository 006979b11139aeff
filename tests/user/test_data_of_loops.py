"""Loaders of training loops: worker processes, seeds by index, samples of several forms, classes of batches."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import vgame
from vgame.errors import DataError
from vgame.tasks.datasets import collate

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3


class Read(Dataset):
    """Gives a sample by a function of the index."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self.read, self.scale = read, 1.0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> Any:
        return self.read(i)


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def task(data: Any, loss: Callable = cross_entropy, **options: Any) -> vgame.Task:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, **options)


def prepared(data: Any, loss: Callable = cross_entropy, **options: Any) -> Any:
    return vgame.prepare(vgame.Job(task(data, loss, **options), steps=2, interval=1, seed=1), validate=20)


# ---- worker processes ----


class Scaled(Dataset):
    """Reads the number that a worker_init_fn sets."""

    scale = 1.0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return X[i] * self.scale, i % 3


def triple(worker: int) -> None:
    get_worker_info().dataset.scale = 3.0


def opened(worker: int) -> None:
    get_worker_info().dataset.scale = np.ones(1)[0]


def seeded(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


def by_worker(i: int) -> tuple[torch.Tensor, int]:
    worker = get_worker_info()
    return X[i] if worker is None else -X[i], i % 3


def test_samples_that_only_worker_processes_give_are_refused() -> None:
    with pytest.raises(DataError, match=r"Scaled gives another sample 0 in a worker process .* worker_init_fn is"):
        collate(DataLoader(Scaled(), 8, num_workers=2, worker_init_fn=triple))
    with pytest.raises(DataError, match=r"Read gives another sample 0 in a worker .* get_worker_info\(\) gives None"):
        collate(DataLoader(Read(by_worker), 8, num_workers=1))
    closed = Scaled()
    closed.scale = None
    with pytest.raises(DataError, match=r"Scaled cannot be read at 0: TypeError: .*_of_loops.py line \d+; a job"):
        collate(DataLoader(closed, 8, num_workers=1, worker_init_fn=opened))


def test_a_worker_init_fn_that_changes_no_sample_is_accepted() -> None:
    before = torch.get_rng_state()
    assert torch.equal(collate(DataLoader(Scaled(), 8, num_workers=2, worker_init_fn=seeded)).tensors["0"], X)
    assert collate(DataLoader(Scaled(), 8, worker_init_fn=triple)).order == "sequential"  # there is no worker
    assert torch.equal(torch.get_rng_state(), before)


# ---- seeds by index ----


def by_torch(i: int) -> torch.Tensor:
    torch.manual_seed(i)
    return torch.randn(6)


def by_numpy(i: int) -> torch.Tensor:
    np.random.seed(i)
    return torch.from_numpy(np.random.randn(6).astype("float32"))


def by_python(i: int) -> torch.Tensor:
    random.seed(i)
    return torch.tensor([random.random() for _ in range(6)])


@pytest.mark.parametrize("read", [by_torch, by_numpy, by_python])
def test_a_data_set_that_seeds_by_index_is_accepted_and_leaves_the_generators(read: Callable) -> None:
    loader = DataLoader(Read(lambda i: (read(i), i % 3)), 8)
    before = torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()
    collate(loader)
    assert (torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()) == before
    assert prepared(loader).validation["unchecked"] == []


def test_a_collation_that_seeds_is_accepted_if_rows_are_the_same() -> None:
    def make(samples: list) -> list[torch.Tensor]:
        torch.manual_seed(0)
        noise = torch.randn(6)
        return [torch.stack([x + noise for x, _ in samples]), torch.stack([y for _, y in samples])]

    assert len(collate(DataLoader(TensorDataset(X, Y), 8, collate_fn=make)).tensors["0"]) == 32


# ---- samples of several forms ----


def images(i: int) -> tuple[torch.Tensor, int]:
    return torch.ones(3, 8 + i // 8, 8), i % 3


def test_samples_of_several_forms_are_refused_by_one_sentence() -> None:
    with pytest.raises(DataError, match=r"sample 0 has Tensor\[3, 8, 8\], sample 8 has Tensor\[3, 9, 8\]\); give all"):
        task(DataLoader(Read(images), 8))
    with pytest.raises(DataError, match=r"sample 0 has Tensor\[3, 8, 8\], sample 1 has Tensor\[3, 9, 8\]\); give all"):
        task(DataLoader(Read(lambda i: images(8 * i)), 1))
    mixed = ConcatDataset([TensorDataset(X[:8], Y[:8]), Read(lambda i: (X[i], i % 3))])
    with pytest.raises(DataError, match=r"\(sample 0 has Tensor\[\], sample 8 has int\); give all samples one shape"):
        task(DataLoader(mixed, 8))
    with pytest.raises(DataError, match=r"collate_fn fails for 32 samples together .*RuntimeError.*_of_loops.py l"):
        task(DataLoader(Read(images), 8, collate_fn=lambda s: torch.stack([x for x, _ in s])))
    with pytest.raises(DataError, match=r"Read cannot be read at 0: KeyError: 'z', .*_of_loops.py line \d+$"):
        task(DataLoader(Read(lambda i: {"x": X[i]}["z"]), 8))
    with pytest.raises(DataError, match=r"collate_fn fails for 8 samples: KeyError: 'z', .*_of_loops.py line \d+$"):
        task(DataLoader(TensorDataset(X, Y), 8, collate_fn=lambda s: {"x": 1}["z"]))


def test_a_sized_iterable_data_set_is_refused_as_any_other() -> None:
    class Sized(IterableDataset):
        def __iter__(self):
            return iter(X)

        def __len__(self) -> int:
            return 32

    for options in ({}, {"order": "sequential"}):
        with pytest.raises(DataError, match=r"Sized has no length or no access by index, .*; use list\(dataset\)"):
            task(DataLoader(Sized(), 8), **options)


def test_parts_of_a_batch_are_named_as_python_writes_them() -> None:
    with pytest.raises(DataError, match=r"batch\[2\]\[0\] is of type str"):
        task(DataLoader(Read(lambda i: (X[i], i, f"{i}.png")), 8))
    with pytest.raises(DataError, match=r"batch\['in'\]\[1\] has shape \(\) for 32 samples"):
        task(DataLoader(TensorDataset(X), 8, collate_fn=lambda s: {"in": (X, torch.tensor(len(s)))}))
    with pytest.raises(DataError, match=r"the data batch\[0\] holds 1 NaN, the first in row 3"):
        prepared(DataLoader(TensorDataset(X.where(X[3, 0] != X, torch.nan), Y), 8))
    with pytest.raises(DataError, match=r"the data batch\[1\] holds the index 3 in sample 0"):
        prepared(DataLoader(TensorDataset(X, Y + 3), 8))
    with pytest.raises(vgame.ProgramError, match=r"^batch\[0\] is torch.float16; "):
        prepared(DataLoader(TensorDataset(X.half(), Y), 8))


class Moved(UserDict):
    """A batch with a method, as transformers' BatchEncoding."""

    def to(self, device: str) -> Moved:
        return Moved({name: tensor.to(device) for name, tensor in self.items()})


class Named(dict):
    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


class Fixed(UserDict):
    """A class that cannot be made of a dictionary: a loss gets a dictionary."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x=x, y=y)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (Moved, lambda b: (b.to("cpu")["x"], b["y"])),
        (Named, lambda b: (b.x, b.y)),
        (lambda b: Fixed(**b), lambda b: (b["x"], b["y"])),
    ],
)
def test_a_batch_keeps_its_class(kind: Callable, read: Callable) -> None:
    def make(samples: list) -> Any:
        return kind({"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])})

    found = prepared(DataLoader(TensorDataset(X, Y), 8, collate_fn=make), lambda m, b: cross_entropy(m, read(b)))
    plain = prepared({"x": X, "y": Y}, lambda m, b: cross_entropy(m, (b["x"], b["y"])), batch=8, order="sequential")
    assert found.program.root == plain.program.root


# ---- float64, gradients of the data ----

FLOATS = [(X[i], i / 31) for i in range(32)]  # of which the default collate_fn makes float64
KEPT = {"x": X, "y": torch.tensor([i / 31 for i in range(32)], dtype=torch.float64).float()}


@pytest.mark.parametrize(
    "cast",
    [
        lambda y: y.float(),
        lambda y: y.unsqueeze(1).float()[:, 0],
        lambda y: y.view(-1, 1).to(torch.float32).squeeze(1),
        lambda y: y.type(torch.FloatTensor),
    ],
)
def test_float64_that_the_loss_casts_is_trained_as_float32(cast: Callable) -> None:
    for data, options in ((DataLoader(FLOATS, 8), {}), ({"0": X, "1": KEPT["y"].double()}, {"batch": 8})):
        names = (0, 1) if options == {} else ("0", "1")
        order = {"order": "sequential"} if options else {}
        found = prepared(data, lambda m, b, n=names: F.mse_loss(m(b[n[0]])[:, 0], cast(b[n[1]])), **options, **order)
        assert found.validation["unchecked"] == []
        plain = prepared(KEPT, lambda m, b: F.mse_loss(m(b["x"])[:, 0], b["y"]), batch=8, order="sequential")
        assert found.data[1].dtype == torch.float32 and torch.equal(found.data[1], plain.data[1])
        assert found.program.operators == plain.program.operators


@pytest.mark.parametrize(
    "read",
    [
        lambda p, y: F.mse_loss(p, y),
        lambda p, y: F.mse_loss(p, y).float(),
        lambda p, y: F.mse_loss(p, (2 * y).float()),
        lambda p, y: (p * (y > 0.5)).mean(),
        lambda p, y: (p * y.bfloat16()).mean(),
        lambda p, y: (p * y.long()).mean(),
    ],
)
def test_float64_that_the_loss_computes_with_is_refused(read: Callable) -> None:
    with pytest.raises(vgame.ProgramError, match=r"batch\[1\] is torch.float64, and the loss computes with it"):
        prepared(DataLoader(FLOATS, 8), lambda m, b: read(m(b[0])[:, 0], b[1]))
    with pytest.raises(vgame.ProgramError, match=r"^x is torch.float64, and the loss computes with it"):
        prepared({"x": X.double(), "y": Y}, lambda m, b: cross_entropy(m, (b["x"], b["y"])), batch=8)
    with pytest.raises(vgame.ProgramError, match=r"^y is torch.float64, and the loss computes with it"):
        prepared({"x": X, "y": KEPT["y"].double()}, lambda m, b: read(m(b["x"])[:, 0], b["y"]), batch=8)


MOVES: dict[str, Callable] = {
    "an index": lambda x, z: x[:, torch.arange(x.shape[1]).flip(0)],
    "parts": lambda x, z: torch.cat([x[:, :2], z[:, 2:]], 1),
    "a stack": lambda x, z: torch.stack([x, z])[1],
    "chunks": lambda x, z: torch.cat(x.chunk(2, 1)[::-1], 1),
    "a choice": lambda x, z: torch.where(torch.arange(len(x))[:, None] > 3, x, z),
    "turned": lambda x, z: x.flip(1).roll(1, 0).t().contiguous().t(),
    "gathered": lambda x, z: x.gather(0, torch.arange(8)[:, None].expand(x.shape)),
    "padded": lambda x, z: F.pad(x, (1, 1), value=0.3)[:, 1 : 1 + x.shape[1]],
    "filled": lambda x, z: x.masked_fill(torch.arange(len(x))[:, None] > 3, 0.7),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_float64_that_the_loss_only_moves_is_kept(move: Callable) -> None:
    def loss(model: nn.Module, batch: Any, wide: bool) -> torch.Tensor:
        x, z = (batch["x"], batch["z"]) if wide else (batch["x"].float(), batch["z"].float())
        return F.cross_entropy(model(move(x, z).float()), batch["y"])

    torch.manual_seed(0)
    data = {"x": X.double(), "y": Y, "z": torch.randn_like(X).double()}
    found, other = (prepared(data, lambda m, b, w=wide: loss(m, b, w), batch=8) for wide in (True, False))
    assert found.validation["unchecked"] == []
    assert found.program.operators == other.program.operators


def test_all_parts_of_float64_with_which_the_loss_computes_are_named() -> None:
    data = {"x": X.double(), "y": Y, "z": X.double(), "w": X.double()}
    with pytest.raises(vgame.ProgramError, match=r"^x and z are torch.float64, and the loss computes with them"):
        prepared(data, lambda m, b: F.cross_entropy(m((b["x"] + b["z"]).float() + b["w"].float()), b["y"]), batch=8)


def test_all_parameters_of_float64_are_named() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
    job = vgame.Task(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), {"x": X, "y": Y}, 8)
    with pytest.raises(
        vgame.ProgramError, match=r"1.bias, 1.running_mean and 1 more are torch.float64.*them with .float"
    ):
        vgame.prepare(vgame.Job(job, steps=2))


def test_data_that_require_gradients_are_differentiated() -> None:
    def residual(model: nn.Module, batch: Any) -> torch.Tensor:
        x = batch["x"] if isinstance(batch, dict) else batch[0]
        u = model(x).tanh().sum(1)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (du.sum(1) + u).square().mean()

    x = X.clone().requires_grad_()
    found = prepared({"x": x}, residual, batch=8, order="sequential")
    assert found.validation["unchecked"] == [] and x.requires_grad and x.grad is None
    rows = DataLoader([(row,) for row in x], 8)
    assert prepared(rows, residual).validation["unchecked"] == []


class Counted:
    calls = 0


def test_a_counter_in_the_loss_of_a_loader_is_found() -> None:
    """Its first change comes in the validation, after the capture's passes."""
    counted = Counted()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        counted.calls += not isinstance(model.weight, torch._subclasses.FakeTensor) and type(batch[0]) is torch.Tensor
        return cross_entropy(model, batch)

    with pytest.raises(vgame.VgameError, match="counted"):
        prepared(DataLoader(TensorDataset(X, Y), 8), loss)

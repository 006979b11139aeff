"""Columns of Arrow and Parquet files as data: the saved numbers, types checked first, other columns refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vgame
from vgame.tasks import tables

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


IDS = np.arange(60).reshape(12, 5)


def columns(ids: Any = IDS, kind: Any = None) -> Any:
    rows = ids.tolist() if isinstance(ids, np.ndarray) else ids
    kind = kind or pa.list_(pa.int64())
    many = len(rows)
    return pa.table({
        "input_ids": pa.array(rows, kind), "label": pa.array(range(many), pa.int8()),
        "score": pa.array([i / 7 for i in range(many)], pa.float32()), "text": pa.array(["a"] * many),
    })  # fmt: skip


def arrow(path: Path, table: Any, stream: bool = True) -> None:
    """As `datasets` writes it, in batches of 4 rows."""
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        for batch in table.to_batches(4):
            writer.write_batch(batch)


def saved(folder: Path, names: tuple[str, ...] = ("b.arrow", "a.arrow")) -> Path:
    """The files of save_to_disk: their order is that of the state, not of their names."""
    folder.mkdir()
    for name, part in zip(names, (columns(IDS[:7]), columns(IDS[7:])), strict=True):
        arrow(folder / name, part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_a_saved_data_set_is_read_in_its_order(tmp_path: Path) -> None:
    folder = saved(tmp_path / "train")
    found = vgame.mapped(folder, "input_ids")
    assert torch.equal(found, torch.from_numpy(IDS).to(torch.int32))
    assert vgame.mapped(folder, "label").tolist() == [*range(7), *range(5)]
    assert torch.equal(vgame.mapped(folder, "score")[:7], torch.tensor([i / 7 for i in range(7)]))
    arrow(folder / "a.arrow", columns(IDS[7:] + 1))  # other content: not that of the cache
    assert vgame.mapped(folder, "input_ids")[7, 0] == IDS[7, 0] + 1


@pytest.mark.parametrize("kind", ["parquet", "stream", "file", "fixed lists", "lists in lists"])
def test_every_form_gives_the_same_numbers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        parquet.write_table(columns(), path, row_group_size=5)
    elif kind == "fixed lists":
        arrow(path, columns(kind=pa.list_(pa.int32(), 5)))
    elif kind == "lists in lists":
        arrow(path, columns(IDS.reshape(12, 5, 1), pa.list_(pa.list_(pa.int16()))))
    else:
        arrow(path, columns(), kind == "stream")
    assert torch.equal(vgame.mapped(path, "input_ids").reshape(12, 5), torch.from_numpy(IDS).to(torch.int32))


def test_a_run_over_a_table_is_the_run_over_memory(tmp_path: Path) -> None:
    folder = saved(tmp_path / "train")

    def bundle(ids: torch.Tensor) -> vgame.Bundle:
        torch.manual_seed(0)
        model = torch.nn.Embedding(64, 2)
        loss = lambda m, b: m(b["ids"]).square().mean()  # noqa: E731
        task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"ids": ids}, 4)
        return vgame.prepare(vgame.Job(task, steps=3, interval=3, seed=1))

    ours, memory = bundle(vgame.mapped(folder, "input_ids")), bundle(torch.from_numpy(IDS))
    assert ours.identity == memory.identity
    assert vgame.train(ours, tmp_path / "a").root == vgame.train(memory, tmp_path / "b").root


ROWS: dict[str, tuple[Any, str]] = {
    "other lengths": ([[1, 2], [3]], r"different lengths, 2 and 1, from row 0 on; pad them"),
    "another length in a later batch": (
        [[1, 2]] * 4 + [[3]] * 4,
        r"different lengths, \(1,\) and \(2,\), from row 4 on",
    ),
    "no value": ([[1, 2], None], "rows without a value"),
    "no number": ([[1, 2], [3, None]], "rows without a value"),
    "beyond 32 bits": ([[1, 2**31]], "integers beyond 32 bits"),
    "no row": ([], "has no row"),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_do_not_form_a_tensor_are_refused(tmp_path: Path, what: str) -> None:
    rows, sentence = ROWS[what]
    arrow(tmp_path / "x.arrow", columns(rows))
    with pytest.raises(vgame.DataError, match=sentence):
        vgame.mapped(tmp_path / "x.arrow", "input_ids")
    assert not list((tmp_path / "cache").rglob("*.half")) and not list((tmp_path / "cache").rglob("*.npy"))


def test_types_are_checked_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_write", lambda *_: pytest.fail("it was read"))
    folder = saved(tmp_path / "train")
    for column, sentence in (
        ("text", "the column text has the type string; integers, float32 or lists"),
        ("ids", "holds the columns input_ids, label, score, text; choose one"),
        (None, "choose one"),
    ):
        with pytest.raises(vgame.DataError, match=sentence):
            vgame.mapped(folder, column)
    arrow(folder / "a.arrow", columns(kind=pa.list_(pa.float32())))
    with pytest.raises(vgame.DataError, match="has different types in its files"):
        vgame.mapped(folder, "input_ids")
    arrow(folder / "a.arrow", columns(kind=pa.list_(pa.float64())))
    with pytest.raises(vgame.DataError, match=r"has the type list<.*double>; integers, float32"):
        vgame.mapped(folder, "input_ids")


def test_folders_without_a_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(vgame.DataError, match="holds 0 data files"):
        vgame.mapped(tmp_path, "x")
    (tmp_path / "x.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(vgame.DataError, match="cannot be read"):
        vgame.mapped(tmp_path, "x")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(vgame.DataError, match="holds the splits train, test; choose one"):
        vgame.mapped(tmp_path, "x")
    (tmp_path / "dataset_dict.json").unlink()
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(vgame.DataError, match=r"state\.json cannot be read: KeyError"):
        vgame.mapped(tmp_path, "x")
    (tmp_path / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}')
    with pytest.raises(vgame.DataError, match=r"a selection of rows; save data\.flatten_indices"):
        vgame.mapped(tmp_path, "x")

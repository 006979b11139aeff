"""Texts packed into rows of tokens: the rows, the recipe in the bundle, refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vgame
from vgame.tasks import packing

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "rain", "that", "fell", "all", "day", "long"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tokenizer(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: n for n, word in enumerate(["[UNK]", "[END]", *sorted(set(WORDS))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


def text(path: Path, words: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    path.write_text("".join(draw.choice(WORDS) + draw.choice("   \n") for _ in range(words)))
    return path


def test_bytes_in_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcde")
    (tmp_path / "b").write_bytes("fgé".encode())
    output = []
    rows = vgame.packed([tmp_path / "a", tmp_path / "b"], length=3, end=0, progress=lambda *n: output.append(n))
    assert rows.dtype == torch.int32 and rows.tolist() == [[97, 98, 99], [100, 101, 0], [102, 103, 195]]
    assert packing.recipe_of(rows)["left_out"] == 2 and output == [(5, 9), (9, 9)]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 64, 2**20])
def test_pieces_join_to_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Also where a piece would end inside a character."""
    content = "a€😀é\n😀😀 long line without an end 😀é€" * 5
    (tmp_path / "t").write_bytes(content.encode())
    monkeypatch.setattr(packing, "PIECE", max(piece, 4))  # a character has up to four bytes
    assert bytes(vgame.packed(tmp_path / "t", length=1).flatten().tolist()) == content.encode()


def test_a_tokenizer_and_its_recipe_make_the_same_rows_elsewhere(tmp_path: Path, tokenizer) -> None:
    one = text(tmp_path / "one.txt", 400)
    tokenizer.enable_truncation(3)  # settings of a user's own calls do not affect the recipe
    rows = vgame.packed(one, tokenizer, length=8, end="[END]")
    expected = [tokenizer.token_to_id(word) for word in one.read_text().split()] + [1]
    assert rows.flatten().tolist() == expected[: len(expected) // 8 * 8]
    (tmp_path / "folder").mkdir()
    tokenizer.no_truncation()
    tokenizer.save(str(tmp_path / "folder" / "tokenizer.json"))
    again = vgame.packed(str(one), tmp_path / "folder", length=8, end=1)
    first, second = packing.recipe_of(rows), packing.recipe_of(again)
    assert torch.equal(rows, again) and first["tokenizer"].pop("name") and second["tokenizer"].pop("name")
    assert first == second and first["texts"][0]["name"] == "one.txt"


@pytest.mark.usefixtures("apart")
def test_the_bundle_carries_the_recipe(tmp_path: Path, tokenizer) -> None:
    rows = vgame.packed(text(tmp_path / "one.txt", 400), tokenizer, length=8)
    model = nn.Sequential(nn.Embedding(tokenizer.get_vocab_size(), 4), nn.Linear(4, tokenizer.get_vocab_size()))

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens = batch["tokens"].long()
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), 0.1), {"tokens": rows}, batch=4)
    bundle = vgame.prepare(vgame.Job(task, steps=2, interval=1, seed=1))
    bundle.save(tmp_path / "bundle")
    assert vgame.Bundle.load(tmp_path / "bundle").recipes == {"tokens": packing.recipe_of(rows)} == bundle.recipes
    run = vgame.train(vgame.Bundle.load(tmp_path / "bundle"), tmp_path / "run")
    assert vgame.audit(tmp_path / "run", device="compatible").match and len(run.losses) == 2
    spec = json.loads((tmp_path / "bundle" / "spec.json").read_text())
    for wrong in ({"elsewhere": {}}, [], {"tokens": 1}):
        (tmp_path / "bundle" / "spec.json").write_text(json.dumps(spec | {"recipes": wrong}))
        with pytest.raises(vgame.BundleError, match=r"recipes of the data tokens are expected"):
            vgame.Bundle.load(tmp_path / "bundle")


def test_rows_are_made_once_and_again_after_a_text_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = text(tmp_path / "one.txt", 100)
    rows = vgame.packed(one, length=16)
    with monkeypatch.context() as held:
        held.setattr(packing, "_write", lambda *_: pytest.fail("made again"))
        assert torch.equal(vgame.packed(one, length=16), rows)
    text(one, 100, seed=1)
    assert not np.array_equal(vgame.packed(one, length=16)[:4], rows[:4])


def test_unsupported_data_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    one = text(tmp_path / "one.txt", 10)
    (tmp_path / "latin").write_bytes("abc\né".encode("latin-1"))
    for sentence, call in {
        r"nothing\.txt cannot be read: No such file": lambda: vgame.packed(tmp_path / "nothing.txt", length=4),
        r"0 texts and length 4": lambda: vgame.packed([], length=4),
        r"length 0; at least one text and a length of at least 1": lambda: vgame.packed(one, length=0),
        r"tokens, but a row has 100,000; give more text": lambda: vgame.packed(one, length=100_000),
        r"latin is not UTF-8 at byte 4; convert it first": lambda: vgame.packed(tmp_path / "latin", length=1),
        r"end = '\[END\]' is not a token of bytes": lambda: vgame.packed(one, length=1, end="[END]"),
        r"end = -1 is not a token": lambda: vgame.packed(one, length=1, end=-1),
        r"function is not a tokenizer that can be saved": lambda: vgame.packed(one, lambda t: [1], length=1),
        r"tokenizer\.json cannot be read": lambda: vgame.packed(one, tmp_path, length=1),
        r"one\.txt cannot be read: .*; give a local tokenizer\.json": lambda: vgame.packed(one, one, length=1),
    }.items():
        with pytest.raises(vgame.DataError, match=sentence):
            call()
    assert not list((tmp_path / "cache").rglob("*.half"))

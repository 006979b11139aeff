"""Data from files in their published formats, and errors for other files."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from vgame.errors import DataError
from vgame.tasks import cifar10, digits, shipped
from vgame.tasks.shipped import gpt2
from vgame.tasks.text import load_tokens

COUNT, PIXELS = cifar10.IMAGES, cifar10.PIXELS


def images(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (COUNT, PIXELS), dtype=np.uint8), draw.integers(0, 10, COUNT)


def write(path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Write a file in the form of its name."""
    if path.suffix == ".bin":
        np.concatenate([labels[:, None].astype(np.uint8), pixels], 1).tofile(path)
    else:
        path.write_bytes(pickle.dumps({b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"x"}, protocol=2))


@pytest.mark.parametrize("name", ["test_batch", "test_batch.bin"])
@pytest.mark.parametrize("folder", ["", "cifar-10-batches-py", "cifar-10-batches-bin"])
def test_both_forms_give_the_images_in_order(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    pixels, labels = images(1)
    write(tmp_path / folder / name, pixels, labels)
    found, classes = cifar10.load(tmp_path, train=False, check=False)
    assert found.shape == (COUNT, 3, 32, 32) and found.dtype == torch.uint8 and classes.dtype == torch.int64
    assert torch.equal(found.reshape(COUNT, -1), torch.from_numpy(pixels)) and classes.tolist() == labels.tolist()


def test_the_training_batches_come_one_after_the_other(tmp_path: Path) -> None:
    for i in range(1, 6):
        write(tmp_path / f"data_batch_{i}.bin", *images(i))
    found, classes = cifar10.load(tmp_path)
    assert len(found) == 5 * COUNT
    for i in range(5):
        pixels, labels = images(i + 1)
        assert torch.equal(found[i * COUNT : (i + 1) * COUNT].reshape(COUNT, -1), torch.from_numpy(pixels))
        assert classes[i * COUNT : (i + 1) * COUNT].tolist() == labels.tolist()


def test_files_are_checked_by_their_published_checksums(tmp_path: Path) -> None:
    write(tmp_path / "test_batch", *images(1))
    digest = hashlib.md5((tmp_path / "test_batch").read_bytes()).hexdigest()
    with pytest.raises(
        DataError, match=f"has the MD5 {digest}, the published file has 40351d587109b95175f43aff81a1287e"
    ):
        cifar10.load(tmp_path, train=False)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write(tmp_path / "data_batch_1.bin", *images(1))
    with pytest.raises(
        DataError, match=r"holds neither data_batch_2 nor data_batch_2.bin; unpack .* \(vgame never downloads\)"
    ):
        cifar10.load(tmp_path)


@pytest.mark.parametrize("cut", [1, 3073, 30_000_000])
def test_a_truncated_binary_batch_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "test_batch.bin"
    write(path, *images(1))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=f"has {COUNT * 3073 - cut} bytes, 30730000 are expected; it is truncated"):
        cifar10.load(tmp_path, train=False)


def test_a_truncated_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test_batch"
    write(path, *images(1))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="is not a CIFAR-10 batch in the Python form"):
        cifar10.load(tmp_path, train=False, check=False)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (open, (str(tmp_path / "touched"), "w"))

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(DataError, match=r"the pickle refers to (io|_io)\.open"):
        cifar10.load(tmp_path, train=False, check=False)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["test_batch", "test_batch.bin"])
def test_a_label_out_of_range_is_named(tmp_path: Path, name: str) -> None:
    pixels, labels = images(1)
    labels[1234] = 10
    write(tmp_path / name, pixels, labels)
    with pytest.raises(DataError, match="image 1234 has the label 10; 0 to 9 are expected"):
        cifar10.load(tmp_path, train=False, check=False)


def test_images_are_normalised_per_channel() -> None:
    found = cifar10.normalized(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    wanted = (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2470, 0.2435, 0.2616])
    assert torch.equal(found, wanted.view(1, 3, 1, 1).expand(1, 3, 2, 2))


def test_the_digits_are_split_and_scaled() -> None:
    task = digits.task()
    assert task.data["image"].shape == (digits.TRAINING_IMAGES, 1, 8, 8) and float(task.data["image"].max()) == 1.0
    assert sorted(set(task.data["label"].tolist())) == list(range(10))


# ---- text ----


def test_text_is_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(256)))
    assert load_tokens(tmp_path / "t.txt").tolist() == list(range(256))


def test_text_that_is_not_there_or_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.txt cannot be read: No such file"):
        load_tokens(tmp_path / "nothing.txt")
    (tmp_path / "t.txt").write_bytes(b"a")
    with pytest.raises(DataError, match="has 1 tokens; at least 2 are needed"):
        load_tokens(tmp_path / "t.txt")
    with pytest.raises(DataError, match=r"the tokenizer directory .* does not exist"):
        load_tokens(tmp_path / "t.txt", tmp_path / "tokenizer")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A directory of a tokenizer in Hugging Face's form, which splits words at spaces."""
    shipped._hide_broken_torchvision()
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "to": 1, "be": 2, "or": 3, "not": 4}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]").save_pretrained(
        tmp_path / "tokenizer"
    )
    return tmp_path / "tokenizer"


def test_text_goes_through_a_tokenizer_directory(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("to be or not to be")
    assert load_tokens(tmp_path / "t.txt", tokenizer).tolist() == [1, 2, 3, 4, 1, 2]
    (tmp_path / "t.txt").write_bytes(b"to be \xff\xfe")
    with pytest.raises(DataError, match="cannot be tokenized"):
        load_tokens(tmp_path / "t.txt", tokenizer)


# ---- GPT-2 ----

TINY = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 256}


def test_gpt2_comes_from_a_local_checkpoint(tmp_path: Path) -> None:
    shipped._hide_broken_torchvision()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY))
    model.save_pretrained(tmp_path / "gpt2")
    (tmp_path / "t.txt").write_bytes(bytes(range(200)))
    task = gpt2(str(tmp_path / "t.txt"), length=8, checkpoint=str(tmp_path / "gpt2"))
    found = dict(task.model.named_parameters())
    assert all(torch.equal(found[name], p) for name, p in model.named_parameters())
    assert task.population == (200 - 9) // 8 + 1 and task.data["tokens"].tolist() == list(range(200))


def test_gpt2_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "t.txt").write_bytes(bytes(range(200)))
    with pytest.raises(DataError, match=r"has no config.json; give a local folder \(vgame never downloads\)"):
        gpt2(str(tmp_path / "t.txt"), checkpoint=str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be loaded"):
        gpt2(str(tmp_path / "t.txt"), checkpoint=str(tmp_path))

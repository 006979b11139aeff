"""CIFAR-10 from a directory that the user has downloaded: the published binary or Python form, checked by checksum.
vgame never downloads it.

Published at the University of Toronto as cifar-10-binary.tar.gz (folder cifar-10-batches-bin) and
cifar-10-python.tar.gz (cifar-10-batches-py).
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path

import numpy as np
import torch

from vgame.errors import DataError

#: MD5 of each file as its publisher lists it in the archives' integrity tables.
CHECKSUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
IMAGES, PIXELS = 10_000, 3 * 32 * 32
RECORD = 1 + PIXELS
TRAINING = tuple(f"data_batch_{i}" for i in range(1, 6))


class _ArraysOnly(pickle.Unpickler):
    """A reader for the Python form, a pickle, that accepts only NumPy arrays."""

    ALLOWED = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.numeric", "_frombuffer"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),  # how Python 3 writes bytes into the old protocols
        }
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self.ALLOWED:
            raise DataError(
                f"the pickle refers to {module}.{name}, which is not part of a CIFAR-10 batch; do not use this file"
            )
        return super().find_class(module, name)


def load(folder: str | Path, *, train: bool = True, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(images uint8 [N, 3, 32, 32], labels int64 [N]): 50,000 for training or 10,000 for testing.

    `check=False` accepts files that are not the published ones (the Python form only: the binary form has no published
    per-file checksums).
    """
    folder = Path(folder)
    names = TRAINING if train else ("test_batch",)
    parts = [_batch(folder, name, check) for name in names]
    images = torch.from_numpy(np.concatenate([p[0] for p in parts])).reshape(-1, 3, 32, 32)
    return images, torch.from_numpy(np.concatenate([p[1] for p in parts])).to(torch.int64)


def _batch(folder: Path, name: str, check: bool) -> tuple[np.ndarray, np.ndarray]:
    for root in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        if (root / name).is_file():
            return _python_form(root / name, check)
        if (root / f"{name}.bin").is_file():
            return _binary_form(root / f"{name}.bin")
    raise DataError(
        f"{folder} holds neither {name} nor {name}.bin; "
        "unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz there (vgame never downloads)"
    )


def _python_form(path: Path, check: bool) -> tuple[np.ndarray, np.ndarray]:
    data = path.read_bytes()
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if check and found != CHECKSUMS[path.name]:
        raise DataError(
            f"{path} has the MD5 {found}, the published file has {CHECKSUMS[path.name]}; unpack the archive again"
        )
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a CIFAR-10 batch in the Python form: {error}") from None
    if images.shape != (IMAGES, PIXELS) or images.dtype != np.uint8 or labels.shape != (IMAGES,):
        raise DataError(f"{path} holds {images.shape} {images.dtype}, {(IMAGES, PIXELS)} uint8 is expected")
    return images, _labels(path, labels)


def _binary_form(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data = np.fromfile(path, np.uint8)
    if data.size != IMAGES * RECORD:
        raise DataError(
            f"{path} has {data.size} bytes, {IMAGES * RECORD} are expected; it is truncated or not a CIFAR-10 batch"
        )
    records = data.reshape(IMAGES, RECORD)
    return records[:, 1:], _labels(path, records[:, 0].astype(np.int64))


def _labels(path: Path, labels: np.ndarray) -> np.ndarray:
    if labels.min() < 0 or labels.max() > 9:
        wrong = int(np.argmax((labels < 0) | (labels > 9)))
        raise DataError(f"{path}: image {wrong} has the label {labels[wrong]}; 0 to 9 are expected")
    return labels


def normalized(images: torch.Tensor) -> torch.Tensor:
    """float32 [N, 3, 32, 32] with the data set's usual mean and deviation per channel."""
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    deviation = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)
    return (images.float() / 255 - mean) / deviation

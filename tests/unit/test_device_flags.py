"""A device leaves torch's global flags as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vgame.execute.devices import use_device

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def flags_are_restored() -> Iterator[None]:
    onednn = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = onednn
    MATMUL.allow_tf32 = False
    MATMUL.fp32_precision = "none"


def flags() -> tuple[bool, bool, str]:
    return torch.backends.mkldnn.enabled, MATMUL.allow_tf32, MATMUL.fp32_precision


@pytest.mark.parametrize("device", ["default", "reversed"])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_flags_are_the_devices_during_its_use_and_the_users_afterwards(device: str, onednn: bool, tf32: bool) -> None:
    torch.backends.mkldnn.enabled, MATMUL.allow_tf32 = onednn, tf32
    before = flags()
    with use_device(device):
        assert flags()[:2] == (True, False)
    assert flags() == before
    with pytest.raises(KeyError), use_device(device):
        raise KeyError
    assert flags() == before


def test_flags_of_the_newer_name_are_restored() -> None:
    MATMUL.allow_tf32, MATMUL.fp32_precision = False, "tf32"
    with use_device("default"):
        assert MATMUL.fp32_precision != "tf32"
    assert MATMUL.fp32_precision == "tf32"

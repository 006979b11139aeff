"""Trees of tensors by the Triton kernels: the roots that hashlib gives."""

from __future__ import annotations

import pytest
import torch

from vgame.arithmetic import gate
from vgame.commit import tensor as commit
from vgame.commit.merkle import Kind
from vgame.commit.words import LEAF_WORDS, words_root

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def expected(t: torch.Tensor) -> bytes:
    return words_root(commit.tensor_bytes(t))


def test_roots() -> None:
    """Odd levels, a part of a leaf, a NaN that is not the one NaN, both types, an empty tensor."""
    from vgame.commit.gpu_sha import roots

    torch.manual_seed(1)
    integers, floats, empty = (
        torch.randint(-(2**31), 2**31, (n,)).int() for n in (5 * LEAF_WORDS + 7, LEAF_WORDS + 1, 0)
    )
    floats[[0, 70, 128]] = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32)
    tensors = [integers, floats.view(torch.float32), empty]
    assert roots(tensors) == [expected(t) for t in tensors]


def test_a_state_is_hashed_together_and_only_changed_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from vgame.commit import gpu_sha

    calls: list[int] = []
    monkeypatch.setattr(gpu_sha, "roots", lambda tensors: calls.append(len(tensors)) or [expected(t) for t in tensors])
    state = [torch.randn(5), torch.randn(9)]
    first = commit.tensors_root(Kind.STATE, state)
    state[1][7] += 1
    second = commit.tensors_root(Kind.STATE, state)
    assert calls == [2, 1] and first != second
    with gate.kernels(False):
        assert second == commit.tensors_root(Kind.STATE, [t.clone() for t in state])

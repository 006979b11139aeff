"""The words that a rank gives in a step that is computed twice, and the group of the second computation.

In: tensors and sums of a step. Out: their digests, which the previous rank compares (check.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vgame.arithmetic.torch.partial import Approximate
from vgame.commit.tensor import to_words
from vgame.ranks.exchange import Group

DIGEST = 8  # words


@dataclass(frozen=True)
class Shifted:
    """The same processes, each as the next rank."""

    group: Group

    @property
    def rank(self) -> int:
        return (self.group.rank + 1) % self.world

    @property
    def world(self) -> int:
        return self.group.world

    def note(self, step: int, doing: str) -> None:
        self.group.note(step, doing)

    def swap(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        return self.begin(pieces, sizes)()

    def begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        """Process q - 1 executes part q."""
        arrive = self.group.begin([*pieces[1:], pieces[0]], [*sizes[1:], sizes[0]])

        def turned() -> list[torch.Tensor]:
            got = arrive()
            return [got[-1], *got[:-1]]

        return turned


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """SHA-256 of a tensor's words, as int32 words."""
    return torch.frombuffer(bytearray(hashlib.sha256(to_words(tensor).tobytes()).digest()), dtype=torch.int32)


@dataclass(frozen=True)
class Given:
    """Digests of the words that a rank gave to others in a step, and of its new state; its sums."""

    words: list[torch.Tensor]
    sums: list[Approximate]

"""Enclosures of one sum: the bound of vgame.logged.admissible for its terms."""

from __future__ import annotations

from collections.abc import Sequence

from vgame.logged.admissible import Enclosure, moments_dot, moments_sum


def enclose_dot(a: Sequence[int], b: Sequence[int], bits: int) -> Enclosure | None:
    """The enclosure of sum_k a[k] b[k]; None if a term is not finite (such a sum has one admissible word)."""
    return moments_dot(a, b).enclosure(len(a), bits)


def enclose_sum(words: Sequence[int], bits: int, length: int | None = None) -> Enclosure | None:
    """The enclosure of sum_k words[k]; `length`: K in the program, if only some terms were selected."""
    return moments_sum(words).enclosure(length or len(words), bits)

"""The program's random numbers for torch code: words of its Philox operators, converted to draws by the formulas of
docs/formats.md section 5 and docs/capture.md, in binary64.

In: the lowering's record of each random operator. Out: the numbers for the n-th random operator that the code calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from vgame.arithmetic.torch.philox import random_words
from vgame.program.lowering.marks import Draw

T = torch.Tensor


class Drawn:
    """The draws of one batch, in their order."""

    def __init__(self, draws: Sequence[Draw], seed: int, step: int) -> None:
        self.draws, self.seed, self.step = draws, seed, step
        self.place = 0

    def next(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: T) -> T | None:
        """The result of the next random operator; None if the program has none, or a different one."""
        family = _family(str(func))
        draw = self.draws[self.place] if self.place < len(self.draws) else None
        self.place += 1
        if draw is None or _family(draw.target) not in (family, ALIKE.get(family)) or family not in FAMILIES:
            return None
        given = _given(func, args, kwargs)
        if family == "normal":
            given |= {
                k: v.expand(result.shape).reshape(-1) for k, v in given.items() if isinstance(v, T) and k != "self"
            }
        words = [self._words(operator, result.numel()) for operator in draw.operators]
        found = FAMILIES[family](words, given).reshape(result.shape)
        if result.dtype != torch.bfloat16 or family not in ("rand", "rand_like", "uniform"):
            return found
        low, high = (torch.tensor(given.get(end, default)).bfloat16() for end, default in (("from", 0.0), ("to", 1.0)))
        rounded = found.to(torch.bfloat16).reshape(result.shape)
        return torch.where(rounded < high, found, low.double())  # not the upper end, as in torch

    def _words(self, operator: int | None, count: int) -> T:
        """Unsigned words. A draw that the program omits gets arbitrary words, since no result may depend on it."""
        if operator is None:
            return torch.randint(0, 2**32, (count,), generator=torch.Generator().manual_seed(count))
        return random_words(self.seed, self.step, operator, count, torch.zeros(1)).to(torch.int64) & 0xFFFFFFFF


class Constant(Drawn):
    """The same draw at every place, so that it does not depend on a batch's width: dropout keeps all."""

    def __init__(self) -> None:
        super().__init__((), 0, 0)

    def next(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: T) -> T | None:
        if (family := _family(str(func))) not in FAMILIES:
            return None
        words = [torch.full((result.numel(),), word) for word in (0xF000_0000, 0x2000_0000)]
        return FAMILIES[family](words, _given(func, args, kwargs)).reshape(result.shape)


def _given(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if str(func) == "aten.bernoulli.default":
        given["p"] = given["self"]
    return given


def _family(name: str) -> str:
    """`bernoulli` for `aten.bernoulli_.float`."""
    return name.removeprefix("aten.").split(".")[0].removesuffix("_functional").removesuffix("_")


def _below_one(words: T) -> T:
    return (words >> 8).to(torch.float64) * 2.0**-24


def _above_zero(words: T) -> T:
    return ((words >> 8).to(torch.float64) + 1) * 2.0**-24


def _bernoulli(words: list[T], given: Mapping[str, Any]) -> T:
    p = given.get("p", 0.5)
    if isinstance(p, T):
        return (_below_one(words[0]) < p.reshape(-1)).to(torch.float64)
    if not words:
        return torch.zeros(given["self"].shape)  # probability 0
    return (words[0] >= math.floor((1 - Fraction(p)) * 2**32)).to(torch.float64)


def _normal(words: list[T], mean: float = 0.0, std: float = 1.0) -> T:
    """Normal numbers by Box and Muller."""
    radius = torch.sqrt(-2 * torch.log(_above_zero(words[0])))
    return mean + std * radius * torch.cos(2 * math.pi * _below_one(words[1]))


def _between(words: list[T], given: Mapping[str, Any]) -> T:
    low = given.get("low", 0)
    return low + (words[0] >> 1) % (given["high"] - low)


def _uniform(words: list[T], given: Mapping[str, Any]) -> T:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return low + (high - low) * _below_one(words[0])


FAMILIES: Mapping[str, Callable[[list[T], Mapping[str, Any]], T]] = {
    "bernoulli": _bernoulli,
    "rand": lambda words, _: _below_one(words[0]),
    "rand_like": lambda words, _: _below_one(words[0]),
    "uniform": _uniform,
    "randn": lambda words, _: _normal(words),
    "randn_like": lambda words, _: _normal(words),
    "normal": lambda words, given: _normal(words, given.get("mean", 0.0), given.get("std", 1.0)),
    "exponential": lambda words, given: -torch.log(_above_zero(words[0])) / given.get("lambd", 1.0),
    "randint": _between,
    "randint_like": _between,
    "randperm": lambda words, _: torch.sort(_signed(words[0]), stable=True).indices,
}


#: Families whose draws a program may also make as those of another one.
ALIKE = {"normal": "randn_like"}


def _signed(words: T) -> T:
    return torch.where(words >= 2**31, words - 2**32, words)

"""Counters in places that a search passes by: submodules, large containers, references that move, what is put on
libraries and tensors.

Out: by name, a function that makes a counter: it gives another number at each call.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from library_counters import Count
from torch import nn
from torch.nn import functional

MANY = 1_500  # parts of a large container
STATE = """
class Tracker:
    n = 0
    def tick(self):
        self.n += 1
        return self.n
TRACKER, COUNTS = Tracker(), {"n": 0}
def tick():
    COUNTS["n"] += 1
    return COUNTS["n"]
"""


def package() -> ModuleType:
    """A package of the user's, with a submodule `state`."""
    folder = Path(mkdtemp())
    (folder / "mine_of_tests").mkdir()
    (folder / "mine_of_tests" / "__init__.py").write_text("")
    (folder / "mine_of_tests" / "state.py").write_text(STATE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine_of_tests"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module("mine_of_tests.state")
    finally:
        sys.path.remove(str(folder))
    return sys.modules["mine_of_tests"]


def by_dots() -> Count:
    mine = package()
    return lambda: mine.state.TRACKER.tick()


def by_a_function_of_it() -> Count:
    mine = package()
    return lambda: mine.state.tick()


def in_an_attribute() -> Count:
    held = SimpleNamespace(module=package().state)
    return lambda: held.module.tick()


def helper(module: Any) -> float:
    return module.TRACKER.tick()


def in_an_argument() -> Count:
    mine = package()
    return lambda: helper(mine.state)


def of_an_executed_file() -> Count:
    folder = Path(mkdtemp())
    (folder / "settings.py").write_text(STATE)
    spec: Any = importlib.util.spec_from_file_location("settings_of_tests", folder / "settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tracker = module.TRACKER
    return lambda: tracker.tick()


class Sample:
    def __init__(self) -> None:
        self.seen = 0


def of_samples() -> Count:
    samples = [Sample() for _ in range(MANY)]

    def count() -> float:
        samples[0].seen += 1
        return samples[0].seen

    return count


def of_many(make: Callable[[], Any], step: Callable[[Any], float]) -> Callable[[], Count]:
    def counter() -> Count:
        held = {n: make() for n in range(MANY)}
        return lambda: step(held[0])

    return counter


def grow(held: Any) -> float:
    held["n"] += 1
    return held["n"]


def appended(held: Any) -> float:
    held.append(0)
    return len(held)


def added(held: np.ndarray) -> float:
    held += 1
    return float(held[0])


class Vocabulary(dict):
    lookups = 0


def of_a_vocabulary() -> Count:
    words = Vocabulary((n, n) for n in range(MANY))

    def count() -> float:
        words.lookups += 1
        return words.lookups

    return count


class Stage:
    def __init__(self, weight: float) -> None:
        self.weight, self.after = weight, self


def of_stages() -> Count:
    stages = [Stage(1.0 + n) for n in range(12)]
    for one, other in itertools.pairwise(stages):
        one.after = other
    now = SimpleNamespace(stage=stages[0])

    def count() -> float:
        now.stage = now.stage.after
        return now.stage.weight

    return count


class Phase(Enum):
    WARM, MAIN = 1, 9


def of_members() -> Count:
    ring = deque([Phase.WARM] * 8 + [Phase.MAIN] * 8)

    def count() -> float:
        ring.rotate(-1)
        return ring[0].value

    return count


def of_tensors() -> Count:
    one, nine = torch.tensor(1.0), torch.tensor(9.0)
    ring = deque([one] * 8 + [nine] * 8)

    def count() -> Any:
        ring.rotate(-1)
        return ring[0]

    return count


class Counted:
    """A decorator that counts calls."""

    def __init__(self, function: Callable[..., float]) -> None:
        self.function, self.calls = function, 0

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return functools.partial(self, owner)

    def __call__(self, *args: Any) -> float:
        self.calls += 1
        return self.function(*args) + self.calls


def of_a_call() -> Count:
    class Criterion:
        @Counted
        def __call__(self) -> float:
            return 0.0

    return Criterion()


def of_a_dunder() -> Count:
    class Held:
        __steps__ = 0

    def count() -> float:
        Held.__steps__ += 1
        return Held.__steps__

    return count


#: What counters of this file add to libraries.
PUT = ((functional, "counted_by_tests"), (torch, "held_by_tests"), (nn.Module, "tracked_by_tests"))


def of_a_function_on_torch() -> Count:
    calls = [0]

    def counted() -> float:
        calls[0] += 1
        return calls[0]

    functional.counted_by_tests = counted  # type: ignore[attr-defined]
    return lambda: functional.counted_by_tests()  # type: ignore[attr-defined]


def of_an_object_on_torch() -> Count:
    torch.held_by_tests = Sample()  # type: ignore[attr-defined]

    def count() -> float:
        torch.held_by_tests.seen += 1  # type: ignore[attr-defined]
        return torch.held_by_tests.seen  # type: ignore[attr-defined]

    return count


def of_an_object_on_modules() -> Count:
    nn.Module.tracked_by_tests = Sample()  # type: ignore[assignment]

    def count() -> float:
        nn.Module.tracked_by_tests.seen += 1  # type: ignore[union-attr,operator]
        return nn.Module.tracked_by_tests.seen  # type: ignore[union-attr,return-value]

    return count


def of_a_tensor() -> Count:
    held = torch.zeros(1)
    held.notes = Sample()  # type: ignore[attr-defined]

    def count() -> float:
        held.notes.seen += 1  # type: ignore[attr-defined]
        return held.notes.seen  # type: ignore[attr-defined]

    return count


def of_spawned_seeds() -> Count:
    seeds = np.random.SeedSequence(7)
    return lambda: 20 * np.random.default_rng(seeds.spawn(1)[0]).random()


def of_raw_bits() -> Count:
    bits = np.random.PCG64(7)
    return lambda: bits.random_raw() % 17


def of_buffers() -> Count:
    class Held:
        _buffers = 0
        training = 0

        def tick(self) -> float:
            self._buffers += 1
            self.training += 1
            return self._buffers

    held = Held()
    return lambda: held.tick()


REACHED: dict[str, Callable[[], Count]] = {
    "a submodule, by dots": by_dots,
    "a function of a submodule": by_a_function_of_it,
    "a module in an attribute": in_an_attribute,
    "a module as an argument": in_an_argument,
    "an executed file": of_an_executed_file,
    "a table of samples": of_samples,
    "many dictionaries": of_many(lambda: {"n": 0}, grow),
    "many default dictionaries": of_many(lambda: defaultdict(int), grow),
    "many counters": of_many(Counter, grow),
    "many deques": of_many(deque, appended),
    "many arrays": of_many(lambda: np.zeros(3), added),
    "a vocabulary": of_a_vocabulary,
    "stages": of_stages,
    "members of an enumeration": of_members,
    "tensors in a ring": of_tensors,
    "a decorated call": of_a_call,
    "a name with underscores": of_a_dunder,
    "a function on torch": of_a_function_on_torch,
    "an object on torch": of_an_object_on_torch,
    "an object on all modules": of_an_object_on_modules,
    "an object on a tensor": of_a_tensor,
    "spawned seeds": of_spawned_seeds,
    "raw bits": of_raw_bits,
    "names of torch's modules": of_buffers,
}

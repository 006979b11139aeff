"""Values that the user's code reaches, in a form that can be compared: before and after a pass or a step.

In: roots, such as a model and its losses. Out: numbers, texts, tensors, and the states of other objects, by name; the
names of those that differ from earlier ones.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vgame.system.installed import is_installed
from vgame.tasks.fingerprint import kind_of, state
from vgame.tasks.opened import LEAVES
from vgame.tasks.reach import reached

Roots = list[tuple[str, Any]]
AGAIN = "\0"  # between a name and a number: the second, third ... object of that name


def values_of(roots: Roots) -> dict[str, Any]:
    """Reachable numbers, strings, tensors and None, and the states of other objects, by name."""
    found, times = dict[str, Any](), Counter[str]()
    for name, value in reached(roots):
        times[name] += 1
        name += f"{AGAIN}{times[name]}" * (times[name] > 1)
        found[name] = value if isinstance(value, LEAVES) else (state(value), kind_of(value))
    return found


def values_outside() -> dict[str, Any]:
    """Numbers and strings of the user's modules, and the environment variables. Code can reach both by name:
    getattr(module, "count"), sys.modules, os.environ."""
    modules = [_held(m) for m in list(sys.modules.values())]
    found = {
        f"{name} (of the module {held.get('__name__')})": v
        for held in [*(held for held in modules if _is_users(held)), vars(sys.modules["__main__"])]
        for name, v in list(held.items())
        if _is_value(v)
    }
    return found | {f"{os.fsdecode(k)} (of os.environ)": v for k, v in getattr(os.environ, "_data", {}).items()}


def _held(module: Any) -> Mapping[str, Any]:
    """A module's attributes, read without running code of the module (such as a LazyLoader's)."""
    try:
        return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


def _is_users(held: Mapping[str, Any]) -> bool:
    file = held.get("__file__")
    if not isinstance(file, str) or is_installed(file):  # nearly all
        return False
    return str(held.get("__name__")).partition(".")[0] != "vgame"


def _is_value(value: Any) -> bool:
    parts = value if type(value) is tuple else (value,)
    return all(isinstance(part, int | float | complex | str | bytes | np.number | np.bool_) for part in parts)


def differing(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """The sorted names whose values are not the same."""
    return [name for name in sorted({*now, *before}) if not _is_same(now.get(name), before.get(name))]


def _is_same(now: Any, before: Any) -> bool:
    """Whether both are one object, or equal numbers or texts, also in tuples."""
    if type(now) is tuple and type(before) is tuple and len(now) == len(before):
        return all(map(_is_same, now, before))
    if now is before or type(now) is not type(before) or not (_is_value(now) and _is_value(before)):
        return now is before
    return bool(now == before) and repr(now) == repr(before)  # (0, 0.0) is not (0.0, 0), nor is 0.0 -0.0


def innermost(names: Iterable[str]) -> list[str]:
    """The names that are shown: without numbers of further objects, and without objects of which a part is named
    too."""
    places = {name: name.split(" (")[0] for name in (each.split(AGAIN)[0] for each in names)}
    wholes = {path[:n] for path in places.values() for n, letter in enumerate(path) if letter == "."}
    return [name for name, path in places.items() if path not in wholes]

"""Values that code can reach by a name made at run time, or through a function of a library.

In: the names that code uses. Out: values by name, and attributes of library modules and classes that the user has set.
"""

from __future__ import annotations

import decimal
import logging
from collections import deque
from collections.abc import Collection
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from torch import nn

from vgame.system.installed import is_made_by_user, is_of_user
from vgame.tasks.opened import PLAIN

CONTAINERS = (list, dict, set, deque)
#: Functions by which code finds objects of its own module under any name.
OWN = {"globals", "vars", "eval", "exec"}
#: The same, by attributes of functions and frames, of `sys`, `importlib`, `inspect` or `operator`.
OTHER = {"__globals__", "f_globals", "modules", "import_module", "getmodule", "attrgetter"}
#: Functions and attributes by which code finds objects of a module that it names.
OF_MODULE = {"getattr", "vars", "__dict__"}
#: Modules whose containers change by themselves.
RESTLESS = {"sys", "os", "gc", "warnings", "linecache", "logging", "threading", "re", "importlib"}
#: Texts and dictionaries of functions and classes that code may change by these names.
OF_CODE = ("__doc__", "__annotations__")
LARGE = 2**20  # bytes of an array that is not compared if only its name may be made at run time
_FIELDS = {*vars(logging.Logger("")), "_cache"}


def named_at_run_time(
    used: Collection[str], names: Collection[str], own: dict[str, Any], read: dict[str, Any]
) -> dict[str, Any]:
    """The values that a function may reach by names that are made at run time: objects of its own module and of the
    user's modules among the values that it reads, loggers, the context of decimals. used: the globals that it uses;
    names: also the attributes."""
    modules = {own.get("__name__"): own} if not OWN.isdisjoint(used) or not OTHER.isdisjoint(names) else {}
    if not OF_MODULE.isdisjoint(names):
        named = [value for value in read.values() if type(value) is ModuleType and is_made_by_user(value.__name__)]
        modules |= {module.__name__: vars(module) for module in named}
    found = {
        f"{name} (of the module {module})": value
        for module, held in modules.items()
        for name, value in held.items()
        if not name.startswith("__") and can_count(value)
    }
    if "getLogger" in names:
        loggers = [held for held in logging.Logger.manager.loggerDict.values() if isinstance(held, logging.Logger)]
        for held in (logging.root, *loggers):
            added = {k: v for k, v in vars(held).items() if k not in _FIELDS}
            found |= {f"logging.getLogger({held.name!r}).{k}": v for k, v in added.items()}
    if "getcontext" in names:
        context = decimal.getcontext()
        fields = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)
        found["decimal.getcontext()"] = repr(fields)
    return found


def can_count(value: Any) -> bool:
    """Whether it is a container, a small array, or an object of a user's class; models and optimizers are compared
    elsewhere."""
    if isinstance(value, np.ndarray):
        return value.nbytes <= LARGE
    return isinstance(value, CONTAINERS) or (
        is_made_by_user(type(value).__module__) and not isinstance(value, nn.Module)
    )


def set_by_the_user(owner: Any, value: Any) -> bool:
    """Whether an attribute of a library's module or class may be the user's: a number, a container, a function or an
    object of the user's code."""
    if isinstance(value, FunctionType):
        return is_of_user(value.__code__.co_filename)
    of = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    held = isinstance(value, (*CONTAINERS, SimpleNamespace)) and of.partition(".")[0] not in RESTLESS
    return type(value) in PLAIN or held or is_made_by_user(type(value).__module__)


def of_library_class(kind: type) -> list[tuple[str, Any]]:
    """What the user may have put on a library's class of modules."""
    if not issubclass(kind, nn.Module):
        return []
    return [(k, v) for k, v in vars(kind).items() if k[:2] != "__" and set_by_the_user(kind, v)]


def of_code(name: str, value: Any, names: Collection[str]) -> dict[str, Any]:
    """The text and the annotations of a function or class, if code with these names may change them."""
    used = [each for each in OF_CODE if each in names] if isinstance(value, FunctionType | type) else []
    return {f"{name}.{each}": getattr(value, each, None) for each in used}

"""Values that code can reach by a name made at run time, or through a function of a library.

In: the names that code uses. Out: values by name, and attributes of library modules and classes that the user has set.
"""

from __future__ import annotations

import decimal
import logging
import sys
from collections import deque
from collections.abc import Collection, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import nn

from vgame.system.installed import is_of_user
from vgame.tasks.opened import PLAIN

CONTAINERS = (list, dict, set, deque)
#: Functions and attributes by which code finds an object of a module under any name.
ANY_NAME = {"globals", "vars", "eval", "exec", "getattr", "attrgetter", "__dict__", "modules", "import_module"}
#: Modules whose containers change by themselves.
RESTLESS = {"sys", "os", "gc", "warnings", "linecache", "logging", "threading", "re", "importlib"}
#: Texts and dictionaries of functions and classes that code may change by these names.
OF_CODE = ("__doc__", "__annotations__")
LARGE = 2**20  # bytes of an array that is not compared if only its name may be made at run time
_FIELDS = {*vars(logging.Logger("")), "_cache"}


def named_at_run_time(names: Collection[str]) -> dict[str, Any]:
    """The values that code with these names may reach: objects of all modules of the user, loggers, the context of
    decimals."""
    found = dict(_of_modules()) if not ANY_NAME.isdisjoint(names) else {}
    if "getLogger" in names:
        loggers = [held for held in logging.Logger.manager.loggerDict.values() if isinstance(held, logging.Logger)]
        for held in (logging.root, *loggers):
            own = {k: v for k, v in vars(held).items() if k not in _FIELDS}
            found |= {f"logging.getLogger({held.name!r}).{k}": v for k, v in own.items()}
    if "getcontext" in names:
        context = decimal.getcontext()
        fields = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)
        found["decimal.getcontext()"] = repr(fields)
    return found


def _of_modules() -> Iterator[tuple[str, Any]]:
    """Containers and objects of the user's modules. Numbers and texts are compared for every loss."""
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and _is_users(module.__name__):
            for name, value in list(vars(module).items()):
                if not name.startswith("__") and _may_count(value):
                    yield f"{name} (of the module {module.__name__})", value


def _may_count(value: Any) -> bool:
    """Whether it is a container, a small array, or an object of a user's class; models and optimizers are compared
    elsewhere."""
    if isinstance(value, np.ndarray):
        return value.nbytes <= LARGE
    return isinstance(value, CONTAINERS) or (_is_users(type(value).__module__) and not isinstance(value, nn.Module))


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file and is_of_user(file)) or module == "__main__"


def set_by_the_user(owner: Any, value: Any) -> bool:
    """Whether an attribute of a library's module or class may be a counter that the user has put there."""
    of = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return type(value) in PLAIN or (isinstance(value, CONTAINERS) and of.partition(".")[0] not in RESTLESS)


def of_library_class(kind: type) -> list[tuple[str, Any]]:
    """Numbers, texts and containers of a library's class of modules."""
    if not issubclass(kind, nn.Module):
        return []
    return [(k, v) for k, v in vars(kind).items() if k[:2] != "__" and set_by_the_user(kind, v)]


def of_code(name: str, value: Any, names: Collection[str]) -> dict[str, Any]:
    """The text and the annotations of a function or class, if code with these names may change them."""
    used = [each for each in OF_CODE if each in names] if isinstance(value, FunctionType | type) else []
    return {f"{name}.{each}": getattr(value, each, None) for each in used}

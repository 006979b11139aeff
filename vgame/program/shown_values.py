"""Whether a statement that prints could do more: a `__str__` of the user's, a handler of a logger that keeps the text.

In: the syntax of a call that prints, and the names of its frame. Out: whether it only prints.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import textwrap
from logging.handlers import BufferingHandler, QueueHandler
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from vgame.program.statements import object_at
from vgame.system.installed import is_users
from vgame.tasks.reach import is_own_class

ABSENT = object()
PLAIN = (str, format, float, int, round, repr, len, abs)  # functions without effects
READS = {"item", "detach", "mean", "max", "min", "sum", "norm", "abs", "cpu"}  # methods of tensors
SHOWN = (int, float, complex, str, type(None), torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
OTHERS = ast.NamedExpr | ast.Lambda | ast.Yield | ast.YieldFrom | ast.Await
OTHERS |= ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
#: Methods that the user's handlers, filters and formatters of logging may call.
LOGGING = {"acquire", "emit", "filter", "flush", "format", "formatException", "formatTime", "get", "getMessage"}
LOGGING |= {"handleError", "isatty", "join", "ljust", "print", "release", "replace", "startswith", "strip", "write"}


def calls_nothing_else(statement: ast.stmt, names: dict[str, Any]) -> bool:
    """Whether a statement that prints calls nothing that could change something else."""
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Call | ast.NamedExpr)]
    shown = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    calls = all(isinstance(n, ast.Call) and _is_plain_call(n.func, names) for n in nodes[1:])
    return calls and not any(_has_own_text(names.get(n.id)) for n in shown)


def _is_plain_call(function: ast.expr, names: dict[str, Any]) -> bool:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
        return isinstance(function.value.value, str)
    found = object_at(function, names)
    if any(found is each for each in PLAIN):
        return True
    reads = isinstance(function, ast.Attribute) and function.attr in READS and not is_users(found)
    return reads and is_of_tensors(function.value, names)  # type: ignore[attr-defined]


def is_of_tensors(place: ast.expr, names: dict[str, Any]) -> bool:
    """Whether a method of this object is not the user's: the object is not an element of a container with objects other
    than tensors, numbers and texts."""
    if not isinstance(place, ast.Subscript):
        return True
    held = object_at(place.value, names)
    parts = list(held.values()) if isinstance(held, dict) else held if isinstance(held, list | tuple) else [held]
    return all(isinstance(part, torch.Tensor | int | float | str) for part in parts)


def may_fail(statements: list[ast.stmt]) -> bool:
    """Whether making a text that statements print may fail: a computation, an element, an integer of nan."""
    nodes = [n for each in statements for n in ast.walk(each)]
    specs = [n.format_spec for n in nodes if isinstance(n, ast.FormattedValue) and n.format_spec is not None]
    whole = any(not ast.unparse(spec).rstrip("'\"").endswith(("e", "f", "g", "%", "s")) for spec in specs)
    calls = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    computes = any(isinstance(n, ast.BinOp | ast.Subscript) for n in nodes)
    return whole or computes or not calls.isdisjoint({"int", "round", "format"})


def runs_nothing(node: ast.AST, names: dict[str, Any]) -> bool:
    """Whether the names in a node are numbers, texts, tensors and containers of these: no property, operator or text
    of the user's is computed. The functions that it calls are not examined."""
    if isinstance(node, OTHERS):
        return False
    if isinstance(node, ast.Name):
        return _is_plain(names.get(node.id, ABSENT))
    if isinstance(node, ast.Attribute):
        owner = object_at(node.value, names)
        own = is_users(getattr(type(owner), "__getattribute__", None))
        found = inspect.getattr_static(owner, node.attr, ABSENT)  # absent: a `__getattr__` decides
        return isinstance(owner, torch.Tensor) or (not own and _is_plain(found))
    inner = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.Call):
        owner = object_at(node.func.value, names) if isinstance(node.func, ast.Attribute) else builtins
        given = [] if isinstance(owner, ModuleType | type) else [node.func.value]  # type: ignore[attr-defined]
        inner = [*given, *node.args, *node.keywords]
    return all(runs_nothing(each, names) for each in inner)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        parts = [*value, *value.values()] if isinstance(value, dict) else [*value]
        return type(value) in (dict, list, tuple) and all(map(_is_plain, parts))
    return isinstance(value, SHOWN) and not is_own_class(type(value)) and not _has_own_text(value)


def _has_own_text(value: Any) -> bool:
    """Whether the text of a value is made by the user's code."""
    if isinstance(value, type | torch.Tensor | logging.Logger | FunctionType):
        return False
    return any(is_users(getattr(type(value), name, None)) for name in ("__str__", "__repr__", "__format__"))


def keeps_no_text(call: ast.Call, names: dict[str, Any]) -> bool:
    """Whether a call of a logger meets no handler, filter or formatter of the user's that could keep its text."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    found = None if owner is None else object_at(owner, names)
    found = logging.getLogger() if found is logging or isinstance(owner, ast.Call) else found
    adapters = []
    while isinstance(found, logging.LoggerAdapter):
        adapters.append(found)
        found = inspect.getattr_static(found, "logger", None)
    parts = _parts(found) if isinstance(found, logging.Logger) else []
    return all(map(_only_tells, [*adapters, *parts]))


def is_of_logging(frame: FrameType) -> bool:
    """Whether a frame runs a method of a handler, filter or formatter of the user's that keeps no text."""
    part = frame.f_locals.get("self")
    return isinstance(part, logging.Handler | logging.Filter | logging.Formatter) and _only_tells(part)


def _parts(logger: logging.Logger | None) -> list[Any]:
    """The handlers, filters and formatters that a record of a logger meets."""
    found: list[Any] = []
    while logger is not None:
        found += [logger, *logger.filters]
        for handler in logger.handlers:
            found += [handler, handler.formatter, *handler.filters]
        logger = logger.parent if logger.propagate else None
    return found


def _only_tells(part: Any) -> bool:
    """Whether the user's code of a part of logging changes no attribute and calls nothing unknown."""
    if isinstance(part, FunctionType):
        return _changes_nothing(part)
    if isinstance(part, QueueHandler | BufferingHandler):
        return False
    own = [value for kind in type(part).__mro__ for value in vars(kind).values() if isinstance(value, FunctionType)]
    given = [value for value in getattr(part, "__dict__", {}).values() if isinstance(value, FunctionType)]
    return all(_changes_nothing(f) for f in [*own, *given] if f.__name__ != "__init__" and is_users(f))


def _changes_nothing(function: FunctionType) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return False
    nodes = [n for n in ast.walk(tree) if n is not tree.body[0]]
    stored = [n for n in nodes if isinstance(getattr(n, "ctx", None), ast.Store | ast.Del)]
    other = ast.Global | ast.Nonlocal | ast.FunctionDef | ast.Lambda | ast.NamedExpr
    names = {**vars(builtins), **function.__globals__}
    if any(isinstance(n, other) for n in nodes) or not all(isinstance(n, ast.Name) for n in stored):
        return False
    return all(_tells(n.func, names) for n in nodes if isinstance(n, ast.Call))


def _tells(function: ast.expr, names: dict[str, Any]) -> bool:
    found = object_at(function, names)
    if isinstance(function, ast.Attribute):
        return function.attr in LOGGING
    return found is not None and not is_users(found)

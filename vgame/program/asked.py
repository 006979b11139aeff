"""Find the user's check that tests whether numbers are finite, around a place of the loss that reads one of them.

In: a frame of a traced loss. Out: the frame of the check, or the reason why there is none. A check is an `assert`, an
`if` with a branch that at most prints and then raises or ends the process, or an `if` whose branches only print. The
condition may call a helper that only tests. No code of the loss may catch the error, and no other code may read the
tested value.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import pdb
import sys
import types
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch

from vgame.program.catching import ANY, GENERATES, Kinds, catching, raised_kind
from vgame.program.hidden_state import is_library_file, own_frame
from vgame.program.printing import READS_ALL, assigned_names, is_printed, reads_of
from vgame.program.shown_values import calls_nothing_else, is_of_tensors, keeps_no_text, may_fail, runs_nothing
from vgame.program.statements import (
    SCOPES,
    Place,
    around,
    begin_of,
    end_of,
    holds,
    is_output,
    names_of,
    nodes_of,
    object_at,
    place_in,
)
from vgame.system.installed import is_of_user

FORM = (
    "a check of finite numbers is the condition of an `assert`, or of an `if` whose branch only prints, and then may "
    "raise an error or end the process; select numbers with torch.where"
)
ALONE = "a check of finite numbers may call no function of yours, but one that only returns whether they are finite"
CAUGHT = (
    "the error of this check could be caught by the code at {} (`try`, `with` or a decorator), which would train "
    "another step; catch only errors of other classes there, or move the check out of it"
)
RETURNED = "returned"
WARNED: Kinds = (Warning, UserWarning, RuntimeWarning)
ENDS = (sys.exit, os._exit, os.abort, *(getattr(builtins, name, sys.exit) for name in ("exit", "quit")))
STOPS = (breakpoint, pdb.set_trace)
CALLS = ("__init__", "__call__", "__new__")
#: Methods that only read: of tensors, of arrays, of modules and of their containers.
METHODS = {
    *("isnan", "isinf", "isfinite", "isposinf", "isneginf", "any", "all", "sum", "mean", "max", "min", "norm", "abs"),
    *("item", "tolist", "numpy", "detach", "cpu", "float", "double", "long", "int", "bool", "clone", "logical_not"),
    *("flatten", "view", "reshape", "squeeze", "unsqueeze", "numel", "dim", "size", "is_floating_point", "eq", "ne"),
    *("parameters", "named_parameters", "buffers", "named_buffers", "values", "items", "keys", "is_complex", "isreal"),
}
#: Functions of torch and NumPy that only read, besides those with the names above; then Python's own.
OTHERS = {"allclose", "array", "as_tensor", "asarray", "cat", "count_nonzero", "equal", "isclose", "stack", "tensor"}
OTHERS |= {"logical_and", "logical_or", "nan_to_num", "vector_norm", "get_total_norm", "tree_leaves", "where"}
PLAIN = (
    abs,
    all,
    any,
    bool,
    dict,
    enumerate,
    float,
    int,
    isinstance,
    len,
    list,
    max,
    min,
    range,
    round,
    sum,
    tuple,
    zip,
)
DECORATORS = torch.utils._contextlib.__file__
WRITTEN = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>")
ASKS = ast.Return | ast.If | ast.For | ast.Pass | ast.Assign | ast.AnnAssign


def check_around(frame: FrameType | None) -> tuple[FrameType | None, str]:
    """(the frame of the check whose condition reads a number at this place or None, the reason for None)."""
    frame, called = _writer(own_frame(frame)), None
    while frame is not None:
        if not (statements := around(frame, ast.stmt)):
            break
        reason = _use(statements[-1], *place_in(frame), frame, called)
        if reason != RETURNED:
            return (None, reason) if reason else (frame, "")
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        called = frame.f_code
        frame = _writer(_caller(frame))
    return None, FORM


def shows_around(frame: FrameType | None) -> FrameType | None:
    """The frame of an `if` whose condition reads a number at this place, and whose branches all only print; else
    None."""
    frame = _writer(own_frame(frame))
    if frame is None or not isinstance(check := next(iter(around(frame, ast.stmt)[-1:]), None), ast.If):
        return None
    (begin, stop), names = place_in(frame), names_of(frame)
    shows = holds(check.test, begin, stop) and not _alone(check.test, begin, stop, names, None)
    return frame if shows and _only_shows(check, frame, names) and not catching(frame, ANY, begin) else None


def _only_shows(check: ast.If, frame: FrameType, names: dict[str, Any]) -> bool:
    """Whether the branches of an `if` only print, and neither they nor the condition call the user's code."""
    calls = [n for n in ast.walk(check.test) if isinstance(n, ast.Call)]
    asks = all(_is_librarys(n.func, object_at(n.func, names), names) and not _writes(n) for n in calls)
    if not (asks and runs_nothing(check.test, names)):
        return False
    return all(
        _only_shows(each, frame, names)
        if isinstance(each, ast.If)
        else _shows(each, frame) and calls_nothing_else(each, names) and _gives_nothing(each, names)
        for each in (*check.body, *check.orelse)
    )


def _gives_nothing(statement: ast.stmt, names: dict[str, Any]) -> bool:
    """Whether a statement that prints runs no code of the user's for its arguments and binds no name."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return isinstance(statement, ast.Pass)
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg not in ("file", "stream"))]
    return all(runs_nothing(each, names) for each in given)


def asks_class(frame: FrameType | None) -> bool:
    """Whether the value read at this place is only an argument of `isinstance`."""
    if (frame := own_frame(frame)) is None or not (statements := around(frame, ast.stmt)):
        return False
    begin, stop = place_in(frame)
    calls = [n for n in ast.walk(statements[-1]) if isinstance(n, ast.Call)]
    given = [n for n in calls if any(holds(a, begin, stop) for a in _arguments(n))]
    return bool(given) and object_at(max(given, key=begin_of).func, names_of(frame)) is isinstance


def _writer(frame: FrameType | None) -> FrameType | None:
    """The frame of the function in which a lambda or a comprehension is written, if the function itself runs it."""
    while frame is not None and (code := frame.f_code).co_name in WRITTEN:
        frame = _caller(frame)
        if frame is None or not any(code is each for each in frame.f_code.co_consts):
            return None
    return frame


def _caller(frame: FrameType) -> FrameType | None:
    """The user's frame that called this one, also through a decorator of torch; None if a library called it."""
    above = frame.f_back
    while above is not None and above.f_code.co_filename == DECORATORS:
        above = above.f_back
    return None if above is None or is_library_file(above.f_code.co_filename) else above


def _use(statement: ast.stmt, begin: Place, stop: Place, frame: FrameType, called: Any, named: bool = False) -> str:
    """The reason why a statement may do more than test the value that it reads at a place, "" if it only tests;
    RETURNED if its function returns the value. `called`: the code of a helper that returned it. `named`: it is read
    from a local name."""
    names = names_of(frame)
    match statement:
        case ast.Assert(test=test):
            return _alone(test, begin, stop, names, called) or _left([(AssertionError,)], frame, begin)
        case ast.Expr(value=ast.Call(func=function, args=[test, *_])) if object_at(function, names) is torch._assert:
            return _alone(test, begin, stop, names, called) or _left([(AssertionError,)], frame, begin)
        case ast.If(test=test, body=body, orelse=orelse):
            reason = _alone(test, begin, stop, names, called)
            return reason or _branches(statement, [*body, *orelse], frame, begin)
        case ast.Return(value=ast.expr() as value):
            return _alone(value, begin, stop, names, called) or RETURNED
        case ast.Expr(value=ast.Call() as call) if called is not None and holds(call, begin, stop):
            return "" if (begin_of(call), end_of(call)) == (begin, stop) else FORM  # its result is not used
        case ast.Raise() if named:
            return ""
    if named:
        return "" if is_printed(statement, begin, stop, frame) else FORM
    return _of_names(statement, begin, stop, frame, called)


def _branches(check: ast.If, statements: list[ast.stmt], frame: FrameType, place: Place) -> str:
    """The reason why the branches of a check may do more than print, raise and end the process; or RETURNED."""
    names = names_of(frame)
    if any(isinstance(n, GENERATES) for n in ast.walk(check)):
        return FORM
    ends = [kinds for branch in (check.body, check.orelse) if (kinds := _ends(branch, frame, names)) is not None]
    if ends:
        return _left(ends, frame, place)
    if all(_shows(each, frame) and calls_nothing_else(each, names) for each in statements):
        warns = any(_is_call(each, (warnings.warn,), names) for each in statements)
        fails = [ANY] if may_fail(statements) else [WARNED] if warns else []
        return _left(fails, frame, place)
    answers = [each for each in statements if isinstance(each, ast.Return)]
    shown = all(_shows(each, frame) and calls_nothing_else(each, names) for each in statements if each not in answers)
    plain = shown and all(isinstance(each.value, ast.Constant | None) for each in answers)
    return RETURNED if plain and _is_pure(frame.f_code, names) else FORM


def _left(ends: list[Kinds], frame: FrameType, place: Place) -> str:
    found = (catching(frame, kinds, place) for kinds in ends if kinds)
    return next((CAUGHT.format(line) for line in found if line), "")


def _of_names(statement: ast.stmt, begin: Place, stop: Place, frame: FrameType, called: Any) -> str:
    """As `_use`, for a statement that assigns the value to local names: judges the statements that read these names."""
    targets, value = assigned_names(statement)
    functions = around(frame, SCOPES, begin)
    own = {*frame.f_code.co_varnames} - {*frame.f_code.co_cellvars}
    if not (value and functions and holds(value, begin, stop) and {*targets} <= own):
        return FORM
    if READS_ALL.intersection(frame.f_code.co_names):
        return FORM
    if reason := _alone(value, begin, stop, names_of(frame), called):
        return reason
    inside = [n for n in ast.walk(functions[-1]) if isinstance(n, ast.stmt)]
    reads = [(each, n) for each in inside for name in targets for n in reads_of(each, name)]
    uses = {_use(each, begin_of(n), end_of(n), frame, None, named=True) for each, n in reads}
    return next((use for use in uses if use not in ("", RETURNED)), RETURNED if RETURNED in uses else "")


def _ends(branch: list[ast.stmt], frame: FrameType, names: dict[str, Any]) -> Kinds | None:
    """The classes of the errors by which a branch that otherwise only prints can end; () if it ends the process at
    once; None if it does neither, or if Python itself catches the error's class."""
    if not branch or not all(_shows(each, frame) for each in branch[:-1]):
        return None
    match branch[-1]:
        case ast.Expr(value=ast.Call(func=function)):
            found = object_at(function, names)
            if any(found is end for end in ENDS):
                return () if found in (os._exit, os.abort) else (SystemExit,)
        case ast.Raise() as raised if (kind := raised_kind(raised, names)) is not None:
            warned = WARNED if any(_is_call(each, (warnings.warn,), names) for each in branch) else ()
            return (kind, *warned) if _cannot_fail(branch, kind, names) else ANY
    return None


def _cannot_fail(branch: list[ast.stmt], kind: type, names: dict[str, Any]) -> bool:
    """Whether a branch can raise its own error only: its text computes nothing, and the class has no `__init__` in
    Python."""
    own = [n for kind in kind.__mro__ if isinstance(n := vars(kind).get("__init__"), types.FunctionType)]
    return not (may_fail(branch) or own) and all(calls_nothing_else(each, names) for each in branch)


def _shows(statement: ast.stmt, frame: FrameType) -> bool:
    """Whether a statement prints, warns, stops for a debugger, or does nothing."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.Import):
        return all(name.name in sys.stdlib_module_names for name in statement.names)
    if isinstance(statement, ast.Pass) or _is_call(statement, (warnings.warn,), names := names_of(frame)):
        return True
    if _is_call(statement, STOPS, names):
        return not is_of_user(getattr(getattr(sys.breakpointhook, "__code__", None), "co_filename", "<frozen "))
    return isinstance(call, ast.Call) and is_output(call, frame) and keeps_no_text(call, names)


def _is_call(statement: ast.stmt, functions: tuple[Any, ...], names: dict[str, Any]) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if functions is STOPS and isinstance(call, ast.Call) and ast.unparse(call.func) == "pdb.set_trace":
        return names.get("pdb", pdb) is pdb  # a branch imports it
    return isinstance(call, ast.Call) and any(object_at(call.func, names) is each for each in functions)


def _alone(asked: ast.expr, begin: Place, stop: Place, names: dict[str, Any], called: Any) -> str:
    """The reason why the expression of a check may do more than test the value that it reads at a place. `called`: as
    for `_use`."""
    nodes = [*ast.walk(asked)]
    if any(isinstance(n, ast.NamedExpr | ast.IfExp | GENERATES) or _writes(n) for n in nodes):
        return FORM
    later = [n for each in nodes for part in _later(each) for n in ast.walk(part)]
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    given = [n for n in calls if any(holds(a, begin, stop) for a in _arguments(n)) and not _asks(n.func, names, called)]
    other = [n for n in later if isinstance(n, ast.Call) and not _asks(n.func, names, called)]
    passed = [a for n in calls if called for a in _arguments(n) if _is_users(object_at(a, names))]
    return ALONE if given or other or not all(_asks(a, names, called) for a in passed) else ""


def _later(node: ast.AST) -> list[ast.AST]:
    """Parts of an expression that Python evaluates only for some values of others."""
    if isinstance(node, ast.BoolOp):
        return [*node.values[1:]]
    if isinstance(node, ast.Compare):
        return [*node.comparators[1:]]
    return [node] if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) else []


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)


def _asks(function: ast.expr, names: dict[str, Any], called: Any = None) -> bool:
    """Whether a call of this changes nothing: a function of a library, a method of tensors, a helper that only
    tests."""
    found = object_at(function, names)
    if not _is_users(found):
        return _is_librarys(function, found, names)
    code = _code_of(found)
    return code is not None and (code is called or _is_pure(code, {**vars(builtins), **_globals_of(found)}))


def _is_librarys(function: ast.expr, found: Any, names: dict[str, Any]) -> bool:
    """Whether a function that is not the user's is a library function or a method that is known to only read."""
    if isinstance(function, ast.Attribute):
        owner = object_at(function.value, names)
        if not isinstance(owner, types.ModuleType | type):
            return function.attr in METHODS and is_of_tensors(function.value, names)
    if any(found is each for each in PLAIN) or getattr(found, "__module__", None) == "math":
        return True
    return isinstance(found, np.ufunc) or (_is_numerical(found) and getattr(found, "__name__", "") in METHODS | OTHERS)


def _is_numerical(found: Any) -> bool:
    """Whether this belongs to torch or NumPy."""
    owner = getattr(found, "__objclass__", None) or getattr(found, "__self__", None)
    of = getattr(found, "__module__", None) or getattr(owner, "__module__", None) or ""
    return str(of).split(".")[0] in ("torch", "numpy")


def _is_users(found: Any) -> bool:
    """Whether this is a function, a class or an object of the user's that can be called."""
    if isinstance(found, torch.Tensor | torch.nn.Module) or not callable(found):
        return isinstance(found, torch.nn.Module)
    if (code := _code_of(found)) is not None:
        return is_of_user(code.co_filename)
    kind = found if isinstance(found, type) else type(found)
    owned = [getattr(vars(each).get(name), "__code__", None) for each in kind.__mro__ for name in CALLS]
    return any(code is not None and is_of_user(code.co_filename) for code in owned)


def _code_of(found: Any) -> Any:
    return getattr(getattr(found, "__func__", found), "__code__", None)


def _globals_of(found: Any) -> dict[str, Any]:
    return getattr(getattr(found, "__func__", found), "__globals__", {})


def _is_pure(code: Any, names: dict[str, Any]) -> bool:
    """Whether a function only tests: it assigns local names only, and calls nothing that could change anything else."""
    functions = [n for n in nodes_of(code.co_filename) if isinstance(n, ast.FunctionDef) and n.name == code.co_name]
    found = [n for n in functions if code.co_firstlineno in (n.lineno, *(d.lineno for d in n.decorator_list))]
    return len(found) == 1 and all(_only_asks(n, names) for each in found[0].body for n in ast.walk(each))


def _only_asks(node: ast.AST, names: dict[str, Any]) -> bool:
    if isinstance(node, ast.stmt) and not isinstance(node, ASKS):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Call)
    if isinstance(node, ast.Call):
        if (found := object_at(node.func, names)) is print:
            return not node.keywords
        return not (_writes(node) or _is_users(found)) and _is_librarys(node.func, found, names)
    stored = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del) and not isinstance(node, ast.Name)
    return not (stored or isinstance(node, ast.Lambda | ast.NamedExpr | GENERATES))


def _writes(node: ast.AST) -> bool:
    """Whether this calls a method that writes in place."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")

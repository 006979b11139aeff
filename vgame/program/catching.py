"""Code around a place of a traced loss that could catch an error and go on, so that torch would train a different step.

In: a frame of a traced loss, and classes of errors. Out: the line of such code, or "". Unknown code counts as such: a
context or a handler's class that cannot be found by its name, and code of Python's library that has a handler.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import inspect
import io
import threading
import warnings
from itertools import pairwise
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from vgame.program.hidden_state import PACKAGE, calls_loss, is_library_file
from vgame.program.statements import SCOPES, Place, around, begin_of, end_of, names_of, nodes_of, object_at, place_in
from vgame.system.installed import is_of_python, is_users

Kinds = tuple[type[BaseException], ...]
ANY: Kinds = (BaseException,)  # errors of an unknown class
#: Errors that Python itself catches, as in `getattr(x, name, default)` and `for`.
SWALLOWED: Kinds = (AttributeError, LookupError, StopIteration, StopAsyncIteration, GeneratorExit)
SWALLOWED += (NotImplementedError, ImportError, TypeError)
GENERATES = ast.Yield | ast.YieldFrom | ast.Await
LEAVES = ast.Return | ast.Break | ast.Continue | GENERATES
BLOCKS = ast.Try | ast.TryStar | ast.With | ast.AsyncWith
OUTSIDE = (str(PACKAGE / "runs"), str(PACKAGE / "api.py"))  # code that is not in the loss
RELEASES = {f"{what}_{kind}" for what in ("STORE", "DELETE") for kind in ("FAST", "NAME", "GLOBAL", "DEREF")}
RELEASES |= {"POP_TOP", "POP_EXCEPT"}
LIBRARIES = ("torch", "accelerate")  # whose contexts catch no error
OPEN = (open, threading.Lock, threading.RLock)
OPENED = (io.IOBase, type(threading.Lock()), type(threading.RLock()))


def catching(frame: FrameType | None, kinds: Kinds = ANY, place: Place | None = None) -> str:
    """The line of the code around a place of the loss that could catch an error of exactly these classes and go on, or
    "". The default place is the expression that the frame runs."""
    while frame is not None and not calls_loss(frame):
        if (file := (code := frame.f_code).co_filename).startswith(OUTSIDE):
            break
        line, known = f"{Path(file).name} line {frame.f_lineno}", nodes_of(file)
        if code.co_name == "__del__" or (code.co_exceptiontable and (is_of_python(file) or not known)):
            return line
        at = place or place_in(frame)[0]
        blocks = [] if is_library_file(file) else _blocks(frame, at)
        for block in reversed(blocks):
            if code.co_flags & inspect.CO_GENERATOR and _is_end(block, at):
                return f"{Path(file).name} line {block.lineno}"
            if not (kinds := _leaving(block, at, kinds, names_of(frame))):
                return f"{Path(file).name} line {block.lineno}"
        frame, place = frame.f_back, None
        if frame is not None and _releases(frame):  # it deletes an object, whose callback runs; errors are ignored
            return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"
    return ""


def _releases(frame: FrameType) -> bool:
    """Whether a frame runs an instruction that can call code only by deleting an object."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name in RELEASES


def _is_end(block: Any, place: Place) -> bool:
    """Whether a place comes after the body of a `try`, such as in its `finally` or a handler. Python runs this code
    when it closes an unused generator, and ignores its errors."""
    return isinstance(block, ast.Try | ast.TryStar) and place >= end_of(block.body[-1])


def _blocks(frame: FrameType, place: Place) -> list[Any]:
    """The blocks around a place in the function that runs; not those around the function, which only define it."""
    blocks, scopes = around(frame, BLOCKS, place), around(frame, SCOPES, place)
    own = bool(scopes) and getattr(scopes[-1], "name", "<lambda>") == frame.f_code.co_name
    return [b for b in blocks if not own or begin_of(b) >= begin_of(scopes[-1])]


def _leaving(block: Any, place: Place, kinds: Kinds, names: dict[str, Any]) -> Kinds:
    """The classes of the errors that leave a block if one of `kinds` is raised inside; () if it could catch one and go
    on."""
    if isinstance(block, ast.With | ast.AsyncWith):
        inside = len(block.items) > 1 or place >= begin_of(block.body[0])
        contexts = [item.context_expr for item in block.items]
        catches = inside and not all(_lets_through(each, kinds, names) for each in contexts)
        catches |= inside and not _named(contexts).isdisjoint(_stored(block))
        if catches or (inside and isinstance(block, ast.AsyncWith)):
            return ()
        return ANY if inside and any(_has_own_exit(each, names) for each in contexts) else kinds
    last = block.finalbody
    if last and place < begin_of(last[0]) and _has(last, LEAVES | ast.Raise):
        return ()
    if place >= end_of(block.body[-1]):
        return kinds
    for handler in block.handlers:
        if _handles(handler.type, kinds, names):
            if isinstance(block, ast.TryStar) or not _raises_again(handler, names):
                return ()
            again = len(handler.body) == 1 and _is_same(handler.body[0].exc, handler)
            kinds = kinds if again else ANY
    return kinds


def _handles(handled: ast.expr | None, kinds: Kinds, names: dict[str, Any]) -> bool:
    """Whether a handler of these classes could catch an error."""
    if handled is None or kinds == ANY:
        return True
    if isinstance(handled, ast.Tuple):
        return any(_handles(each, kinds, names) for each in handled.elts)
    found = object_at(handled, names)
    classes = found if isinstance(found, tuple) else (found,)
    return not all(isinstance(c, type) for c in classes) or any(issubclass(k, classes) for k in kinds)


def _raises_again(handler: ast.ExceptHandler, names: dict[str, Any]) -> bool:
    """Whether a handler always ends by raising an error."""
    last = handler.body[-1]
    if not isinstance(last, ast.Raise) or _has(handler.body, LEAVES):
        return False
    return _is_same(last.exc, handler) or raised_kind(last, names) is not None


def _is_same(raised: ast.expr | None, handler: ast.ExceptHandler) -> bool:
    return raised is None or (isinstance(raised, ast.Name) and raised.id == handler.name)


def raised_kind(statement: ast.Raise, names: dict[str, Any]) -> type[BaseException] | None:
    """The class of the error that a statement raises; None if it is unknown, or one that Python itself catches."""
    raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    found = None if raised is None else object_at(raised, names)
    kind = type(found) if isinstance(found, BaseException) else found
    known = isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(kind, SWALLOWED)
    return kind if known else None


def _has(statements: list[ast.stmt], kinds: Any) -> bool:
    return any(isinstance(n, kinds) for each in statements for n in ast.walk(each))


def _named(contexts: list[ast.expr]) -> set[str]:
    """The names and attributes in the expressions of contexts, without the arguments of a call."""
    found = [n for each in contexts for n in ast.walk(each.func if isinstance(each, ast.Call) else each)]
    return {n.id if isinstance(n, ast.Name) else n.attr for n in found if isinstance(n, ast.Name | ast.Attribute)}


def _stored(block: ast.AST) -> set[str]:
    """The names and attributes that a block sets or deletes."""
    found = [n for n in ast.walk(block) if isinstance(getattr(n, "ctx", None), ast.Store | ast.Del)]
    return {n.id if isinstance(n, ast.Name) else n.attr for n in found if isinstance(n, ast.Name | ast.Attribute)}


def _lets_through(context: ast.expr, kinds: Kinds, names: dict[str, Any]) -> bool:
    """Whether the context of a `with` catches no error: torch's and accelerate's, an open file, a lock, one whose
    `__exit__` returns only None or False, a function with `yield` and no handler around it."""
    called = isinstance(context, ast.Call)
    found = object_at(context.func if isinstance(context, ast.Call) else context, names)
    kind = found if called and isinstance(found, type) else type(found)
    of = found if called and callable(found) else kind
    if (getattr(of, "__module__", None) or "").partition(".")[0] in LIBRARIES or any(found is each for each in OPEN):
        return True
    if called and isinstance(found, FunctionType):
        if found.__code__.co_filename == contextlib.__file__:
            return _yields_alone(found, kinds)
        return (made := _made_by(found)) != [] and all(_returns_nothing(_exit_of(kind)) for kind in made)
    if called and (kind is not found or _makes_others(kind)):
        return False
    if issubclass(kind, warnings.catch_warnings):  # which may record a warning
        return kinds != ANY and not any(issubclass(each, Warning) for each in kinds)
    leaves = _exit_of(kind)
    of_python = any(leaves is inspect.getattr_static(opened, "__exit__") for opened in OPENED)
    return of_python or _returns_nothing(leaves)


def _has_own_exit(context: ast.expr, names: dict[str, Any]) -> bool:
    """Whether leaving the context of a `with` runs code of the user's, which may raise another error."""
    found = object_at(context.func if isinstance(context, ast.Call) else context, names)
    made = _made_by(found) if isinstance(found, FunctionType) else [found if isinstance(found, type) else type(found)]
    return any(is_users(_exit_of(kind)) for kind in made)


def _makes_others(kind: type) -> bool:
    """Whether code of the user's decides the result of a call of a class."""
    return is_users(kind.__new__) or is_users(inspect.getattr_static(type(kind), "__call__", None))


def _exit_of(kind: type) -> Any:
    return inspect.getattr_static(kind, "__exit__", None)


def _made_by(function: FunctionType) -> list[type]:
    """The classes of the objects that a function returns, if it makes each by a class that its globals name; else
    []."""
    code, nodes = function.__code__, [n for each in _definitions(function) for n in ast.walk(each)]
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    names = {name: value for name, value in function.__globals__.items() if name not in local}
    given = [n.value.func if isinstance(n.value, ast.Call) else n for n in nodes if isinstance(n, ast.Return)]
    made = [object_at(each, names) for each in given]  # type: ignore[arg-type]
    return made if all(isinstance(kind, type) and not _makes_others(kind) for kind in made) else []


def _definitions(function: FunctionType) -> list[ast.FunctionDef]:
    file, line = function.__code__.co_filename, function.__code__.co_firstlineno
    found = [n for n in nodes_of(file) if isinstance(n, ast.FunctionDef)]
    return [n for n in found if line == min(each.lineno for each in (n, *n.decorator_list))]


def _yields_alone(function: Any, kinds: Kinds) -> bool:
    """Whether an error at the `yield` of a function of contextlib.contextmanager leaves it unchanged."""
    generator = function.__wrapped__
    if not inspect.isgeneratorfunction(generator):  # it returns the generator of another function
        return False
    found = _definitions(generator)
    code = generator.__code__
    names = {**vars(builtins), **generator.__globals__}
    for local in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        names.pop(local, None)
    blocks = [n for each in found for n in ast.walk(each) if isinstance(n, BLOCKS)]
    if any(isinstance(n, ast.YieldFrom) for each in found for n in ast.walk(each)):  # as above
        return False
    yields = [(b, begin_of(y)) for b in blocks for y in ast.walk(b) if isinstance(y, GENERATES)]
    return len(found) == 1 and all(_leaving(block, place, kinds, names) == kinds for block, place in yields)


def _returns_nothing(function: Any) -> bool:
    """Whether a function returns only None, False or 0."""
    if not isinstance(function, FunctionType) or inspect.isgeneratorfunction(function):
        return False
    steps = [*dis.get_instructions(function)]
    for before, step in pairwise(steps):
        if step.opname == "RETURN_VALUE" and (step.is_jump_target or before.opname != "LOAD_CONST"):
            return False
        given = step if step.opname == "RETURN_CONST" else before if step.opname == "RETURN_VALUE" else None
        if given is not None and given.argval not in (None, False):  # 0 too
            return False
    return not inspect.iscoroutinefunction(function)

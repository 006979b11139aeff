"""Statements of a traced loss that only print a number which they read: `print(...)`, a call of a logger, or a local
name that only such statements read.

In: a frame of a traced loss. Out: whether the statement that it runs is one of these; ProgramError for arithmetic that
fails for some numbers, if the user's code could catch the error.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterator
from types import FrameType

from vgame.errors import ProgramError
from vgame.program.catching import Kinds, catching
from vgame.program.hidden_state import line_above
from vgame.program.shown_values import keeps_no_text
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

DECIDE = ast.Call | ast.Lambda | ast.Compare | ast.IfExp | ast.BoolOp | ast.Yield | ast.YieldFrom | ast.Await
CHOICES = {"max", "min"}
PLAIN = {"abs", "float", "format", "int", "repr", "round", "str"} | CHOICES
CURVES = (math.exp, math.expm1, math.log, math.log1p, math.log2, math.log10, math.sqrt)
READS_ALL = {"locals", "vars", "eval", "exec", "_getframe", "currentframe"}  # functions that read names given as texts


def refuse_tried_numbers(what: str, kinds: Kinds, frame: FrameType) -> None:
    """ProgramError if the user's code could catch an error of these classes: unknown numbers raise none in a trace."""
    if line := catching(frame, kinds):
        raise ProgramError(
            f"{what}{line_above(frame)} raises {kinds[0].__name__} for some numbers, and code at {line} could catch "
            "it, which would train another step; the numbers of tensors are unknown while the step is traced: compute "
            "with tensors (torch.where, torch.clamp), or outside of that code"
        )


def prints(frame: FrameType, compares: bool = False) -> bool:
    """Whether the statement that a frame runs only prints the number that it reads, or gives its text to a local name
    which is only printed. `compares`: it may first compare the number."""
    begin, stop = place_in(frame)
    around = [n for n in nodes_of(frame.f_code.co_filename) if begin_of(n) <= begin < end_of(n)]
    statements = [n for n in around if isinstance(n, ast.stmt)]
    if not statements:
        return False
    if is_printed(statements[-1], begin, stop, frame, compares):
        return True
    functions = [n for n in around if isinstance(n, SCOPES)]
    target, value = assigned(statements[-1])
    return bool(
        value
        and functions
        and holds(value, begin, stop)
        and not (isinstance(statements[-1], ast.AugAssign) and hasattr(frame.f_locals.get(target), "__iadd__"))
        and _passes(value, begin, stop, frame, compares=compares)
        and is_only_printed(target, functions[-1], frame)
    )


def chooses(frame: FrameType) -> bool:
    """Whether a frame runs a call of Python's `max` or `min` without a key function."""
    statements, names = around(frame, ast.stmt), names_of(frame)
    calls = [n for each in statements[-1:] for n in ast.walk(each) if isinstance(n, ast.Call) and not n.keywords]
    return any(
        (begin_of(n), end_of(n)) == place_in(frame)
        and isinstance(n.func, ast.Name)
        and n.func.id in CHOICES
        and names[n.func.id] is vars(builtins)[n.func.id]
        for n in calls
    )


def assigned(statement: ast.AST) -> tuple[str, ast.expr | None]:
    """The one name to which a statement assigns, and the value."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            return name, value
    return "", None


def assigned_names(statement: ast.AST) -> tuple[list[str], ast.expr | None]:
    """The names to which a statement assigns, and the value."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=value) if all(isinstance(n, ast.Name) for n in names):
            return [n.id for n in names if isinstance(n, ast.Name)], value
    name, found = assigned(statement)
    return [name], found


def is_only_printed(name: str, function: ast.AST, frame: FrameType) -> bool:
    """Whether all reads of a local name of a function are in statements that print, or give a text to it again."""
    if name not in frame.f_code.co_varnames or READS_ALL.intersection(frame.f_code.co_names):
        return False  # another function may read it

    def only_printed(statement: ast.AST, read: ast.AST) -> bool:
        target, value = assigned(statement)
        again = target == name and value is not None and _passes(value, begin_of(read), end_of(read), frame)
        return again or is_printed(statement, begin_of(read), end_of(read), frame)

    statements = [n for n in ast.walk(function) if isinstance(n, ast.stmt)]
    return all(only_printed(statement, read) for statement in statements for read in reads_of(statement, name))


def reads_of(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """The reads of a name in a statement, without those of the statements in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
            yield child
        if not isinstance(child, ast.stmt):
            yield from reads_of(child, name)


def is_printed(statement: ast.AST, begin: Place, stop: Place, frame: FrameType, compares: bool = False) -> bool:
    """Whether a statement is a call that prints, also under a condition, and the value read at this place enters texts
    and numbers only, and no other function, name, condition or file."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.BoolOp):
        call = call.values[-1]
    elif isinstance(call, ast.IfExp):
        call = call.body
    if not (isinstance(call, ast.Call) and holds(call, begin, stop) and is_output(call, frame)):
        return False
    if not _passes(call, begin, stop, frame, prints=True, compares=compares):
        return False
    return keeps_no_text(call, names_of(frame))


def _passes(
    value: ast.expr, begin: Place, stop: Place, frame: FrameType, prints: bool = False, compares: bool = False
) -> bool:
    """Whether the value read at a place enters the expression as text or number only, with `compares` also as a truth
    value. `prints`: the expression is a call that prints, of which the arguments are examined."""
    inner = [n for n in ast.walk(value) if n is not value or not prints]
    around = [n for n in inner if isinstance(n, DECIDE) and holds(n, begin, stop)]
    around = [n for n in around if not (compares and isinstance(n, ast.Compare))]
    keys = [k for n in inner for k in _keys(n) if holds(k, begin, stop)]
    stores = [n for n in inner if isinstance(getattr(n, "ctx", None), ast.Store) and not isinstance(n, ast.Name)]
    named = any(isinstance(n, ast.NamedExpr) for n in inner)
    return not (keys or stores or named) and all(_is_plain(n, frame) for n in around)


def _keys(node: ast.AST) -> list[ast.expr]:
    """Parts of an expression on which a method of the user's could act: an index, a format."""
    if isinstance(node, ast.Subscript):
        return [node.slice]
    spec = node.format_spec if isinstance(node, ast.FormattedValue) else None
    return [v.value for v in getattr(spec, "values", ()) if isinstance(v, ast.FormattedValue)]


def _is_plain(node: ast.AST, frame: FrameType) -> bool:
    """`"{:.3f}".format(...)`, `str(...)`, `float(...)`, `math.exp(...)`."""
    if not isinstance(node, ast.Call):
        return False
    function, names = node.func, names_of(frame)
    if isinstance(function, ast.Name) and function.id in PLAIN:
        return names[function.id] is vars(builtins)[function.id]
    formats = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)
    found = object_at(function, names)
    curve = any(found is curve for curve in CURVES)
    if curve:
        refuse_tried_numbers("a function of the module math", (ValueError, OverflowError), frame)
    return formats or curve

"""Statements of the user's code, by the place that a frame runs: which ones print, what their names are.

In: a frame of a traced loss. Out: its syntax around that place; the objects that it names, without a call of the user's
code.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
import sys
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from vgame.program.bars import sets_text
from vgame.system.installed import is_installed

LOGS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
PRINTERS = {("accelerate", "print"), ("tqdm", "write"), ("loguru", "info"), ("loguru", "debug")}  # by library, name
PRINTERS |= {("pprint", "pprint"), ("pprint", "pp"), ("rich", "print")}
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Place = tuple[int, int]  # line, column


@cache
def nodes_of(file: str) -> tuple[ast.AST, ...]:
    """The statements and functions of a file or a notebook's cell; of two that contain a place the inner one comes
    last."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (ValueError, SyntaxError):
        return ()
    found = [n for n in ast.walk(tree) if isinstance(n, ast.stmt | SCOPES)]
    return tuple(sorted(found, key=begin_of))


def place_in(frame: FrameType) -> tuple[Place, Place]:
    """Begin and end of the expression that a frame runs."""
    line, end, column, last = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return (line or 0, column or 0), (end or 0, last or 0)


def around(frame: FrameType, kind: Any, place: Place | None = None) -> list[Any]:
    """The nodes of this kind around a place of a frame, by default what it runs; the innermost last."""
    return list(_around(frame.f_code.co_filename, kind, place or place_in(frame)[0]))


@lru_cache(2**14)
def _around(file: str, kind: Any, begin: Place) -> tuple[Any, ...]:
    return tuple(n for n in nodes_of(file) if isinstance(n, kind) and begin_of(n) <= begin < end_of(n))


def holds(node: Any, begin: Place, stop: Place) -> bool:
    return begin_of(node) <= begin and stop <= end_of(node)


def begin_of(node: Any) -> Place:
    return node.lineno, node.col_offset


def end_of(node: Any) -> Place:
    return node.end_lineno or 0, node.end_col_offset or 0


def names_of(frame: FrameType) -> dict[str, Any]:
    return {**vars(builtins), **frame.f_globals, **frame.f_locals}


def is_output(call: ast.Call, frame: FrameType) -> bool:
    """Whether this calls Python's `print` or a library's function that prints, to a stream of the process,
    `sys.stdout.write`, a method of a logger, or one that sets a text of a progress bar."""
    names, function = names_of(frame), call.func
    owner, name = (function.value, function.attr) if isinstance(function, ast.Attribute) else (None, "")
    if isinstance(owner, ast.Call):  # logging.getLogger(...).info(...)
        return name in LOGS and object_at(owner.func, names) is logging.getLogger
    found = object_at(function, names)
    if owner is not None and sets_text(found, object_at(owner, names)):
        return True
    if found is print or _is_printer(found):
        streams = [object_at(k.value, names) for k in call.keywords if k.arg in ("file", "stream", None)]
        streams += [object_at(stream, names) for stream in call.args[1:] if _is_of(found, "pprint")]
        return all(f is sys.stdout or f is sys.stderr for f in [*streams, *_stream_of(owner, names)])
    if owner is None:
        return any(found is getattr(logging, log) for log in LOGS)
    writer = object_at(owner, names)
    if writer is sys.stdout or writer is sys.stderr:
        return name == "write"
    return name in LOGS and (writer is logging or isinstance(writer, logging.Logger | logging.LoggerAdapter))


def _is_printer(found: Any) -> bool:
    """Whether this is a function that prints, of one of these libraries."""
    return any(_is_of(found, library) and _code_of(found).co_name == name for library, name in PRINTERS)


def _is_of(found: Any, library: str) -> bool:
    code = _code_of(found)
    return bool(code) and is_installed(code.co_filename) and library in Path(code.co_filename).with_suffix("").parts


def _code_of(found: Any) -> Any:
    return getattr(inspect.unwrap(getattr(found, "__func__", found)), "__code__", None)


def _stream_of(owner: ast.expr | None, names: dict[str, Any]) -> list[Any]:
    """The stream of a console of rich that has a stream of its own or records its output; else none."""
    held = getattr(object_at(owner, names), "__dict__", {}) if owner is not None else {}
    return [held.get("_file")] if held.get("_file") is not None or held.get("record") else []


def object_at(place: ast.expr, names: dict[str, Any]) -> Any:
    """The object at `name.attribute...`, without a call of the user's code; None for any other expression."""
    path: list[str] = []
    while isinstance(place, ast.Attribute):
        path, place = [place.attr, *path], place.value
    found = names.get(place.id) if isinstance(place, ast.Name) else None
    for name in path:
        found = inspect.getattr_static(found, name, None)
    return found

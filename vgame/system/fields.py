"""Docstrings of fields for `help()`: Python does not keep the string below a field.

In: a class with strings below its fields. Out: the same class, whose `__doc__` lists them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from contextlib import suppress
from typing import Any

WIDTH = 100


def show_fields(found: Any) -> None:
    """`help(found)` shows each documented field with its meaning, and types as they are written; an object that is not
    a class is not changed."""
    if not isinstance(found, type) or "\nFields:\n" in (found.__doc__ or ""):
        return
    meanings: dict[str, str] = {}
    for base in reversed(found.__mro__):
        if base.__module__.startswith("vgame."):
            with suppress(OSError, TypeError):  # installed without its source
                meanings |= documented(inspect.getsource(base))
    if hasattr(found, "model_fields"):
        _shorten_signature(found)
    if meanings:
        lines = "\n".join(_paragraph(name, meaning) for name, meaning in meanings.items())
        found.__doc__ = f"{inspect.getdoc(found)}\n\nFields:\n{lines}"


def documented(source: str) -> dict[str, str]:
    """Name and docstring of the public fields of the class that is written in `source`."""
    (owner,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(owner, ast.ClassDef)
    found = {}
    for field, below in zip(owner.body, owner.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id
        text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and below.value.value
        if named and isinstance(text, str) and not named.startswith("_"):
            found[named] = " ".join(text.split())
    return found


def _paragraph(name: str, meaning: str) -> str:
    return textwrap.fill(f"{name}: {meaning}", WIDTH, initial_indent=4 * " ", subsequent_indent=8 * " ")


def _shorten_signature(model: Any) -> None:
    """Show annotations as they are written: pydantic adds a field's validators to them."""
    written = model.__annotations__
    given = inspect.signature(model).parameters.values()
    parameters = [p.replace(annotation=written.get(p.name, p.annotation)) for p in given]
    model.__signature__ = inspect.Signature(parameters)

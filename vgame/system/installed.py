"""The owner of a source file: Python, an installed library, vgame, or the user.

In: the name of a file, as code objects and tracebacks give it. Out: whether its owner is one of these.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

#: Beginnings of the file names that Python and libraries give to generated code. Code of any other name in <> is the
#: user's: from a notebook (`<ipython-input-`, `<command-`), `python -c` or `exec`.
MADE = (
    "<frozen ",
    "<__",
    "<eval_with_key>",
    "<attrs generated ",
    "<decorator-gen-",
    "<lambdifygenerated-",
    "<template>",
)


def folders(paths: Iterable[str | None]) -> tuple[str, ...]:
    """Beginnings of the names of all files in these folders."""
    return tuple(f"{Path(path)}{os.sep}" for path in dict.fromkeys(paths) if path)


VGAME = folders([str(Path(__file__).parents[1])])
_PYTHON = folders(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))  # libraries' folders may be inside
_SITES = (*site.getsitepackages(), site.getusersitepackages())
_LIBRARIES = folders([*_SITES, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))])


def is_users(found: Any) -> bool:
    """Whether the code of a function or method is the user's."""
    code = getattr(getattr(found, "__func__", found), "__code__", None)
    return code is not None and is_of_user(code.co_filename)


@cache
def is_of_python(file: str) -> bool:
    """Whether a file is one of Python's, or code that Python or a library generates at run time."""
    return file.startswith(MADE) or (file.startswith(_PYTHON) and not file.startswith(_LIBRARIES))


@cache
def is_installed(file: str) -> bool:
    """Whether a file is of Python or of an installed library. False for vgame's own files, even if it is installed as a
    library: its data sets wrap losses."""
    return is_of_python(file) or (file.startswith(_LIBRARIES) and not file.startswith(VGAME))


def is_of_user(file: str) -> bool:
    """Whether a file is neither of Python nor of a library nor of vgame."""
    return not (is_installed(file) or file.startswith(VGAME))


def is_own_module(module: ModuleType) -> bool:
    """Whether a module is the user's or vgame's. A notebook's and that of `python -c` have no file."""
    file = getattr(module, "__file__", None)
    return not is_installed(file) if file else module.__name__.partition(".")[0] not in sys.stdlib_module_names


def is_made_by_user(module: str) -> bool:
    """Whether a module, given by its name, is of the user's files or runs as the main one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file and is_of_user(file)) or module == "__main__"

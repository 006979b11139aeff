"""The modules beside a job file: its own code imports them first, and no other job gets them.

In: a job's folder. Out: a context in which Python finds the folder's modules first, as `python script.py` there does.
Their import statements find the same modules later too, whatever other jobs and the program have imported since.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from vgame.system.installed import is_of_user

_KEPT = {"vgame", "__main__", *sys.builtin_module_names}  # never loaded from a folder
_FOLDERS: dict[str, tuple[Path, Modules]] = {}
_NUMBERS = itertools.count(1)
_import = builtins.__import__


class Modules:
    """The modules that a job's code imports: those of its folder, and others that are not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.number = str(folder), [str(folder), *sys.path], next(_NUMBERS)
        names = _names(folder)
        self.names = names - sys.stdlib_module_names  # Python and libraries still import their own random, queue
        self.renamed = {name: f"{name}_of_job_{self.number}" for name in names & sys.stdlib_module_names}
        self.modules: dict[str, ModuleType] = {}
        self.others: Mapping[str, ModuleType] = {}  # modules of the same names, kept apart while these are in place
        self.inside = False
        self.builtins = {**vars(builtins), "__import__": self._import_own}

    @contextmanager
    def first(self) -> Iterator[None]:
        """Context in which `import` finds these modules."""
        if self.inside:
            yield
            return
        self.others, path = self._taken(), sys.path[:]
        sys.modules.update(self.modules)
        sys.path[:], self.inside = self.path, True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            self.path, self.inside, sys.path[:] = sys.path[:], False, path
            found = self._taken()
            self.modules = {name: module for name, module in found.items() if self._is_own(module)}
            sys.modules.update(found | dict(self.others))
            for name, module in self.modules.items():
                self._show(name, module)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module that is not installed. Part of Python's protocol of `sys.meta_path`."""
        if name.partition(".")[0] in _KEPT:
            return None
        written = {new: old for old, new in self.renamed.items()}.get(name)
        spec = PathFinder.find_spec(written, [self.folder]) if written else PathFinder.find_spec(name, path)
        if spec is None or type(spec.loader) is not SourceFileLoader or not is_of_user(str(spec.origin)):
            return None
        spec.name, spec.loader = name, _Loader(name, str(spec.origin), self)
        return spec

    def is_taken(self, name: str, module: ModuleType) -> bool:
        """Whether another module has this name in this process; an earlier version of the same file does not count."""
        other = self.others.get(name, module)
        return other is not module and not (_loader(other) and other.__file__ == module.__file__)

    def renamed_to(self, name: str) -> str:
        """The name in this process of a module that the job's code calls `name`."""
        top, dot, rest = name.partition(".")
        return self.renamed.get(top, top) + dot + rest

    def _taken(self) -> dict[str, ModuleType]:
        """The modules of the folder's names and of all jobs, taken out of `sys.modules`."""
        found = list(sys.modules.items())
        names = [n for n, m in found if n.partition(".")[0] in self.names or isinstance(m, _Ambiguous) or _loader(m)]
        return {name: sys.modules.pop(name) for name in names}

    def _is_own(self, module: ModuleType) -> bool:
        loader = _loader(module)
        return loader.owner is self if loader else not isinstance(module, _Ambiguous)

    def _show(self, name: str, module: ModuleType) -> None:
        """Register the module under its name for other code, such as pickle; if two jobs have a module of this name, an
        `_Ambiguous` in its place."""
        sys.modules[name] = self.others[name] if self.is_taken(name, module) else module
        if module.__name__ != name:
            sys.modules[module.__name__] = module
        nested = any(modules.inside for _, modules in _FOLDERS.values())
        if sys.modules[name] is not module and not nested and _loader(other := self.others[name]):
            sys.modules[name] = _Ambiguous(name, str(other.__file__), str(module.__file__))

    def _import_own(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] = (), level: int = 0
    ) -> ModuleType:
        """`__import__` for the code of these modules."""
        name = name if level else self.renamed_to(name)
        top = ((globals or {}).get("__package__") or "" if level else name).partition(".")[0]
        known = sys.modules.get(top)
        if known is not None and top not in self.names and top not in self.modules and not _loader(known):
            return _import(name, globals, locals, fromlist, level)
        with self.first():
            return _import(name, globals, locals, fromlist, level)


class _Loader(SourceFileLoader):
    """Executes a file as it is now, not an older compiled form of the same second and size."""

    def __init__(self, name: str, path: str, owner: Modules) -> None:
        super().__init__(name, path)
        self.owner = owner

    def exec_module(self, module: ModuleType) -> None:
        if self.owner.is_taken(self.name, module) and not hasattr(module, "__path__"):  # names its parts
            module.__name__ = f"{self.name.replace('.', '_')}_of_job_{self.owner.number}"
            sys.modules[module.__name__] = module
        vars(module)["__builtins__"] = self.owner.builtins
        exec(self.source_to_code(self.get_data(self.path), self.path), vars(module))


class _Ambiguous(ModuleType):
    """In place of a module whose name two jobs use."""

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(name)
        self.__file__ = first
        self._both = f"{first} and {second}"

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise ImportError(
            f"two jobs of this process have a module {self.__name__}: {self._both}; import it by an import statement "
            "in the job's own files, give one another name, or use a process for each job"
        )


def modules_of(folder: Path) -> Modules:
    """The modules of a job's folder, new ones each time that a job file is read. `folder`: the Path object of that
    read."""
    importlib.invalidate_caches()
    if _FOLDERS.get(str(folder), (None,))[0] is not folder:
        _FOLDERS[str(folder)] = folder, Modules(folder)
    return _FOLDERS[str(folder)][1]


def _names(folder: Path) -> set[str]:
    """Names of the modules and packages of a folder, those without __init__.py too where nothing else has the name."""
    found = {module.name for module in pkgutil.iter_modules([str(folder)])}
    for inner in folder.iterdir() if os.access(folder, os.R_OK) else ():
        if inner.name not in found and inner.is_dir() and inner.name.isidentifier():
            spec = PathFinder.find_spec(inner.name, [str(folder), *sys.path])
            if spec is not None and spec.origin is None and set(spec.submodule_search_locations or ()) == {str(inner)}:
                found.add(inner.name)
    return found - _KEPT


def _loader(module: Any) -> Any:
    """The loader of a job's module, else None."""
    loader = vars(module).get("__loader__") if isinstance(module, ModuleType) else None
    return loader if isinstance(loader, _Loader) else None

"""Call a job file's factory. In: a job. Out: its task."""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from vgame.errors import EXTRAS, STOPPED, JobFileError, VgameError, how_to_install
from vgame.job.file import JobFile
from vgame.job.modules import modules_of
from vgame.system.installed import is_of_user
from vgame.tasks.task import Task


def make_task(job: JobFile) -> Task:
    """Call the job's factory. Its module may lie beside the job file, where it is searched for first."""
    if job._task is not None:
        return job._task
    with _as_script(job):
        return _made(job)


def _made(job: JobFile) -> Task:
    module = job.model.partition(":")[0]
    if job._folder is None or module.startswith("vgame."):
        return _call(job, _load(job, module))
    own = modules_of(job._folder)
    with own.first():
        return _call(job, _load(job, own.renamed_to(module)))


@contextmanager
def _as_script(job: JobFile) -> Iterator[None]:
    """Context for the user's code: a command line without arguments. Its filters of warnings stay, except those that
    turn warnings into errors: they hold only here, so that a warning of vgame is no error of the job."""
    argv, before = sys.argv, warnings.filters[:]
    sys.argv = [f"{job.model.partition(':')[0].replace('.', os.sep)}.py"]
    try:
        yield
    finally:
        sys.argv = argv
        for rule in [rule for rule in warnings.filters if rule[0] == "error" and rule not in before]:
            warnings.filters.remove(rule)  # type: ignore[attr-defined]
        with warnings.catch_warnings():  # makes Python read the filters again
            pass


def _load(job: JobFile, module: str) -> Callable[..., Any]:
    name = job.model.partition(":")[2]
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        extra = EXTRAS.get(str(getattr(error, "name", "")).split(".")[0])
        hint = f"; {how_to_install(extra)}" if extra else ""
        beside = job._folder is not None and (job._folder / f"{module}.py").exists()
        if module in sys.builtin_module_names and beside:
            hint = f"; {module} is built into Python: give {module}.py another name"
        raise JobFileError(f"model = {job.model!r} cannot be loaded: {_text(error)}{_place(error)}{hint}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        raise JobFileError(f"model = {job.model!r} cannot be loaded: {_description(error)}{_ended(error)}") from None
    if not callable(factory):
        raise JobFileError(f"model = {job.model!r} is of type {type(factory).__name__}; a function is expected")
    return factory


def _call(job: JobFile, factory: Callable[..., Any]) -> Task:
    args = _arguments(job, factory)
    try:
        task = factory(**{name: _beside(job, value) for name, value in args.items()})
    except VgameError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        raise JobFileError(f"{job.model} fails: {_description(error)}{_ended(error)}") from None
    if not isinstance(task, Task):
        raise JobFileError(f"{job.model} returned {type(task).__name__}; a vgame.tasks.task.Task is expected")
    return task


def _arguments(job: JobFile, factory: Callable[..., Any]) -> dict[str, Any]:
    """The job's args; a factory with a parameter `seed` without a default gets the job's seed."""
    args = dict(job.args)
    try:
        signature = inspect.signature(factory)
        seed = signature.parameters.get("seed")
        if seed is not None and seed.default is seed.empty and seed.kind is not seed.VAR_KEYWORD:
            args.setdefault("seed", job.seed)
        signature.bind(**args)
    except TypeError as error:
        raise JobFileError(f"{job.model} does not take args {job.args}: {error}") from None
    except ValueError:  # a function without a signature
        pass
    return args


def initial_of(job: JobFile) -> Any:
    """The job's initial state: None, a path, or the object given to the API."""
    return _beside(job, job.initial) if job._initial is None else job._initial


def _beside(job: JobFile, value: Any) -> Any:
    """Resolve an argument that looks like a path (a slash or a dot) and exists relative to the job file's folder."""
    if job._folder is None or not isinstance(value, str) or not ("/" in value or "." in value):
        return value
    place = os.path.join(job._folder, value)
    return place if os.path.exists(place) else value


def _description(error: BaseException) -> str:
    """Type of an error, its message on one line, and the line of the user's file that raised it."""
    return f"{type(error).__name__}: {_text(error)}{_place(error)}"


def _ended(error: BaseException) -> str:
    """The remedy if a parser of the command line ends the process, else ""."""
    if not isinstance(error, SystemExit) or error.code not in (None, 0, 2):
        return ""
    return (
        "; a job's code gets no command line: give what it parses (argparse, click) defaults, parse it under "
        'if __name__ == "__main__", and let the factory be a plain function; args in the job file are its arguments'
    )


def _text(error: BaseException) -> str:
    """An error's message on one line, with the names that the user gave to modules."""
    return re.sub(r"_of_job_\d+\b", "", " ".join(str(error).split()))


def _place(error: BaseException) -> str:
    """The last line of the traceback outside Python, vgame and installed packages."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if is_of_user(f.filename)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""

"""A transformers.Trainer as its compute_loss may use it: values that are the same in all steps can be read, all others
are refused.

In: a trainer that has not trained. Out: its loss, computed as within train().
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import os
import re
import sys
import textwrap
import traceback
from array import array
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import accelerate
import numpy as np
import torch
import transformers
from transformers import Trainer, TrainerState

from vgame.errors import JobFileError
from vgame.program.hidden_state import own_line
from vgame.system.installed import folders, is_of_user
from vgame.tasks.task import Batch

FOLDERS = folders(os.path.dirname(package.__file__) for package in (transformers, accelerate))
#: Attributes that transformers gives a trainer and that are the same in all steps. Its others are refused.
CONSTANT = re.compile(
    "args|model(_wrapped|_init|_accepts_loss_kwargs)?|is_.*|label_(names|smoother)|can_return_loss|_loss_shifts_labels"
    "|data_collator|(train|eval)_dataset|processing_class|compute_(loss_func|metrics|objective)|place_model_on_device"
    "|preprocess_logits_for_metrics|optimizer_cls_and_kwargs|neftune_noise_alpha|hub_model_id|hp_.*|_trial|deepspeed"
    "|_train_batch_size|_signature_columns|current_gradient_accumulation_steps"
)
NONE = re.compile("(?!)")
#: Objects of a trainer that change from step to step, and their attributes that do not.
PARTS = {
    "accelerator": re.compile(
        "unwrap_model|device|num_processes|(local_)?process_index|is_(local_)?main_process|is_last_process|state|print"
        "|distributed_type|parallelism_config|mixed_precision|autocast|wait_for_everyone|use_distributed|log"
        "|gather|reduce|pad_across_processes"
    ),
    "callback_handler": NONE,
    "control": NONE,
    "lr_scheduler": NONE,
    "optimizer": NONE,
    "state": re.compile("max_steps|num_train_epochs|train_batch_size|(logging|eval|save)_steps|is_.*|trial_.*"),
}
#: Methods that train() calls between two steps, and that a job does not call.
BETWEEN = re.compile(
    "log|_maybe_log_save_evaluate|_?save.*|store_flos|floating_point_ops|_determine_best_metric|_?track_num_input_tokens"
    "|_?get_learning_rate|is_(local|world)_process_zero"
)
OUTSIDE = "*"
#: Functions to which `self` and its parts may be passed.
TAKE = {
    "abs", "bool", "dict", "enumerate", "float", "format", "getattr", "hasattr", "int", "isinstance", "len", "list",
    "max", "min", "print", "range", "repr", "round", "set", "sorted", "str", "sum", "super", "tuple", "type", "zip",
}  # fmt: skip
BY_NAME = {"__dict__", "__setattr__", "__delattr__", "setattr", "delattr", "vars", "globals", "exec", "eval"}
#: Methods of tensors and containers that change nothing.
READS = {"items", "keys", "values", "get", "copy", "count", "index", "item", "tolist", "detach", "cpu", "mean", "sum"}
#: Modules whose functions change no part of a trainer that is passed to them.
PURE = {"torch", "F", "nn", "np", "numpy", "math", "statistics", "json", "logging"}
SPECIAL = {n for n in (*dir(int), *dir(dict), "__call__", "__enter__", "__next__") if n.startswith("__")} - {
    "__bool__", "__class__", "__class_getitem__", "__doc__", "__getattribute__", "__init__", "__init_subclass__",
    "__new__", "__subclasshook__",
}  # fmt: skip


def is_of_transformers(function: Any) -> bool:
    """Whether a function or method is defined in transformers (or wrapped there by Python's contextlib)."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_filename.startswith((FOLDERS[0], contextlib.__file__))


class StandIn:
    """A placeholder for an attribute of a trainer that can change from step to step. INVARIANT: every use is refused,
    except reading its `constant` attributes, isinstance, and the truth value of one of PARTS."""

    def __init__(self, name: str, real: Any, constant: re.Pattern[str] = NONE) -> None:
        object.__setattr__(self, "_of", (name, real, constant))

    def __getattribute__(self, key: str) -> Any:
        name, real, constant = object.__getattribute__(self, "_of")
        if key == "__class__":
            return type(real)
        if constant.fullmatch(key):
            return getattr(real, key)
        raise _refusal(name if key.startswith("__") else f"{name}.{key}")

    def __bool__(self) -> bool:
        name = object.__getattribute__(self, "_of")[0]
        if name in PARTS:
            return True
        raise _refusal(name)


def _refuse(self: StandIn, *_: Any, **__: Any) -> Any:
    raise _refusal(object.__getattribute__(self, "_of")[0])


for _name in SPECIAL:
    setattr(StandIn, _name, _refuse)


def _refusal(name: str) -> JobFileError:
    """The error for a read, with the user's own line, and the trainer's method that this line calls."""
    frames = traceback.extract_stack(sys._getframe(1))
    own = [i for i, f in enumerate(frames) if is_of_user(f.filename) and not f.filename.startswith(FOLDERS)]
    called = [f.name for f in frames[own[-1] + 1 :] if f.filename.startswith(FOLDERS)] if own else []
    used = f"{called[0]} ({name})" if called else name
    return JobFileError(
        f"compute_loss uses {used}{own_line(frames[i] for i in own)}, which can change from step to step, but the loss "
        "of a job is the same in all steps; remove it from compute_loss, or read a constant in __init__"
    )


def _root(node: ast.AST) -> tuple[str, str]:
    """(name of the variable, of its first attribute) of `variable.attribute[...]...`; empty if it is another form."""
    first = ""
    while isinstance(node, ast.Attribute | ast.Subscript):
        first, node = getattr(node, "attr", ""), node.value
    return (node.id if isinstance(node, ast.Name) else ""), first


@cache
def _changes(function: Any) -> tuple[frozenset[str], frozenset[str]]:
    """(attributes of `self` that the source of a class or function may change, with OUTSIDE for values of other
    objects; its methods that it calls)."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = getattr(getattr(function, "__code__", None), "co_varnames", ())
    this, inside = names[0] if names else "self", {*names}
    uses = lambda node: any(isinstance(n, ast.Name) and n.id == this for n in ast.walk(node))  # noqa: E731
    holders = {n.id for each in ast.walk(tree) for n in _targets(each, uses)}  # locals with parts of `self`
    seen = _outer(function)
    found, called = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            name, first = _root(node)
            found.add(first if name == this else "" if name in inside - holders else OUTSIDE)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in holders:
            found.add(OUTSIDE)  # it may change a tensor in place
        elif isinstance(node, ast.Global | ast.Nonlocal) or {getattr(node, k, "") for k in ("id", "attr")} & BY_NAME:
            found.add(OUTSIDE)
        elif isinstance(node, ast.Call):
            given = [a for a in node.args if _root(a)[0] in {this, *holders}]
            bare = isinstance(node.func, ast.Name) or any(isinstance(a, ast.Name) and a.id == this for a in given)
            if given and bare and getattr(node.func, "id", "") not in TAKE:
                found.add(OUTSIDE)
            if any(k.arg == "out" and _root(k.value)[0] in {this, *holders} for k in node.keywords):
                found.add(OUTSIDE)
            if not isinstance(node.func, ast.Attribute):
                continue
            name, first = _root(node.func.value)
            if isinstance(seen.get(name), ModuleType) and name not in PURE:
                found |= {_root(a)[1] if _root(a)[0] == this else OUTSIDE for a in given}
            if name not in inside and _can_change(seen.get(name)) and node.func.attr not in READS:
                found.add(OUTSIDE)
            if name == this and not first:
                called.add(node.func.attr)
            elif name in {this, *holders} and node.func.attr not in READS:
                found.add(first if name == this else OUTSIDE)
    return frozenset(found), frozenset(called)


def _outer(function: Any) -> dict[str, Any]:
    """The values of a function's globals and of its free variables, by name; none of a class."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    found: dict[str, Any] = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def _can_change(value: Any) -> bool:
    """Whether a method of this value may change it: a container, or an object of a class of the user's."""
    kind = type(value)
    if isinstance(value, (torch.Tensor, np.ndarray, array, bytearray, MutableMapping, MutableSequence, MutableSet)):
        return True
    source = getattr(sys.modules.get(kind.__module__), "__file__", None)
    own = kind.__module__ == "__main__" or (source is not None and is_of_user(source))
    return own and not isinstance(value, (type, ModuleType, FunctionType, logging.Logger))


def _targets(node: ast.AST, uses: Callable[[ast.AST], bool]) -> list[ast.Name]:
    """The names that a statement binds to a part of `self`."""
    if isinstance(node, ast.Assign) and uses(node.value):
        bound: list[ast.expr] = node.targets
    elif isinstance(node, ast.For | ast.comprehension | ast.NamedExpr) and uses(getattr(node, "iter", node)):
        bound = [node.target]
    else:
        return []
    return [n for each in bound for n in ast.walk(each) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def changed_by(kind: type, name: str) -> set[str]:
    """The attributes that a method of the user's may change, itself or by other methods of the user's; OUTSIDE if it
    may change more, or has no source."""
    found: set[str] = set()
    todo, seen = [name], {"compute_loss"}
    while todo:
        name = todo.pop()
        for method in [vars(each)[name] for each in kind.__mro__ if name in vars(each)]:  # super() calls the next one
            if is_of_transformers(method) or not hasattr(method, "__code__"):
                continue
            try:
                own, called = _changes(method)
            except (OSError, TypeError, SyntaxError):
                return {OUTSIDE}
            found |= own
            todo += called - seen
            seen |= called
    if any(isinstance(getattr(kind, each, None), property) for each in found):
        found.add(OUTSIDE)  # its setter may change anything
    return found


def _changing(kind: type) -> set[str]:
    """The attributes of a trainer that transformers assigns, or that the user's methods between two steps change."""
    theirs = [each for each in kind.__mro__ if each.__module__.startswith("transformers.")]
    found = {name for each in theirs for name in _changes(each)[0] if not CONSTANT.fullmatch(name)}
    return found.union(*(changed_by(kind, name) for name in dir(kind) if BETWEEN.fullmatch(name))) - {"", OUTSIDE}


class Within:
    """A trainer as within its train() of that many steps and epochs."""

    def __init__(self, trainer: Trainer, steps: int, epochs: int) -> None:
        self.trainer = trainer
        state = TrainerState(max_steps=steps, num_train_epochs=epochs, train_batch_size=trainer.args.train_batch_size)
        state.is_local_process_zero = trainer.is_local_process_zero()
        state.is_world_process_zero = trainer.is_world_process_zero()
        state.compute_steps(trainer.args, steps)
        own = vars(trainer)
        parts = {name: StandIn(name, own.get(name), constant) for name, constant in PARTS.items()}
        parts["state"] = StandIn("state", state, PARTS["state"])
        other = {n: parts[k] for n, v in own.items() for k in PARTS if v is not None and v is own.get(k)}
        self.attributes = {name: StandIn(name, own.get(name)) for name in _changing(type(trainer))} | parts | other
        self.attributes |= {"is_in_train": True, "log": _log_nothing}
        self.attributes["current_gradient_accumulation_steps"] = trainer.args.gradient_accumulation_steps
        self.accelerator = trainer.accelerator
        self.gradient_state = {"gradient_state": StandIn("accelerator", self.accelerator.gradient_state)}

    @contextmanager
    def attributes_replaced(self) -> Iterator[None]:
        """Context in which the trainer's attributes are those within train(), which logs nothing."""
        here = ((vars(self.trainer), self.attributes), (vars(self.accelerator), self.gradient_state))
        before = [(own, new, dict(own)) for own, new in here]
        for own, new in here:
            own.update(new)
        try:
            yield
        finally:
            for own, new, old in before:
                now = {n: v for n, v in own.items() if n not in new}
                own.clear()  # restores the order too, by which the attributes are named in errors
                own.update({n: now.get(n, v) for n, v in old.items() if n in new or n in now} | now)

    def loss(self, model: torch.nn.Module, inputs: Batch, rows: int, whole: bool) -> torch.Tensor:
        """The sum of the losses of a step's batches, of `rows` samples each; `whole`: the loss of all as one batch."""
        split = zip(*(tensor.split(rows) for tensor in inputs.values()), strict=True)
        batches = [dict(zip(inputs, tensors, strict=True)) for tensors in split]
        with self.attributes_replaced():
            items = self.items(batches)
            given = [dict(inputs)] if whole or len(batches) == 1 else batches
            found = [self.trainer.compute_loss(model, each, num_items_in_batch=items) for each in given]
        return found[0] if len(found) == 1 else torch.stack(found).sum()

    def items(self, batches: list[dict[str, torch.Tensor]]) -> Any:
        """The number of labels in a step's batches, as the trainer counts it."""
        return self.trainer._get_num_items_in_batch(batches, torch.device("cpu"))


def _log_nothing(*_: Any, **__: Any) -> None:
    """Replaces a trainer's `log`."""


def place(function: Any) -> str:
    """`, FILE line N` of a function of the user's."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f", {Path(code.co_filename).name} line {code.co_firstlineno}" if code else ""

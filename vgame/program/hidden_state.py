"""Refuse state in the user's objects that a program does not carry from step to step; each case has its own error text.

In: a task before it is traced, and its modules before and after the traced call. Out: nothing, or a ProgramError with
the cause and a remedy.
"""

from __future__ import annotations

import os
import random
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as every_module
from torch.optim import optimizer as every_optimizer

from vgame.errors import ProgramError, some_of
from vgame.program.compared import Roots, differing, innermost, values_of, values_outside
from vgame.program.memory import sharing
from vgame.program.optimizers import TORCHS, has_rule
from vgame.system.installed import VGAME, is_of_python, is_users
from vgame.tasks.opened import SINKS, attributes, has_attributes, held_by
from vgame.tasks.reach import is_own_class, reached
from vgame.tasks.task import Task

#: Hooks on the steps of all optimizers.
EVERYWHERE = (every_optimizer._global_optimizer_pre_hooks, every_optimizer._global_optimizer_post_hooks)

#: Hooks on all modules.
EVERY_MODULE = (
    every_module._global_forward_pre_hooks, every_module._global_forward_hooks,
    every_module._global_backward_pre_hooks, every_module._global_backward_hooks,
)  # fmt: skip

PACKAGE = Path(__file__).parent.parent
PASSES = str(PACKAGE / "program" / "passes.py")  # calls the loss
DEEP = 40  # most stack frames between vgame's reading of the stack and the user's line
SHIPPED = tuple(str(PACKAGE / "tasks" / f"{name}.py") for name in ("cifar10", "digits", "models", "shipped", "text"))


def line_of(error: Exception) -> str:
    """The innermost line of the user's code that led to the error."""
    return own_line(traceback.extract_tb(error.__traceback__))


def own_line(frames: Iterable[traceback.FrameSummary]) -> str:
    found = [*frames]
    traced = next((i for i, f in enumerate(found) if f.filename == PASSES), 0)  # around it torch has code without files
    lines = [f for f in found[traced:] if not is_library_file(f.filename)]
    return f", {Path(lines[-1].filename).name} line {lines[-1].lineno}" if lines else ""


def calls_loss(frame: FrameType) -> bool:
    """Whether a frame is vgame's call of a loss, or of its backward pass; not that of a function of torch inside it."""
    return frame.f_code.co_filename == PASSES and frame.f_code.co_name != "__torch_function__"


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost call of the user's code that led to a frame of the traced loss."""
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = None if calls_loss(frame) else frame.f_back
    return frame


def line_above(frame: FrameType | None) -> str:
    """The line of `own_frame`, as `own_line` gives it."""
    frame = own_frame(frame)
    return "" if frame is None else f", {os.path.basename(frame.f_code.co_filename)} line {frame.f_lineno}"


def is_library_file(file: str) -> bool:
    """Whether a file belongs to torch, Python or vgame, but not to the models and losses that vgame ships."""
    return is_of_python(file) or (file.startswith((*TORCHS, *VGAME)) and file not in SHIPPED)


def refuse_outside(task: Task) -> None:
    """Raise ProgramError if the task's optimizer has hooks or other state besides its values, or other parameters."""
    model = task.model
    given = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    if other := given ^ {*dict(nn.Module.named_parameters(model)), *dict(nn.Module.named_buffers(model))}:
        raise ProgramError(
            "the model's own named_parameters() or named_buffers() gives other tensors than torch's "
            f"({some_of(sorted(other))}); remove it (parameters() may give the optimizer some of them)"
        )
    for optimizer in task.optimizers:
        _refuse_optimizer(optimizer, any(getattr(s, "optimizer", None) is optimizer for s in task.schedulers))
    own = {id(p) for p in task.model.parameters()}
    held = [p for optimizer in task.optimizers for group in optimizer.param_groups for p in group["params"]]
    outside = [tuple(p.shape) for p in held if id(p) not in own]
    if len({id(optimizer) for optimizer in task.optimizers}) < len(task.optimizers):
        raise ProgramError(
            "the task names one optimizer for several losses, but each optimizer steps once in a step of a job; give "
            "it the sum of its losses, or let each network train once in a step"
        )
    if len({id(p) for p in held}) < len(held):
        raise ProgramError("two optimizers of the task train the same parameter; give it to one of them only")
    if outside:
        raise ProgramError(
            f"the optimizer trains {len(outside)} tensors that are not parameters of the model, the first of shape "
            f"{outside[0]}; make the module that holds them (such as the loss) a part of the model"
        )


def refuse_hooks(model: nn.Module) -> None:
    """Raise ProgramError if a parameter has a hook on its gradient."""
    for name, parameter in model.named_parameters():
        for hook in (parameter._backward_hooks or parameter._post_accumulate_grad_hooks or {}).values():
            code = getattr(hook, "__code__", None)
            where = f", {Path(code.co_filename).name} line {code.co_firstlineno}" if code else ""
            raise ProgramError(
                f"the parameter {name} has a hook on its gradient{where}; remove the hook and compute its effect in "
                "the loss"
            )


def refuse_shared_memory(tensors: Iterable[tuple[str, torch.Tensor]], changing: set[str]) -> None:
    """Raise ProgramError if one of `changing` shares memory with another tensor."""
    for (one, _), (other, _) in sharing(tensors):
        if {one, other} & changing:
            raise ProgramError(
                f"{one} and {other} share memory that a step changes, but a program stores them separately; use the "
                "same tensor in both places, as an attribute of its module, or use a clone"
            )


def _refuse_optimizer(optimizer: torch.optim.Optimizer, scheduled: bool) -> None:
    name = type(optimizer).__name__
    own = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # absent without Optimizer.__init__
    if any((*(getattr(optimizer, hooks, None) for hooks in own), *EVERYWHERE)):
        raise ProgramError(f"the optimizer {name} has hooks on its step, which a program does not run; remove them")
    plain = has_plain_step(optimizer)
    if plain and not scheduled and "step" in vars(optimizer):
        raise ProgramError(
            f"the step of the optimizer {name} was replaced, as a learning rate scheduler does; give the schedulers to "
            "the task: schedulers=[...]"
        )
    if not plain:
        raise ProgramError(
            f"the step of the optimizer {name} was replaced, and not by a scheduler; define the step in the "
            "optimizer's class"
        )
    begins = (lambda value: value is not None) if has_rule(optimizer) else _is_used
    parts = [p for key, v in optimizer.state.items() for p in (v.items() if isinstance(v, dict) else [(str(key), v)])]
    held = {key for key, value in parts if begins(value)}
    if held:
        raise ProgramError(
            f"the optimizer {name} already holds {', '.join(sorted(held))}, but a run starts from a new optimizer: "
            "create it again; let its first step make a state that is not constant"
        )


def has_plain_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step is the class's own, or wrapped only by torch's schedulers."""
    step, torchs = vars(optimizer).get("step"), f"{Path(torch.optim.__file__).parent}{os.sep}"
    while step not in (None, type(optimizer).step):
        if not getattr(getattr(step, "__code__", None), "co_filename", "").startswith(torchs):
            return False
        step = getattr(step, "__wrapped__", None) or step.__func__
    return True


def _is_used(value: Any) -> bool:
    """Whether a state is not an initial one: a counter at 0, or a tensor of equal numbers."""
    if isinstance(value, torch.Tensor):
        return bool((value != (0 if value.dim() == 0 else value.flatten()[:1])).any())
    return isinstance(value, int | float) and value != 0


WATCHED = (
    "; metrics and lists of results belong beside the loss: vgame.train(..., callbacks=[...]) calls functions at "
    "checkpoints, metrics= one for each step's loss"
)


class Held:
    """The values reachable from a model and its loss before a forward pass; call `refuse_changes` after it, and
    `changed` or `refuse_counts`."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        self.model, self.roots = model, roots_of(model, [loss])
        self.parameters, self.buffers = _parameters(model), _buffers(model)
        self.values = self._reached()
        self.chance, self.modes, self.modules = _chance(), _modes(model), _modules(model)
        self.outside = values_outside()

    def _reached(self) -> dict[str, Any]:
        tensors = {**_parameters(self.model), **_buffers(self.model)}
        return values_of([*self.roots, *((f"{n}.{key}", v) for n, t in tensors.items() for key, v in attributes(t))])

    def now(self) -> dict[str, Any]:
        """The values now, by name."""
        return self._reached() | values_outside()

    def left(self) -> list[str]:
        """The names of the modules whose mode has changed."""
        return [name for name, mode in _modes(self.model).items() if self.modes.get(name, mode) != mode]

    def replaced(self) -> list[str]:
        """The names of the modules that were replaced, or have other hooks."""
        return [name for name, module in _modules(self.model).items() if self.modules.get(name) != module]

    def changed_since(self, before: Mapping[str, Any]) -> list[str]:
        """The names of what has changed since an earlier `now()`."""
        return self.placed(differing(self.now(), before))

    def changed(self) -> list[str]:
        """The names of numbers, strings, tensors and None that have changed."""
        return differing(self._reached(), self.values) or differing(values_outside(), self.outside)

    def placed(self, paths: list[str]) -> list[str]:
        """The paths; those of attributes of a loss object with the file and the line where its call is defined."""
        loss = self.roots[-1][1]
        call = getattr(type(loss), "forward" if isinstance(loss, nn.Module) else "__call__", None)
        code = getattr(call, "__code__", None)
        place = f" ({Path(code.co_filename).name} line {code.co_firstlineno})" if code else ""
        names = innermost(paths)
        return [path + place if path.startswith("loss.") and " (" not in path else path for path in names]

    def refuse_changes(self) -> None:
        """Raise ProgramError if parameters or buffers were replaced or reshaped, or Python's random numbers were
        drawn."""
        parameters, buffers = _parameters(self.model), _buffers(self.model)
        if made := sorted(n for n, p in parameters.items() if p is not self.parameters.get(n)):
            raise ProgramError(
                f"the model creates its parameters {', '.join(made)} in the forward pass; create them in __init__"
            )
        if made := sorted(set(buffers) - set(self.buffers)):
            raise ProgramError(
                f"the model creates its buffers {', '.join(made)} in the forward pass; create them in __init__"
            )
        for name, was in self.buffers.items():
            if _kind(buffers.get(name)) != _kind(was):
                raise ProgramError(
                    f"the model replaces its buffer {name}, {_kind(was)}, by {_kind(buffers.get(name))}; keep its "
                    "shape and type"
                )
        if _chance() != self.chance:
            raise ProgramError(
                "the forward pass draws numbers from Python's random or NumPy, which would be the same at every step "
                "of a program; draw them with torch (augmentation: vgame.augment)"
            )

    def refuse_counts(self, after: Mapping[str, Any], backward: Sequence[str] = ()) -> None:
        """Raise ProgramError if this pass, a later one, gave an attribute a value of a kind that it had neither before
        this pass nor `after` the first, or a tensor that was another attribute. `backward`: names that the backward
        pass of the first changed."""
        now, before = self.now(), self.values | self.outside
        was = lambda path: (_kind(before.get(path)), _kind(after.get(path)))  # noqa: E731
        tensors = {id(value) for value in before.values() if isinstance(value, torch.Tensor)}
        moved = lambda path: id(now.get(path)) in tensors  # noqa: E731
        if counted := [path for path in self.changed() if moved(path) or _kind(now.get(path)) not in was(path)]:
            raise attributes_change(self.placed(counted), [], backward)


def attributes_change(names: list[str], left: list[str], backward: Sequence[str] = ()) -> ProgramError:
    """The error for attributes that have other values at the next forward pass; `left`: modules with another mode;
    `backward`: names that the backward pass changes."""
    behind = bool(names) and {*names} <= {*backward}
    if left:
        return ProgramError(
            f"the loss leaves modules in another mode ({some_of(left)}), in which the next step would run; set the "
            "mode back: module.train(before), before = module.training"
        )
    some = some_of(names)
    if not names:
        return ProgramError(
            "two forward passes of the same batch differ: they depend on a value outside the modules (a list, a "
            "counter, the clock, a number of the optimizer), which a program does not record; make it a buffer "
            "(register_buffer), or remove it"
        )
    if any(" (" in name or name.startswith("loss.") for name in names):
        return ProgramError(
            f"the loss or the model changes {some}{' in the backward pass' * behind}, which a program does not record; "
            f"make it a buffer of the model (register_buffer), or remove it{WATCHED}"
        )
    one = len(names) == 1
    which, form, them = ("attribute", "it a buffer", "it") if one else ("attributes", "them buffers", "them")
    place, after = ("backward", "step") if behind else ("forward", "pass")
    return ProgramError(
        f"the model changes its {which} {some_of([f'`{n}`' for n in names])} in the {place} pass, and the next {after} "
        f"may depend on {them}; make {form} (register_buffer){WATCHED}"
    )


def same_parts(a: Container, b: Container) -> bool:
    """Whether both have the same objects at the same places."""
    return [(key, id(part)) for key, part in _parts(a)] == [(key, id(part)) for key, part in _parts(b)]


Container = dict | list | set | deque


def roots_of(model: nn.Module, losses: Iterable[Any] = ()) -> Roots:
    hooks = [hook for held in EVERY_MODULE for hook in held.values() if is_users(hook) or is_own_class(type(hook))]
    return [("", model), *(("a hook of all modules", hook) for hook in hooks), *(("loss", loss) for loss in losses)]


def containers(roots: Roots) -> list[Container]:
    """Reachable containers that a forward pass can change, including attributes of modules."""
    found: list[Container] = []
    for _, value in reached(roots):
        if isinstance(value, nn.Module):
            found += [vars(value), value._parameters, value._buffers]
        elif isinstance(value, Container):
            found.append(value)
        elif _is_own(value) and has_attributes(value) and not isinstance(value, SINKS):  # a log opens another file
            found.append(held_by(value))
    return found


def _is_own(value: Any) -> bool:
    """Whether an object with attributes is the user's, or neither a class, a module nor a function."""
    if isinstance(value, type | ModuleType):
        return False
    return not callable(value) or isinstance(value, FunctionType) or is_own_class(type(value))


def _parts(value: Container) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else list(enumerate(value))


def _chance() -> tuple[Any, ...]:
    """The states of the random generators outside torch."""
    _, words, *place = np.random.get_state()
    return random.getstate(), words.tobytes(), place


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(nn.Module.named_parameters(model, remove_duplicate=False))  # some override it with fewer arguments


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers(remove_duplicate=False))


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name or "(model)": module.training for name, module in model.named_modules()}


def _modules(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {n or "(model)": (id(m), *m._forward_pre_hooks, *m._forward_hooks) for n, m in model.named_modules()}


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else str(tensor)

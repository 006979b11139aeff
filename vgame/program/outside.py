"""What a user's objects hold and a program does not carry from step to step: each is refused with one sentence.

In: a task before it is traced, its modules around the traced call. Out: nothing, or a ProgramError that names what and says what to do.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vgame.errors import ProgramError
from vgame.tasks.task import Task


def refuse_outside(task: Task) -> None:
    """Raise ProgramError if more hangs on the task's parameters and optimizer than their values."""
    for name, parameter in task.model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ProgramError(
                f"the parameter {name} has a hook on its gradient; take it off, and write it into the loss"
            )
    _refuse_optimizer(task.optimizer)
    own = {id(p) for p in task.model.parameters()}
    foreign = [tuple(p.shape) for group in task.optimizer.param_groups for p in group["params"] if id(p) not in own]
    if foreign:
        raise ProgramError(
            f"the optimizer trains {len(foreign)} tensors that are no parameters of the model, the first of shape "
            f"{foreign[0]}; make the module that holds them (such as the loss) a part of the model"
        )


def _refuse_optimizer(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ProgramError(f"the optimizer {name} has hooks on its step; take them off, a program holds the plain step")
    base = next((c for c in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD) if isinstance(optimizer, c)), None)
    if base is not None and inspect.unwrap(type(optimizer).step) is not inspect.unwrap(base.step):
        raise ProgramError(f"the optimizer {name} has a step of its own; use torch.optim.{base.__name__} itself")
    if "step" in vars(optimizer):
        raise ProgramError(
            f"the step of the optimizer {name} was replaced, as learning rate schedulers do; the job's schedule sets the rates"
        )
    held = {key for values in optimizer.state.values() for key, value in values.items() if value is not None}
    if held:
        raise ProgramError(
            f"the optimizer {name} already holds {', '.join(sorted(held))}; a run starts from a new optimizer, build it again"
        )


class Held(TorchFunctionMode):
    """What the modules of a model hold before a forward pass, which runs while this is active; then `refuse_changes`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.attributes, self.parameters, self.buffers = _attributes(model), _parameters(model), _buffers(model)
        self.tensors = {id(value) for value in self.attributes.values() if isinstance(value, torch.Tensor)}
        self.read: set[int] = set()  # of these tensors, by id

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.tensors:
            self.read |= self.tensors & {id(leaf) for leaf in tree_leaves((args, kwargs))}
        return function(*args, **(kwargs or {}))

    def refuse_changes(self) -> None:
        """Raise ProgramError if the next step would start from something else than parameters and buffers of the same shape."""
        attributes, parameters, buffers = _attributes(self.model), _parameters(self.model), _buffers(self.model)
        if changed := [
            n for n, value in self.attributes.items() if n in attributes and self._changed(value, attributes[n])
        ]:
            raise ProgramError(
                f"the model changes its attributes {', '.join(changed)} in the forward pass; make them buffers (register_buffer)"
            )
        if made := sorted(n for n, p in parameters.items() if p is not self.parameters.get(n)):
            raise ProgramError(
                f"the model makes its parameters {', '.join(made)} in the forward pass; make them in __init__"
            )
        if made := sorted(set(buffers) - set(self.buffers)):
            raise ProgramError(
                f"the model makes its buffers {', '.join(made)} in the forward pass; make them in __init__"
            )
        for name, was in self.buffers.items():
            if _kind(buffers.get(name)) != _kind(was):
                raise ProgramError(
                    f"the model replaces its buffer {name}, {_kind(was)}, by {_kind(buffers.get(name))}; shape and type must stay"
                )

    def _changed(self, before: Any, after: Any) -> bool:
        """A number that changed, or a tensor that was read and replaced; one that was not read is made anew at every step."""
        if isinstance(before, torch.Tensor):
            return after is not before and id(before) in self.read
        number = isinstance(before, int | float) and isinstance(after, int | float)
        return number and after is not before and after != before


def _attributes(model: nn.Module) -> dict[str, Any]:
    """All but the mode: a forward pass that sets one sets it at every step."""
    held = ((name, key, value) for name, module in model.named_modules() for key, value in vars(module).items())
    return {f"{name}.{key}".lstrip("."): value for name, key, value in held if key != "training"}


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers(remove_duplicate=False))


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else str(tensor)

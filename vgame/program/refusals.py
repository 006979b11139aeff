"""The errors of a capture and their messages."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin

from vgame import augment
from vgame.errors import ProgramError, some_of
from vgame.program.captured import Captured
from vgame.program.constants import written_by
from vgame.program.hidden_state import (
    is_library_file,
    line_of,
    refuse_shared_memory,
)
from vgame.program.origins import module_of, origin, place_of
from vgame.tasks.task import Task

aten = torch.ops.aten

#: Part of torch's message -> remedy.
ADVICE = {
    "Expected dtype int32/int64 for index": "class numbers must be integers: labels.long()",
    "Expected dtype int64 for index": "class numbers must be integers: labels.long()",
    "dynamo-optimized function": "remove torch.compile: vgame captures the step itself",
    "support for cuda": "name no device in the loss: vgame.train(..., device=...) sets the device",
    "not compiled with CUDA": "name no device in the loss: vgame.train(..., device=...) sets the device",
    "No CUDA GPUs are available": "name no device in the loss: vgame.train(..., device=...) sets the device",
    "SymFloat": 'numbers of tensors are unknown while it is captured; they can be printed: print(f"{x.item():.3f}")',
    "SymInt": 'numbers of tensors are unknown while it is captured; they can be printed: print(f"{x.item()}")',
    ".numpy() is not supported": "compute with torch only",
    "a leaf Variable that requires grad": "only the optimizer may change parameters",
}

_STORES = (
    "the loss stores numbers or tensors{}, which are unknown while it is captured; leave it out: vgame.train(..., "
    "metrics=, callbacks=) gets losses and weights"
)
#: Part of torch's or Python's message -> the whole message of vgame, with the user's line.
SENTENCES = {
    "of type SymFloat is not JSON serializable": _STORES,
    "of type SymInt is not JSON serializable": _STORES,
    "Can't pickle local object 'WeakValueDictionary": _STORES,
    "Cannot access data pointer of Tensor": "the loss reads or copies the memory of a tensor{}, which has none while "
    "it is captured; write x.clone(), and copy modules before the loss is called",
}


def _fails(error: Exception, keys: Sequence[str]) -> ProgramError:
    """The error for a failure in the user's code, with its line. `keys`: the keys of the batch."""
    what = " ".join(str(error).split("\n")[0].split())
    if sentence := next((then for when, then in SENTENCES.items() if when in what), None):
        return ProgramError(sentence.format(line_of(error)))
    if "TorchScript interpreter" in what and re.search("[dD]ata.?[dD]ependent", str(error)):
        return decides_by_values(f"a condition in a function of torch.jit{line_of(error)}")
    if type(error).__module__.startswith("torch._dynamo."):
        return ProgramError(
            f"a function that torch compiles{line_of(error)} (torch.cond, while_loop, torch.compile, ...) cannot be "
            "captured; compute both sides and select with torch.where, or write the loop in Python"
        )
    if "backward through the graph a second time" in what:
        return ProgramError(
            f"the loss calls backward{line_of(error)}; remove backward and the optimizer's step: vgame adds them"
        )
    if "found at least two devices, meta and cpu" in what:
        return ProgramError(
            "a derivative in forward mode (torch.func.hessian, jacfwd, jvp) cannot be differentiated again while it is "
            f"traced{line_of(error)}; write torch.func.jacrev(jacrev(f)), or torch.autograd.grad with create_graph=True"
        )
    if found := re.search(r"modified by an inplace operation: .*?which is (output \d+ of \w+)", what):
        return ProgramError(
            f"an operator overwrites a tensor that the gradient needs ({found[1]}); write x = x + y instead of x += y, "
            "and x.relu() instead of x.relu_()"
        )
    advice = next((f"; {then}" for when, then in ADVICE.items() if when in what), "")
    if isinstance(error, KeyError) and error.args[:1] and error.args[0] not in keys:
        advice = f"; the batch has the keys {', '.join(map(repr, keys))}"
    return ProgramError(
        f"the training step fails while it is traced: {type(error).__name__}: {what}{line_of(error)}{advice}"
    )


def no_gradient(names: Sequence[str]) -> ProgramError:
    """The error for a loss that reaches none of these parameters."""
    return ProgramError(
        f"the loss depends on no trained parameter ({some_of(names)}); compute it from the model's output, without "
        "torch.no_grad, .detach() and .item()"
    )


def name_of(task: Task, number: int) -> str:
    """The name of a loss with its first line; `loss 2` for one without code of the user's."""
    code = getattr(inspect.unwrap(task.losses[number]), "__code__", None)
    if code is None or is_library_file(code.co_filename):
        return f"loss {number + 1}"
    return f"{code.co_name} ({Path(code.co_filename).name} line {code.co_firstlineno})"


def turns_change(turns: Mapping[str, Sequence[str]], task: Task, number: int) -> ProgramError:
    """The error for a loss that computes something else after other turns. `turns`: what each loss changes."""
    reader = name_of(task, number)
    others = {name: names for name, names in turns.items() if names and name != reader} or turns
    found = "; ".join(f"{name} changes {some_of([*names])}" for name, names in others.items() if names)
    return ProgramError(
        f"{reader} computes something else in a later step, after the losses of other turns{found and f': {found}'}"
        "; let each loss set what it reads, and compute its own tensors, or set it before the task is made"
    )


def thawed(names: Sequence[str], lines: Mapping[str, str]) -> ProgramError:
    """The error for frozen parameters that a loss begins to train."""
    line = next((lines[name] for name in names if name in lines), "")
    return ProgramError(
        f"the loss sets requires_grad of {some_of(sorted(names))}{line}; call it before the task is made, which trains "
        'the parameters that are not frozen then, or give the steps: frozen={"encoder.*": 100}'
    )


def switches(names: Sequence[str]) -> ProgramError:
    """The error for parameters that a loss trains in its first step only."""
    return ProgramError(
        f"the loss changes {some_of(names)}, so that the next step computes something else; freeze parameters before "
        'the task is made, or in some steps: frozen={"encoder.*": 100}'
    )


def nothing_to_train(names: Sequence[str]) -> ProgramError:
    """The error for a loss all of whose parameters are frozen."""
    return ProgramError(
        f"all parameters ({some_of(names)}) are frozen: there is nothing to train; unfreeze one: requires_grad_(True)"
    )


def decides_by_values(where: str, instead: str = "") -> ProgramError:
    usual = (
        'make the control flow and all shapes independent of the data; a number is printed by print(f"{x.item():.3f}")'
    )
    return ProgramError(
        f"the model branches on the values of its tensors ({where}), which cannot be captured; {instead or usual}"
    )


def refuse_torchvisions_chance() -> None:
    """Raise ProgramError if a transform of torchvision reads a number: it draws one for the whole batch."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith("torchvision.transforms"):
            ours = f"vgame.augment.{kind.__name__}" if kind.__name__ in augment.__all__ else "those of vgame.augment"
            raise ProgramError(
                f"torchvision's {kind.__name__} draws one number for the whole batch and branches on it in Python, "
                f"which cannot be captured; use {ours}, which draws for each sample: docs/augment.md"
            )
        frame = frame.f_back


def refuse_unknown_shapes(graph: torch.fx.GraphModule, decided: Sequence[str]) -> None:
    """Raise ProgramError for shapes that depend on data, and numbers read from tensors; names the user's lines, or else
    the operators."""
    found = []
    for node in graph.graph.nodes:
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            known = isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)
            if value is not None and not known:
                found.append(f"{node.target} in {place_of(node)}")
    if found and decided:
        raise ProgramError(
            f"the model branches on the values of its tensors ({decided[0]}), which cannot be captured; read no number "
            "from a tensor: index with the tensor itself, x[rows, columns] or torch.gather, and select with torch.where"
        )
    if found:
        raise decides_by_values(found[0])


def refuse_other_names(
    captured: Captured, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> None:
    """Raise ProgramError for a changed tensor that the model also has as another tensor: in torch both change."""
    graph, unchanged = captured.graph, captured.unchanged_buffers()
    changing = {n for n, p in parameters.items() if p.requires_grad} | (set(buffers) - set(unchanged))
    constants = [
        (f"a constant of {module_of(n)}", getattr(graph, n.target)) for n in graph.graph.find_nodes(op="get_attr")
    ]
    refuse_shared_memory([*parameters.items(), *buffers.items(), *constants], changing)


def refuse_types(task: Task, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    data = {task.place(name): tensor for name, tensor in task.tensors.items()}
    for name, tensor in {**parameters, **buffers, **data}.items():
        if isinstance(tensor, UninitializedTensorMixin):
            raise ProgramError(
                f"{name} has no shape yet: its module is lazy; call the model with a batch before the optimizer is made"
            )
        if tensor.is_inference() and name not in data:
            raise ProgramError(f"{name} was made in torch.inference_mode(), so it has no gradient; make it outside")
        if tensor.layout is not torch.strided:
            raise ProgramError(
                f"{name} is sparse ({tensor.layout}), but a program has dense tensors only; write {name}.to_dense() "
                "where the model is made"
            )
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.bfloat16):
            alike = [other for other, t in {**parameters, **buffers, **data}.items() if t.dtype == tensor.dtype]
            are, them = ("is", "it") if len(alike) == 1 else ("are", "them")
            raise ProgramError(
                f"{some_of(alike)} {are} {tensor.dtype}; vgame trains in float32 and bfloat16: convert {them} with "
                ".float() or .bfloat16()"
            )
        if tensor.device.type != "cpu":
            raise ProgramError(
                f"{name} is on the device {tensor.device}; build the model on the CPU: `--device` sets where it runs"
            )
        if tensor.is_complex():
            raise ProgramError(f"{name} is complex; only float32 and integers are supported")


#: Wrappers of modules, which cannot be traced -> remedy.
WRAPPERS = {
    "DataParallel": "pass its .module: vgame.train(..., device=...) sets the device",
    "DistributedDataParallel": "pass its .module: vgame.train(..., device=...) sets the device",
    "OptimizedModule": "pass the module without torch.compile: vgame captures the step itself",
    "ScriptModule": "pass the module from which torch.jit made it",
}


def refuse_wrappers(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}
        if found := sorted(kinds & WRAPPERS.keys()):
            raise ProgramError(
                f"{f'the module {name}' if name else 'the model'} is wrapped: {found[0]}; {WRAPPERS[found[0]]}"
            )


def refuse_cumulative_averages(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training and module.momentum is None:
            raise ProgramError(
                f"the batch norm {name or 'model'} has momentum=None, an average over all batches, which cannot be "
                "captured; give it a momentum, such as 0.1"
            )


def refuse_no_loss(loss: Any) -> None:
    if isinstance(loss, torch.Tensor):
        return
    instead = "return the tensor to minimise"
    if isinstance(loss, float | int | torch.SymFloat | torch.SymInt):
        instead = "remove .item() and float()"
    elif isinstance(loss, Mapping):
        instead = f"return one of {', '.join(map(repr, list(loss)[:5]))}"
    elif isinstance(loss, tuple | list):
        instead = (
            "return the sum of the losses; if they train different parts (a GAN), detach the other part in each: "
            "docs/loops.md"
        )
    raise ProgramError(f"the loss returns a {type(loss).__name__}; one float32 is expected: {instead}")


def refuse_written_constants(graph: torch.fx.GraphModule) -> None:
    """Raise ProgramError for writes to older tensors that are neither parameters nor buffers, and for tensors with
    replaced memory."""
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        where = f"({node.target} in {place_of(node)})"
        if node.target.overloadpacket is aten.set_:
            raise ProgramError(
                f"the model sets the memory of a tensor {where}; make it a buffer, or compute a new tensor"
            )
        if any(origin(n).op == "get_attr" for n in written_by(node)):
            raise ProgramError(
                f"the model writes to a tensor that is not a buffer of it {where}; make it one (a module outside the "
                "model, such as the loss: a part of the model), or write to a clone"
            )


def batch_changes(names: Iterable[str]) -> ProgramError:
    return ProgramError(
        f"a loss changes {some_of([*names])} of its batch, which the next loss of the step would read in a loop of "
        "yours; write to a copy (clone, dict(batch)) in the loss"
    )


def refuse_written(
    graph: torch.fx.GraphModule,
    first: torch.fx.GraphModule,
    parameters: list[str],
    buffers: int,
    batch: list[str],
    model: torch.nn.Module,
) -> None:
    """Raise ProgramError for parameters that the loss or the model writes (only the optimizer may), and for writes to
    the given batch (a copy may be written). `first`: the graph with the writes in place."""
    places = dict(zip(graph.graph.find_nodes(op="placeholder"), [*parameters, *range(buffers), *batch], strict=False))
    found = [places[n.args[0]] for n in graph.graph.nodes if n.target is aten.copy_.default and n.args[0] in places]
    if changed := [name for name in found if name in batch]:
        raise batch_changes(changed)
    if written := [name for name in found if name in parameters]:
        own = set(first.graph.find_nodes(op="placeholder")[: len(parameters)])
        lines = [place_of(n) for n in first.graph.nodes if any(origin(w) in own for w in written_by(n))]
        limited = [name for name, module in model.named_modules() if getattr(module, "max_norm", None) is not None]
        instead = f"remove max_norm of {some_of(limited)}" if limited else "make them buffers"
        raise ProgramError(
            f"the model writes to its parameters {some_of(written)}{f' (in {lines[0]})' if lines else ''}; {instead}, "
            "or let the optimizer change them"
        )

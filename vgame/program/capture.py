"""Capture: an ordinary module, loss and optimizer become one flat graph of ATen operators, every node with the module
it came from.

Two passes of make_fx over fake tensors (nothing is computed): trace forward, loss and gradients; functionalize and
decompose to core ATen. In: a Task. Out: the graph and the names of its inputs and outputs; `vgame.program.lower` turns
them into a program.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._decomp.decompositions import pw_cast_for_opmath
from torch.distributions import Distribution
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from vgame.errors import ProgramError, VgameError, some_of
from vgame.program.autocast import as_on_cuda
from vgame.program.captured import Captured
from vgame.program.caught import detects, undecided
from vgame.program.constants import fold_wide
from vgame.program.doubles import without_doubles
from vgame.program.hidden_state import (
    attributes_change,
    line_of,
    refuse_hooks,
    refuse_outside,
)
from vgame.program.later_step import later_step, shown
from vgame.program.lowering import HANDLERS
from vgame.program.origins import labelled_modules
from vgame.program.passes import Step
from vgame.program.refusals import (
    _fails,
    decides_by_values,
    nothing_to_train,
    refuse_cumulative_averages,
    refuse_other_names,
    refuse_types,
    refuse_unknown_shapes,
    refuse_wrappers,
    refuse_written,
    refuse_written_constants,
    switches,
    turns_change,
)
from vgame.program.restored import restored
from vgame.program.retrace import is_repeated, without_repetition
from vgame.program.scripted import as_written
from vgame.program.seeds import unset
from vgame.program.shared import Change, Shared
from vgame.program.unchanged import kept_for
from vgame.tasks.task import TOTALS, Task

aten = torch.ops.aten
_FAKE = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}


def capture(task: Task) -> tuple[Captured, ...]:
    """The training step of a task, one graph for each loss. Deterministic: a second capture gives the same graphs."""
    refuse_wrappers(task.model)
    refuse_outside(task)
    if len(task.losses) > 1 and task.accumulate > 1:  # a pass of a loss follows its own or another turn
        for number, own in enumerate(owned(task)):
            _capture(task, number, own, alone=True)
    return tuple(_capture(task, number, own) for number, own in enumerate(owned(task)))


def refuse_reads(task: Task, shared: Shared) -> None:
    """Raise ProgramError if a loss reads what the optimizers and schedulers have changed in the steps of the job."""
    shared.refuse_outside()
    if not shared.has_more_than(later_step(task)):
        return
    with shown(shared.changes(traps=True)):
        shared.refuse_held()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were issued before
        for changes in shared.variants():
            for number, own in enumerate(owned(task)):
                _capture(task, number, own, alone=task.accumulate > 1, later=changes)


def owned(task: Task) -> list[set[int]]:
    """For each loss, the `id`s of the parameters that it trains: those of its optimizer; for a single loss, those of
    model.parameters()."""
    if len(task.losses) == 1:
        return [{id(p) for p in task.model.parameters()}]
    return [{id(p) for g in o.param_groups for p in g["params"]} for o in task.optimizers]


def _capture(
    task: Task, number: int, own: set[int], alone: bool = False, later: Sequence[Change] | None = None
) -> Captured:
    """Capture one loss, with the gradients of its parameters. `alone`: its second pass follows the first at once, not
    after the other turns. `later`: the changes that the second pass finds, by default those of one step."""
    parameters = dict(task.model.named_parameters())
    buffers = dict(task.model.named_buffers())
    refuse_types(task, parameters, buffers)
    batch = task.samples(torch.arange(task.batch) % task.population)
    wrapper = None
    try:
        with ExitStack() as stack:
            stack.enter_context(restored(task.model, *task.losses))
            changes = later_step(task) if later is None else later
            stack.enter_context(kept_for([*task.optimizers, *task.schedulers], task.model))
            _train(task.model)  # which may freeze parameters, or add hooks
            refuse_hooks(task.model)
            refuse_cumulative_averages(task.model)
            wrapper = Step(task, number, own, alone, changes)
            if not wrapper.trained and not hasattr(task.model, TOTALS):  # an evaluation trains nothing
                raise nothing_to_train(wrapper.own)
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(_without_mkldnn())
            stack.enter_context(_without_validation())
            stack.enter_context(as_on_cuda())
            stack.enter_context(as_written())
            stack.enter_context(unset())
            stack.enter_context(_without_anomalies())
            stack.enter_context(fx_traceback.preserve_node_meta())
            stack.enter_context(labelled_modules(task.model))
            stack.enter_context(_without_tracebacks())
            graph = _two_passes(wrapper, parameters, buffers, batch)
    except VgameError:
        if later is None and wrapper is not None and wrapper.unnamed:  # again, with traps that name the value
            _capture(task, number, own, alone, later_step(task, traps=True))
        raise
    except Exception as error:
        if isinstance(error, undecided()):
            raise decides_by_values(f"{getattr(error, 'func', 'a condition')}{line_of(error)}") from None
        if type(error).__name__ == "PendingUnbackedSymbolNotFound":  # the read raised its error in another thread
            raise decides_by_values(f"a number that another thread reads{line_of(error)}") from None
        checks = None if wrapper is None else wrapper.printed.checks.failed(error)
        raise checks or _fails(error, list(batch)) from None
    refuse_unknown_shapes(graph, wrapper.decided)
    wrapper.printed.warn()
    captured = Captured(
        graph, tuple(parameters), wrapper.trained, tuple(buffers), tuple(batch), wrapper.without_gradient
    )
    refuse_other_names(captured, parameters, buffers)
    return captured


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Context without the traceback that torch's tracer prints before an error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _two_passes(step: Step, parameters: Mapping, buffers: Mapping, batch: Mapping) -> torch.fx.GraphModule:
    opened = {aten.native_batch_norm.default: _native_batch_norm, aten.native_dropout.default: _native_dropout}
    inputs = (parameters, buffers, batch)
    sets = 2 if len(step.task.losses) == 1 else 3  # of placeholders: two passes, and those of the other turns
    again = [t for _ in range(sets - 1) for t in torch.utils._pytree.tree_map(torch.detach, inputs)]  # other tensors
    first = make_fx(step, decomposition_table=opened, **_FAKE)(*inputs, *again)
    _drop_failed(first)
    refuse_written_constants(first)
    try:
        second = _functional(first, [t.detach() for t in torch.utils._pytree.tree_leaves((inputs, again))])
    except undecided():
        refuse_unknown_shapes(first, step.decided)
        raise
    refuse_written(second, first, list(parameters), len(buffers), list(batch), step.task.model)
    if step.functions[0] != step.functions[1] or not is_repeated(second, sets):
        step.unnamed = not (step.changed or step.left)
        if sets > 2:
            raise turns_change(step.turns, step.task, step.number)
        flags = [name for name in step.changed if name.startswith("requires_grad of ")]
        raise switches(flags) if flags else attributes_change(step.changed, step.left, step.backward)
    once = without_repetition(second, sets)
    once.graph.eliminate_dead_code()
    fold_wide(once)
    _scale_of_dropout(once)
    without_doubles(once, getattr(step.task, "doubles", {}), list(batch))
    return once


def _drop_failed(graph: torch.fx.GraphModule) -> None:
    """Remove the operators whose errors the user's code has caught: the tracer records them before it calls them. Also
    remove a profiler's labels, such as those of optimizer.zero_grad()."""
    for node in reversed(graph.graph.nodes):
        named = getattr(node.target, "namespace", "") == "profiler"
        if node.op == "call_function" and (named or "val" not in node.meta) and not node.users:
            graph.graph.erase_node(node)


def core_graph(function: Callable, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    """A function of tensors, without gradients, as one graph of operators that have a handler; it may write to tensors
    that it creates."""
    with torch.no_grad():
        first = make_fx(function, **_FAKE)(*inputs)
    return _functional(first, inputs)


def _functional(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    """The same graph without writes in place, of operators that have a handler."""
    with torch.no_grad():
        return make_fx(_without_writes(graph), decomposition_table=_table(), **_FAKE)(*inputs)


def _table() -> dict[Any, Callable]:
    """Decompositions of operators without a handler; renewed after a library has registered operators."""
    return _table_of(len(torch._C._dispatch_get_all_op_names()))


@cache
def _table_of(operators: int) -> dict[Any, Callable]:
    table = {op: rule for op, rule in core_aten_decompositions().items() if op not in HANDLERS}
    return table | {
        aten.as_strided.default: _as_strided,
        aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward,
    }


def _scale_of_dropout(graph: torch.fx.GraphModule) -> None:
    """Dropout divides its mask by the keep probability q: replace it by a product with RN(1 / q)."""
    for node in graph.graph.find_nodes(op="call_function", target=aten.div.Scalar):
        mask, q = node.args
        if mask.target is aten.bernoulli.p and mask.args[1] == q:
            node.target, node.args = aten.mul.Scalar, (mask, 1 / q)


def _train(model: nn.Module) -> None:
    """Set training mode. Modules in evaluation mode keep it, unless the whole model is as its eval() leaves it.
    ProgramError if a train() of the user's changes tensors: it could do so at each call."""
    own = any(type(module).train is not nn.Module.train for module in model.modules())
    before = {name: (t, t.detach().clone()) for name, t in _tensors(model).items() if own}
    frozen = _in_evaluation(model)
    if not model.training:
        model.eval()
        frozen = [] if frozen == _in_evaluation(model) else frozen
    model.train()
    for module in frozen:
        module.training = False
    now = _tensors(model) if own else {}
    same = {name for name, (t, was) in before.items() if now.get(name) is t and torch.equal(t, was)}
    if changed := sorted({*before, *now} - same):
        with torch.no_grad():
            for tensor, was in before.values():
                tensor.copy_(was)
        raise ProgramError(
            f"model.train() changes the model's tensors ({some_of(changed)}), but a job starts from the model as it "
            "is; call model.train() before the task is made, and let it change modes only"
        )


def _in_evaluation(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if not module.training]


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Context without oneDNN, which would put its own operators (mkldnn_rnn_layer) into the graph."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def _without_validation() -> Iterator[None]:
    """Context without the validation of torch.distributions, which would branch on values; results do not depend on
    it."""
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validates)


@contextmanager
def _without_anomalies() -> Iterator[None]:
    """Context without torch's anomaly detection, which branches on values; results do not depend on it. ProgramError if
    the user's code could catch its error."""
    enabled, checked = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        with patch.object(torch, "set_anomaly_enabled", detects), patch.object(detects, "on", enabled):
            yield
    finally:
        torch.set_anomaly_enabled(enabled, checked)


def _without_writes(graph: torch.fx.GraphModule) -> Callable:
    """The same graph without writes in place. functionalize tracks only its inputs, so constants become inputs too."""
    held = {node.target: getattr(graph, node.target) for node in graph.graph.find_nodes(op="get_attr")}

    def run(*tensors: torch.Tensor) -> Any:
        return functionalize(_of_constants, remove="mutations")(held, *tensors)

    def _of_constants(constants: Mapping[str, Any], *tensors: torch.Tensor) -> Any:
        interpreter = torch.fx.Interpreter(graph)
        interpreter.get_attr = lambda target, args, kwargs: constants[target]
        return interpreter.run(*tensors)

    return run


# ---- operators to decompose before autograd hides their inner steps ----


def _native_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    train: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm with its hidden update of the running statistics written out; two-pass variance."""
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    if train:
        variance, mean = torch.var_mean(x, dims, correction=0)
        if running_mean is not None and running_var is not None:
            count = x.numel() // x.shape[1]
            unbiased = variance * (count / max(count - 1, 1))
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + unbiased * momentum)
    else:
        mean, variance = running_mean, running_var
    rstd = torch.rsqrt(variance + eps)
    y = (x - mean.view(shape)) * rstd.view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    return y, (mean if train else x.new_zeros(0)), (rstd if train else x.new_zeros(0))


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout with its mask as a value of its own, so that the backward pass uses the same one."""
    if not train or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    keep = torch.bernoulli(torch.empty_like(x), 1 - p)
    return x * keep * (1 / (1 - p) if p < 1 else 0.0), keep.bool()


def _as_strided(x: torch.Tensor, size: list[int], stride: list[int], offset: int | None = None) -> torch.Tensor:
    """as_strided addresses memory: permute a tensor that is not row-major into the order of its memory first."""
    if x.numel() * x.element_size() != x.untyped_storage().nbytes():
        raise ProgramError("as_strided of a part of a tensor is not supported; index the tensor instead")
    if x.is_contiguous():
        return NotImplemented
    memory = x.permute(sorted(range(x.dim()), key=lambda d: -x.stride(d)))
    return memory.reshape(-1).as_strided(size, stride, offset)


@pw_cast_for_opmath
def _binary_cross_entropy_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """torch's formula, with RN(1e-12) in binary32 as the smallest divisor for every type."""
    found = gradient * (x - target) / torch.clamp(x * (1 - x), min=float(np.float32(1e-12)))
    found = found if weight is None else found * weight
    return found / x.numel() if reduction == 1 else found

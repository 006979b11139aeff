"""A captured graph becomes a program: batch loading, forward, loss, backward and optimizer as operators.

In: a Task and its steps. Out: the program, the initial state, the data and the scalar table. All operators that cannot
be lowered are reported at once, with their modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch

from vgame.arithmetic.functions import Function
from vgame.commit.mapped import flat_of
from vgame.errors import ProgramError
from vgame.program.batches import POSITION, refuse_carried, rows_of
from vgame.program.capture import capture, refuse_reads
from vgame.program.captured import Captured
from vgame.program.frozen import awake_column, frozen_steps_of
from vgame.program.indices import check_indices
from vgame.program.lowering import Builder, Value
from vgame.program.lowering.graph import Graph
from vgame.program.lowering.marks import Marks, Notes, philox_from
from vgame.program.lowering.pointwise import clamp
from vgame.program.lowering.precision import narrowed
from vgame.program.lowering.reduction import vector_norm
from vgame.program.lowering.views import stack
from vgame.program.operators import Copy, Ref, RefClass
from vgame.program.optimizer_plan import ByRule, Plans, RateAt
from vgame.program.optimizer_step import OptimizerStep
from vgame.program.optimizers import Rule, rule_of
from vgame.program.play import Played
from vgame.program.program import Labels, Program, Source, TensorLabel
from vgame.program.recorder import Key
from vgame.program.renumber import moved, reachable, renumber
from vgame.program.schedule import Schedule, double, to_binary32
from vgame.program.shared import Shared
from vgame.program.slots import Slots
from vgame.program.starting_values import look_at_files, refuse_values
from vgame.program.usual import mark_usual
from vgame.system.progress import NULL_PROGRESS, NullProgress
from vgame.tasks.task import Task

PART = 1_000  # steps of a table of scalars between two reports of progress


@dataclass(frozen=True)
class Lowered:
    """A program with its initial tensors. `scalars` is [steps, program.scalars] float32."""

    program: Program
    state: tuple[torch.Tensor, ...]
    data: tuple[torch.Tensor, ...]
    scalars: torch.Tensor
    without_gradient: tuple[str, ...] = ()  # trainable parameters without a gradient
    marks: Marks = field(default_factory=Marks)


def value_type(tensor: torch.Tensor) -> torch.dtype:
    """float32 for bfloat16 too, whose words are binary32; bool, or int32 for every other type of integers."""
    if tensor.is_floating_point():
        return torch.float32
    return torch.bool if tensor.dtype == torch.bool else torch.int32


def as_words(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A flat copy in float32 or int32 on the CPU, or the words in their file; ProgramError for integers that do not fit
    int32."""
    if (mapped := flat_of(tensor)) is not None:
        return mapped
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor.to(torch.float32).reshape(-1).clone()
    words = tensor.to(torch.int32)
    if not torch.equal(words.to(tensor.dtype), tensor):
        raise ProgramError(f"{name} holds integers that do not fit int32; vgame computes integers in 32 bits")
    return words.reshape(-1).clone()


def lower_task(task: Task, schedule: Schedule | None, steps: int, listener: NullProgress = NULL_PROGRESS) -> Lowered:
    """Capture and lower a task. DataError or ProgramError for invalid data or parameters."""
    listener.stage("captures the training step")
    return lower_captured(task, capture(task), schedule, steps, listener)


def lower_captured(
    task: Task,
    captured: Sequence[Captured],
    schedule: Schedule | None,
    steps: int,
    listener: NullProgress = NULL_PROGRESS,
) -> Lowered:
    """Lower a task from captured graphs."""
    look_at_files(task.data, listener)
    listener.stage("checks the data, lowers the captured graph")
    refuse_values(task)
    for each in captured:
        check_indices(each, task)
        refuse_carried(each, task)
        mark_usual(each, task)
    return _Lowering(task, captured, schedule, steps, listener).run()


class _Lowering:
    def __init__(
        self, task: Task, captured: Sequence[Captured], schedule: Schedule | None, steps: int, listener: NullProgress
    ) -> None:
        self.task, self.captured, self.schedule, self.steps, self.listener = task, captured, schedule, steps, listener
        self.b = Builder()
        self.state: list[tuple[TensorLabel, torch.Tensor]] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.scalar_names, self.scalar_columns = list[str](), list[np.ndarray]()
        self.notes, self.shared = Notes(self.b.exact), Shared(task)

    def run(self) -> Lowered:
        self._state_inputs()
        batches, optimizers = self._load_batches(), [[o] for o in self.task.optimizers]
        trained = [name for captured in self.captured for name in captured.trained]
        self.frozen_steps = frozen_steps_of(self.task, trained)
        if len(self.captured) == 1:
            optimizers = [list(self.task.optimizers)]
        names = [captured.trained for captured, own in zip(self.captured, optimizers, strict=True) for _ in own]
        self.plans = Plans(self.task, self.schedule, self.steps, names, self.frozen_steps, self.listener, self.shared)
        losses = [self._turn(*turn, batches) for turn in zip(self.captured, optimizers, strict=True)]
        refuse_reads(self.task, self.shared)
        if self.task.average is not None:
            self._average(self.task.average, trained)
        return self._finish(self._computed(reduce(lambda a, b: self.b.map(Function.ADD, a, b), losses)))

    def _turn(
        self, captured: Captured, optimizers: Sequence[torch.optim.Optimizer], batches: Sequence[Sequence[Value]]
    ) -> Value:
        """Lower a loss and the steps of its optimizers, over the current state within the step."""
        names = (*captured.parameters, *captured.buffers)
        before = dict(zip(names, self.outputs, strict=False))
        loss, gradients = self._gradients(captured, batches)
        gradients = whole = dict(zip(captured.trained, gradients, strict=True))
        after = {name: self.outputs[self._index(name)] for name in captured.buffers}
        if self.task.clip is not None:
            gradients = self._clipped(gradients, self.task.clip)
        if (limit := self.task.clip_value) is not None:
            self.b.label = "clip"
            gradients = {name: clamp(self.b, g, -limit, limit) for name, g in gradients.items()}
        self.notes.turn(before, loss, whole, gradients, after)
        self._optimizer(optimizers, gradients)
        return loss

    def _gradients(self, captured: Captured, batches: Sequence[Sequence[Value]]) -> tuple[Value, list[Value]]:
        """(loss, gradients), summed over the step's batches; each batch reads the buffers after the previous one."""
        count = len(captured.parameters)
        parameters, buffers = self.outputs[:count], self.outputs[count : count + len(captured.buffers)]
        sums: list[Value] = []
        for batch in batches:
            graph = Graph(captured, self.b)
            loss, gradients, buffers = graph.run([*parameters, *buffers, *batch])
            self.notes.draws.append(tuple(graph.draws))
            news = [loss, *gradients]
            sums = [self.b.map(Function.ADD, a, b) for a, b in zip(sums, news, strict=True)] if sums else news
        for name, value in zip(captured.buffers, buffers, strict=True):
            self._assign(name, value)
        return sums[0], sums[1:]

    def _clipped(self, gradients: Mapping[str, Value], limit: float) -> dict[str, Value]:
        """g * min(limit / (norm + 1e-6), 1), the norm being that of the tensors' norms
        (torch.nn.utils.clip_grad_norm_)."""
        b = self.b
        b.label = "clip"
        norms = stack(b, [self._awake(name, vector_norm(b, g)) for name, g in gradients.items()])
        factor = b.map(Function.DIV, limit, b.map(Function.ADD, vector_norm(b, norms), 1e-6))
        factor = b.map(Function.MIN, factor, 1.0)
        return {name: b.map(Function.MUL, g, factor) for name, g in gradients.items()}

    def _awake(self, name: str, norm: Value) -> Value:
        """The norm, or 0 in steps in which the parameter has no gradient."""
        if name not in self.frozen_steps:
            return norm
        awake = self._scalar(f"awake.{name}", awake_column(self.frozen_steps[name], self.steps))
        return self.b.select(self.b.map(Function.NE, awake, 0.0), norm, 0.0)

    # ---- state ----

    def _state(self, name: str, tensor: torch.Tensor) -> Value:
        if any(label.name == name for label, _ in self.state):
            raise ProgramError(
                f"two tensors of the state have the name {name!r}: a parameter or buffer of the model, and a tensor "
                "that vgame adds (such as an optimizer slot); rename the module"
            )
        ref = Ref(RefClass.STATE, len(self.state))
        label = TensorLabel(name, tuple(tensor.shape), not tensor.is_floating_point())
        self.state.append((label, as_words(name, tensor)))
        if tensor.dtype == torch.bfloat16:
            self.b.narrow.add(ref)
        value = self.b.tensor(ref, tensor.shape, value_type(tensor))
        self.inputs.append(value)
        self.outputs.append(value)
        return value

    def _state_inputs(self) -> None:
        model = self.task.model
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._state(name, tensor)

    def _index(self, name: str) -> int:
        return next(i for i, (label, _) in enumerate(self.state) if label.name == name)

    def _assign(self, name: str, value: Value) -> None:
        """The state tensor's value after this step."""
        index = self._index(name)
        target = self.inputs[index]
        if not target.integer:
            value = self.b.to_float(value)
        if target.ref in self.b.narrow:
            value = narrowed(self.b, value)
        value = self.b.plain(value.like(value.layout.expand(target.shape)))
        self.outputs[index] = value if value.ref == target.ref else self._computed(value)

    def _computed(self, value: Value) -> Value:
        """The value as the whole output of an operator: unchanged, or a copy if no operator computes the tensor."""
        value = self.b.plain(value)
        if value.ref.cls is RefClass.OPERATOR:
            return value
        sizes, accesses = self.b._accesses([value])
        return self.b.emit(Copy(sizes, accesses, value.integer), value.shape)

    # ---- data ----

    def _load_batches(self) -> list[list[Value]]:
        """The samples of this step; each data tensor is read by one gather."""
        task = self.task
        self.b.label = "data"
        count = task.batch * task.accumulate
        rows, position = rows_of(self.b, task, self._state)
        self.notes.rows, self.notes.row_draws = rows, philox_from(self.b.operators, 0)
        if position is not None:
            self._assign(POSITION, position)
        if task.window is not None:
            starts = self.b.map(Function.IMUL, rows, task.stride) if task.stride > 1 else rows
            starts = starts.like(starts.layout.unsqueeze(1))
            rows = self.b.map(Function.IADD, starts, self.b.iota(task.window))
        tensors = [self.b.gather_rows(self._data(i, tensor), rows) for i, tensor in enumerate(task.data.values())]
        pieces = [slice(start, start + task.batch) for start in range(0, count, task.batch)]
        return [[t.like(t.layout[piece]) for t in tensors] for piece in pieces]

    def _data(self, index: int, tensor: torch.Tensor) -> Value:
        ref = Ref(RefClass.DATA, index)
        if tensor.dtype == torch.bfloat16:
            self.b.narrow.add(ref)
        return self.b.tensor(ref, tensor.shape, value_type(tensor))

    # ---- optimizer ----

    def _optimizer(self, optimizers: Iterable[torch.optim.Optimizer], gradients: Mapping[str, Value]) -> None:
        for optimizer in optimizers:
            self.b.label = "optimizer"
            plan = self.plans.of(optimizer)
            (self._by_rule if isinstance(plan, ByRule) else self._as_written)(optimizer, plan, gradients)

    def _by_rule(self, optimizer: torch.optim.Optimizer, plan: ByRule, gradients: Mapping[str, Value]) -> None:
        names = {id(p): n for n, p in self.task.model.named_parameters()}
        for number, group in enumerate(optimizer.param_groups):
            rule = rule_of(optimizer, group)
            scalars = self._scalars(number, rule, plan.rates[number])
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name in gradients:
                    self._update(name, rule, gradients[name], scalars)

    def _update(self, name: str, rule: Rule, gradient: Value, scalars: Mapping[str, Value]) -> None:
        self.b.label = f"optimizer {name}"
        p = self.inputs[self._index(name)]
        shape = self.state[self._index(name)][0].shape
        slots = {s.name: self._state(f"{s.name}.{name}", torch.zeros(shape)) for s in rule.slots}
        self._updated(name, *rule.update(self.b, p, gradient, slots, scalars))

    def _updated(self, name: str, new: Value, new_slots: Mapping[str, Value]) -> None:
        self._assign(name, new)
        for slot, value in new_slots.items():
            self._assign(f"{slot}.{name}", value)

    def _as_written(
        self, optimizer: torch.optim.Optimizer, played: Mapping[Key, Played], gradients: Mapping[str, Value]
    ) -> None:
        """Lower an optimizer without a rule: the operators of its own step, for each parameter."""
        names = {id(p): n for n, p in self.task.model.named_parameters()}
        steps: dict[int, OptimizerStep] = {}
        held = Slots(optimizer)
        self.notes.played.add(self.task.optimizers.index(optimizer))
        for key, each in played.items():
            parameter = optimizer.param_groups[key[0]]["params"][key[1]]
            name = names[id(parameter)]
            step = steps.setdefault(id(each), OptimizerStep(type(optimizer).__name__, each, key, self._scalar))
            self.notes.forms.update(each.which.index(form) + 1 for form in range(len(each.forms)))
            initial = step.initial(held.of(parameter))
            slots = {slot: self._state(f"{slot}.{name}", tensor) for slot, tensor in initial.items()}
            self.notes.fills |= {f"{slot}.{name}": number for slot, number in each.initial.items()}
            before, p = len(self.b.operators), self.inputs[self._index(name)]
            self._updated(name, *step.update(self.b, self._run, p, gradients[name], slots))
            self.b.labels[before:] = [f"optimizer {name}"] * (len(self.b.operators) - before)

    def _run(self, graph: torch.fx.GraphModule, values: Sequence[Value]) -> list[Value]:
        """The results of a graph over these values."""
        first, _, others = Graph(Captured(graph, (), (), (), ()), self.b).run(values)
        return [first, *others]

    def _scalars(self, group: int, rule: Rule, rate: RateAt) -> dict[str, Value]:
        values = {}
        for name, formula in rule.scalars.items():

            def word(t: int, name: str = name, formula: Any = formula) -> np.float32:
                if t % PART == 0 or t == self.steps > PART:
                    self.listener.progress(f"scalars {name}.{group}", t, self.steps)
                return to_binary32(formula(rate(t), t))

            column = np.fromiter(map(word, range(1, self.steps + 1)), np.float32, self.steps)
            values[name] = self._scalar(f"{name}.{group}", column, lambda t, f=formula: double(f(rate(t), t)))
        return values

    def _scalar(self, name: str, column: np.ndarray, exact: Callable[[int], float] | None = None) -> Value:
        """The scalar with these words, one per step; `exact`: the numbers before rounding."""
        exact = exact or (lambda t: float(column[t - 1]))
        return self.b.tensor(Ref(RefClass.SCALAR, self._column(name, column, exact)), (), torch.float32)

    def _column(self, name: str, column: np.ndarray, exact: Callable[[int], float]) -> int:
        """The number of the scalar's column. A column of equal words is used again if the exact numbers are equal too,
        in some steps."""
        some = {min(1 << k, self.steps) for k in range(25)}
        for i, (known, its) in enumerate(zip(self.scalar_columns, self.notes.scalars, strict=True)):
            if (known.view(np.uint32) == column.view(np.uint32)).all() and all(its(t) == exact(t) for t in some):
                return i
        self.scalar_names.append(name)
        self.scalar_columns.append(column)
        self.notes.scalars.append(exact)
        return len(self.scalar_columns) - 1

    def _average(self, average: float | str, trained: Iterable[str]) -> None:
        """average + (parameter - average) * share, share being 1 in the first step
        (torch.optim.swa_utils.AveragedModel)."""
        equal = average == "equal"
        column = [1.0 if t == 1 else 1 / t if equal else 1.0 - average for t in range(1, self.steps + 1)]
        share = self._scalar("average", np.array(column, np.float32), lambda t: column[t - 1])
        for name in trained:
            self.b.label = f"average {name}"
            index = self._index(name)
            label, tensor = self.state[index]
            kind = torch.bfloat16 if self.inputs[index].ref in self.b.narrow else tensor.dtype
            new, old = self.outputs[index], self._state(f"average.{name}", tensor.view(label.shape).to(kind))
            part = self.b.map(Function.MUL, self.b.map(Function.SUB, new, old), share)
            self._assign(f"average.{name}", self.b.map(Function.ADD, old, part))

    # ---- the program ----

    def _finish(self, loss: Value) -> Lowered:
        refs = [v.ref for v in self.outputs]
        kept = reachable(self.b.operators, [*refs, loss.ref])
        renumbered = {old: new for new, old in enumerate(kept)}
        operators = tuple(renumber(self.b.operators[i], renumbered) for i in kept)
        sources = tuple(
            Source(moved(ref, renumbered), t.numel(), label.integer)
            for ref, (label, t) in zip(refs, self.state, strict=True)
        )
        labels = Labels(
            tuple(self.b.labels[i] for i in kept),
            tuple(label for label, _ in self.state),
            tuple(TensorLabel(n, tuple(t.shape), not t.is_floating_point()) for n, t in self.task.data.items()),
            tuple(self.scalar_names),
        )
        program = Program(
            operators, sources, tuple(self.b.constants), len(self.task.data), len(self.scalar_columns),
            renumbered[loss.ref.index], labels,
        )  # fmt: skip
        data = tuple(as_words(name, tensor) for name, tensor in self.task.data.items())
        table = np.stack(self.scalar_columns, 1) if self.scalar_columns else np.zeros((self.steps, 0), np.float32)
        without = tuple(name for captured in self.captured for name in captured.without_gradient)
        state = tuple(t for _, t in self.state)
        return Lowered(program, state, data, torch.from_numpy(table), without, self.notes.marks(renumbered))

"""Forward pass, loss and gradients of a task as a traceable function of tensors.

In: a task and the number of one of its losses. Out: per call the results of two passes, with the passes of the task's
other losses before and between them, in the order of a step; the parameters without a gradient; ProgramError for state
that a program would not carry from step to step.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any
from unittest.mock import patch
from weakref import proxy

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from vgame.errors import ProgramError, VgameError
from vgame.program.backward_code import BackwardCode, gradient_functions
from vgame.program.caught import Caught, undecided
from vgame.program.constants import ancestors, is_random, written_by
from vgame.program.decompositions import Opened
from vgame.program.hidden_state import (
    DEEP,
    Held,
    _buffers,
    attributes_change,
    is_library_file,
    line_of,
    own_line,
)
from vgame.program.later_step import is_reached, options, refuse_other_options, shown
from vgame.program.origins import in_another_turn, is_in_another_turn, label_gradients, origin, place_of
from vgame.program.printed import Printed
from vgame.program.refusals import batch_changes, name_of, no_gradient, refuse_no_loss, thawed, turns_change
from vgame.program.shared import Change
from vgame.program.shown_types import UNKNOWN, shown_types
from vgame.tasks.opened import attributes
from vgame.tasks.reach import reached
from vgame.tasks.task import Task

SWITCHES = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)


class Step:
    """forward, loss and gradients as a pure function of tensors; then forward and loss again, of other tensors."""

    def __init__(
        self, task: Task, number: int, own: set[int], alone: bool = False, later: Sequence[Change] = ()
    ) -> None:
        """`own`: the parameters that the loss may train, by `id`. `alone`: its second pass follows the first at once.
        `later`: the changes that the second pass finds."""
        self.task, self.number, self.alone, self.printed, self.caught = task, number, alone, Printed(), Caught()
        parameters = dict(task.model.named_parameters())
        self.trains = {name: p.requires_grad for name, p in parameters.items()}  # before the next pass
        self.own = [name for name, p in parameters.items() if id(p) in own]
        self.trained = tuple(name for name in self.own if self.trains[name])
        self.frozen = [name for name in self.own if not self.trains[name]]
        self.turns: dict[str, list[str]] = {}  # names that the passes before the second one have changed, by loss
        self.switched: dict[str, str] = {}  # parameters whose requires_grad is set, with the user's line
        self.changed: list[str] = []  # attributes that the first forward pass changed
        self.left: list[str] = []  # modules whose mode it changed
        self.decided: list[str] = []  # reads of numbers from tensors
        self.functions: list[list[str]] = []  # of autograd, of each pass
        self.without_gradient: tuple[str, ...] = ()
        self.again = False  # whether the second pass needs a backward pass: the first ran the user's code, or changed
        # buffers, as it runs checkpointed parts again
        self.backward: list[str] = []  # attributes that the backward passes changed
        self.unnamed = False  # whether the passes differ, and no change of the first explains it
        self.later = later
        self.inner = ""  # the user's line that stored a gradient before the backward pass of the step

    def __call__(self, *inputs: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        """inputs: parameters, buffers and batch, twice, and once more for the other losses, if any. (loss, gradients,
        new buffers) of both passes; gradients of the second only if the user's code computes some."""
        opened = Opened(self.task.frozen, self.printed, self.caught)
        with self.caught.refused(), _Switches(self), opened as self.opened:
            self.decided = self.opened.decided
            before, after = range(self.number), range(self.number + 1, len(self.task.losses))
            times = min(self.task.accumulate, 2)
            with self.caught.raised.usually(is_reached(self.task, self.later)):
                self._others([n for n in before for _ in range(times)], *inputs[6:])
                first = self._pass(self.number, True, *inputs[:3])
                if inputs[6:] and not self.alone:
                    again = [self.number] * (times - 1) + [n for n in (*after, *before) for _ in range(times)]
                    self._others(again, *inputs[6:])
            with shown(self.later), _failures_refused():
                return first, self._pass(self.number, False, *inputs[3:6])

    def _others(self, numbers: Iterable[int], *inputs: Mapping[str, torch.Tensor]) -> None:
        """Run passes of these losses, in other turns; no result depends on them."""
        graph, lines = get_proxy_mode().tracer.graph, dict(self.printed.lines)
        for number in numbers:
            known = len(graph.nodes)
            self._pass(number, None, *inputs)
            for node in list(graph.nodes)[known:]:
                in_another_turn(node)
        self.printed.lines = lines

    def _pass(
        self,
        number: int,
        first: bool | None,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        batch: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """`first`: None for a pass in another turn."""
        task_loss, shared = self.task.losses[number], number < len(self.task.losses) - 1  # its batch, by later losses
        own = {**dict(self.task.model.named_parameters()), **dict(self.task.model.named_buffers())}
        parameters = {n: self._parameter(p, own[n], n, first is not None) for n, p in parameters.items()}
        self.opened.show((*own.items(), *parameters.items()))
        buffers = {n: _posing(t.clone(), own[n]) for n, t in buffers.items()}
        batch = {n: t.detach() if shared else t.clone() for n, t in batch.items()}
        given, self.inner = dict(batch), ""
        tensors = {**parameters, **buffers}
        swapped = _reparametrize_module(self.task.model, tensors, tie_weights=True)
        groups = options(self.task)
        with _own_tensors(self.task.model), swapped, self.printed.allowed(), _gradients_kept(self.task.accumulate):
            held = Held(self.task.model, task_loss)
            self.caught.raised.read = any(isinstance(v, UNKNOWN) for _, v in reached(held.roots))  # of a pass before
            shown_as = shown_types(task_loss, *(type(m).forward for m in self.task.model.modules()))
            code = BackwardCode()
            with shown_as, self.caught.raised.watching(), code.registered():
                loss = task_loss(self.task.model, batch)
            held.refuse_changes()
            refuse_other_options(self.task, groups)
            if shared and (replaced := [n for n in {**given, **batch} if batch.get(n) is not given.get(n)]):
                raise batch_changes(replaced)
            refuse_no_loss(loss)
            if first is not None:
                self.functions.append([f.name() for f in gradient_functions(loss)])
                if self.task.accumulate > 1:
                    loss = loss / self.task.accumulate
                before, ahead = (held.now(), held.placed(held.changed())) if first or self.again else ({}, [])
                noting = self._noting_code() if code.runs(loss, parameters.values()) else nullcontext()
                with noting, self._rewriting():
                    gradients = self._gradients(loss, parameters) if first or self.again else []
                if self.again:
                    self._note_backward(held.changed_since(before), ahead)
        buffers = {n: tensors[n] for n in buffers}  # reassigned ones are in `tensors` now
        for n, tensor in tensors.items():
            vars(own[n]).update(attributes(tensor))
        switched = [n for n, p in parameters.items() if p.requires_grad != self.trains[n]]
        self.trains = {n: p.requires_grad for n, p in parameters.items()}
        if first is not False:
            changed, left = held.placed(held.changed()), held.left()
            flags = [f"requires_grad of {n}{self.switched.get(n, '')}" for n in sorted(switched)]
            modules = [f"the module {n}" for n in held.replaced()]
            names = [*modules, *(f"the mode of {n}" for n in left), *flags, *changed]
            known = self.turns.setdefault(name_of(self.task, number), [])
            known += [n for n in names if n not in known]
        if first is not None and (on := [n for n in self.frozen if self.trains[n] or parameters[n].grad is not None]):
            raise thawed(on, self.switched)
        if first:
            self.changed, self.left, self.after = [*flags, *changed], left, held.now()
        elif first is False:
            held.refuse_counts(self.after, self.backward)
        return loss, gradients if first is not None else [], list(buffers.values())

    def _note_backward(self, changed: list[str], ahead: list[str]) -> None:
        """`ahead`: names that the forward pass changed; a recomputed checkpoint changes them again."""
        self.backward += changed
        alone = [name for name in changed if name not in ahead]
        if alone and len(self.task.losses) > 1:  # backward passes of other turns are not traced
            raise attributes_change(alone, [], alone)

    @contextmanager
    def _noting_code(self) -> Iterator[None]:
        """Context that notes whether code of the user runs."""
        known: dict[str, bool] = {}

        def note(frame: FrameType, event: str, _: Any) -> None:
            file = frame.f_code.co_filename
            if file == "<string>":  # such as the methods of a dataclass or a named tuple
                name = str(frame.f_globals.get("__name__"))
                file = frame.f_globals.get("__file__") or (__file__ if name.startswith("namedtuple_") else file)
            if file not in known:
                known[file] = is_library_file(file)
            if event == "call" and not known[file]:
                self.again = True
                self.caught.raised.begin(frame)

        before: Any = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            if hasattr(before, "enable"):  # Python 3.11 gives cProfile's object, which is not a function
                before.enable()
            else:
                sys.setprofile(before)
            self.caught.raised.end()

    @contextmanager
    def _rewriting(self) -> Iterator[None]:
        """Context that notes whether buffers change."""
        before, tracer = _buffers(self.task.model), get_proxy_mode().tracer
        known = len(tracer.graph.nodes)
        yield
        traced = [get_proxy_slot(t, tracer, None) for t in before.values()]
        places = {origin(slot.proxy.node) for slot in traced if slot is not None}
        written = [n for node in list(tracer.graph.nodes)[known:] for n in written_by(node)]
        same = all(t is before.get(n) for n, t in _buffers(self.task.model).items())
        self.again |= not same or any(origin(n) in places for n in written)

    def _parameter(self, tensor: torch.Tensor, own: nn.Parameter, name: str, mine: bool) -> torch.Tensor:
        """A leaf in place of the model's own parameter. `mine`: for a pass of the captured loss."""
        leaf = _posing(tensor.detach().requires_grad_(self.trains[name]), own)
        if mine and leaf.requires_grad and name in self.trained:
            leaf.register_post_accumulate_grad_hook(partial(_note_line, proxy(self)))
        return leaf

    def _gradients(self, loss: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The gradients of `loss.backward()`, with those of backward passes inside it. Sets `trained` to the parameters
        with a gradient."""
        if loss.dim() or loss.dtype != torch.float32:
            raise ProgramError(
                f"the loss has shape {tuple(loss.shape)} and type {loss.dtype}; one float32 is expected: write "
                f"{'.mean()' if loss.dim() else '.float()'}"
            )
        fx_traceback.current_meta.pop("custom", None)
        if not self.trained:  # an evaluation
            return []
        wanted = {n: parameters[n] for n in self.trained}
        if self.inner and (self.task.accumulate > 1 or any(p.grad is not None for p in wanted.values())):
            raise ProgramError(
                f"the loss calls backward{self.inner}; remove backward and the optimizer's step: vgame adds them "
                "(gradients inside a loss: torch.autograd.grad)"
            )
        if not loss.requires_grad:
            raise no_gradient(list(wanted))
        label_gradients(loss)
        with _without_random_numbers():
            torch.autograd.backward(loss)
        self.trained = tuple(n for n, p in wanted.items() if p.grad is not None)
        self.without_gradient = tuple(n for n, p in wanted.items() if p.grad is None)
        if not self.trained:
            raise turns_change(self.turns, self.task, self.number) if _reads_others(loss) else no_gradient([*wanted])
        return [wanted[n].grad for n in self.trained]


def _note_line(step: Step, _: torch.Tensor) -> None:
    """Hook of a leaf. It holds the step by a weak proxy: the garbage collector does not see references in hooks of
    tensors."""
    step.inner = own_line(traceback.extract_stack(limit=DEEP)) or " in the forward pass"


def _reads_others(loss: torch.Tensor) -> bool:
    """Whether a loss is computed from a tensor of another turn that is not a constant."""
    node = get_proxy_slot(loss, get_proxy_mode().tracer).proxy.node
    found = [n for n in ancestors([node]) if is_in_another_turn(n)]
    return any(n.op == "placeholder" or is_random(n) for n in ancestors(found))


class _Switches(TorchFunctionMode):
    """Context that notes the user's lines that set requires_grad of a parameter."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in SWITCHES and (name := self.step.opened.name_of(args[0])):
            self.step.switched[name] = own_line(traceback.extract_stack(limit=DEEP))
        return function(*args, **(kwargs or {}))


@contextmanager
def _gradients_kept(batches: int) -> Iterator[None]:
    """Context that refuses to clear gradients in the loss where several batches add them up in a step."""

    def refused(*_: Any, **__: Any) -> None:
        raise ProgramError(
            f"the loss clears gradients{own_line(traceback.extract_stack(limit=DEEP))}, but a step adds up those of "
            f"{batches} batches; remove zero_grad: vgame clears them before each step"
        )

    with ExitStack() as stack:
        for kind in (nn.Module, torch.optim.Optimizer) if batches > 1 else ():
            stack.enter_context(patch.object(kind, "zero_grad", refused))
        yield


@contextmanager
def _failures_refused() -> Iterator[None]:
    """Context of the second pass: its failures become a ProgramError, because optimizer and schedulers have stand-ins
    as values."""
    try:
        yield
    except (VgameError, *undecided()):
        raise
    except Exception as error:
        looks = isinstance(error, LookupError)
        what = "looks up a value that it does not find at a later step" if looks else "fails as at a later step"
        raise ProgramError(
            f"the loss {what} ({type(error).__name__}: {' '.join(str(error).split())}){line_of(error)}; it may read "
            "neither the optimizer nor a scheduler, nor what these change, as it is the same in all steps"
        ) from None


def _posing(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """The tensor with the attributes of the model's own tensor, and with its class for isinstance."""
    tensor.__dict__.update(vars(own))
    if type(own) is nn.Parameter:
        tensor._is_param = True
    elif type(own) is not torch.Tensor and type(tensor) is FakeTensor:
        tensor.__class__ = type("Posing", (FakeTensor,), {"__class__": property(lambda _: type(own))})
    return tensor


@contextmanager
def _own_tensors(model: nn.Module) -> Iterator[None]:
    """Context that restores every module's parameters and buffers for the next pass (torch loses those of a module with
    two names)."""
    before = [(own, dict(own)) for m in model.modules() for own in (m._parameters, m._buffers)]
    try:
        yield
    finally:
        for own, tensors in before:
            if any(own.get(name) is not tensor for name, tensor in tensors.items()):
                own.clear()
                own.update(tensors)


@contextmanager
def _without_random_numbers() -> Iterator[None]:
    """Refuse random numbers in the backward pass: a recomputed checkpointed part would get different ones."""
    nodes = get_proxy_mode().tracer.graph.nodes
    known = len(nodes)
    yield
    for node in list(nodes)[known:]:
        if is_random(node):
            raise ProgramError(
                f"the backward pass draws random numbers ({node.target} in {place_of(node)}) that differ from those "
                "of the forward pass; keep dropout and other random operators out of torch.utils.checkpoint"
            )

"""Functions decomposed before autograd: each becomes ordinary operators, whose gradients follow automatically.

Active while a training step is traced. The replaced functions have no gradient formula in ATen's operators, or one that
cannot be traced.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import wraps
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from vgame.errors import ProgramError
from vgame.program.asked import asks_class
from vgame.program.caught import Caught, refuse_tried, torchs_error
from vgame.program.composed import (
    CLAMPS,
    cdist,
    combinations,
    corrcoef,
    cov,
    gaussian_nll_loss,
    grid_sample,
    grouped_mm,
    here,
    normal,
    rrelu,
)
from vgame.program.constants import Known
from vgame.program.fails import graph_of_trace, has_unknown_shape, refuse_failing
from vgame.program.hidden_state import TORCHS, calls_loss, is_library_file, line_above
from vgame.program.origins import at_line
from vgame.program.printed import Printed
from vgame.program.refusals import decides_by_values, refuse_torchvisions_chance
from vgame.program.shown_types import UNKNOWN, shown_number
from vgame.program.traps import refuse_changing


def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """The counts, or sums of weights, of the numbers below `minlength`; others are refused like those of one_hot."""
    if minlength < 1:
        raise ProgramError(
            f"bincount without minlength ({here()[2:]}) has as many elements as its greatest number, so "
            "the shape depends on the data; give the number of classes: torch.bincount(x, minlength=n)"
        )
    with _marked(ONE_HOT):
        places = torch.nn.functional.one_hot(x.long(), minlength)
    return places.sum(0) if weights is None else (places * weights.detach().unsqueeze(1)).sum(0)


def _refusing(text: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise ProgramError(text.format(here()[2:]))

    return refused


CTC = _refusing(
    "ctc_loss ({}) is not supported: torch computes it in one operator, of which a program has no rule; write its sums "
    "over alignments with torch.logaddexp in a loop over time"
)
PACKED = _refusing(
    "pack_padded_sequence ({}) makes shapes of the lengths, which cannot be captured; give the padded batch to the "
    "layer and take each sample's last output at its length: y[torch.arange(len(y)), lengths - 1] (the backward "
    "direction of a bidirectional layer reads the padding: flip each sample by torch.gather for it)"
)
MULTINOMIAL = _refusing(
    "torch.multinomial ({}), which Categorical.sample calls, is not supported; draw one class of each row of "
    "probabilities p by Gumbel's maximum: (p.log() - torch.empty_like(p).exponential_().log()).argmax(-1)"
)
DRAWS = _refusing(
    "a number of a gamma, beta, Dirichlet, Poisson or binomial distribution ({}) cannot be drawn; draw it from uniform "
    "or normal numbers, or before the training, as a tensor of the data"
)
SPARSE = _refusing("a sparse tensor ({}) is not supported: a program has dense tensors only; write the dense tensor")


OPENED: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.grid_sample: grid_sample,
    torch.cdist: cdist,
    torch.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.cov: cov,
    torch.Tensor.corrcoef: corrcoef,
    torch.ctc_loss: CTC,
    torch.nn.functional.ctc_loss: CTC,
    torch._VF._pack_padded_sequence: PACKED,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    torch._grouped_mm: grouped_mm,
    torch.nn.functional.grouped_mm: grouped_mm,
    torch.normal: normal,
    torch.nn.functional.rrelu: rrelu,
    torch.rrelu: rrelu,
    **CLAMPS,
    torch.combinations: combinations,
    torch.multinomial: MULTINOMIAL,
    torch.Tensor.multinomial: MULTINOMIAL,
    torch._sample_dirichlet: DRAWS,
    torch._standard_gamma: DRAWS,
    torch.poisson: DRAWS,
    torch.binomial: DRAWS,
    torch.Tensor.to_sparse: SPARSE,
    torch.Tensor.to_sparse_coo: SPARSE,
    torch.Tensor.to_sparse_csr: SPARSE,
    torch.Tensor.to_sparse_csc: SPARSE,
    torch.sparse_coo_tensor: SPARSE,
    torch.sparse_csr_tensor: SPARSE,
}


T = torch.Tensor
OVERRIDES = torch.overrides.__file__
MethodWrapper = type(T.shape.__get__)  # a read of an attribute
GRADIENT, TRAINS = T.grad.__get__, T.requires_grad.__get__  # reads of attributes
#: Functions that return a Python number, or a shape that depends on values.
DECIDING = frozenset(
    {
        T.__bool__,
        T.__int__,
        T.__float__,
        T.__index__,
        T.item,
        T.tolist,
        T.equal,
        torch.equal,
        T.allclose,
        torch.allclose,
        T.nonzero,
        torch.nonzero,
        torch.unique,
        T.unique,
        torch.masked_select,
        T.masked_select,
    }
)
TRUTH = (
    "a truth value that is read may be printed, or decide a check of finite numbers; keep the tensor: remove .item(), "
    ".tolist() or bool()"
)
#: Functions whose result has other dimensions or strides where a size is 1.
BY_SHAPE = (T.squeeze, torch.squeeze, T.squeeze_, T.is_contiguous, T.stride)
SHAPES = "the shape of this tensor depends on values: keep a mask beside the tensor in place of a selection"
TEXTS = (T.__format__, T.__repr__)
COPIES = (T.numpy, T.__array__, T.data_ptr, T.untyped_storage, T.__dlpack__)  # they fail for a traced tensor
CONVERTING = (T.__float__, T.__int__)


class Opened(TorchFunctionMode):
    """Context that computes the functions above by their compositions, and lets the model branch on constants."""

    def __init__(
        self, frozen: Iterable[str] = (), printed: Printed | None = None, caught: Caught | None = None
    ) -> None:
        """`frozen`: patterns of parameters without a gradient in some steps."""
        super().__init__()
        self.printed, self.caught = printed or Printed(), caught or Caught()
        self.known, self.frozen = Known(), tuple(frozen)
        self._parameters: dict[int, tuple[str, torch.Tensor]] = {}  # by `id`; kept alive, so the ids stay unique
        self.decided: list[str] = []  # reads of numbers or shapes from unknown values, with their places
        self.backward, self.entered = ExitStack(), 0

    def show(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """The model's parameters and buffers from here on, with their names."""
        self._parameters = {id(p): (name, p) for name, p in parameters}

    def name_of(self, tensor: Any) -> str | None:
        """The name of a parameter or buffer of the model."""
        name, _ = self._parameters.get(id(tensor), (None, None))
        return name

    def __enter__(self) -> Opened:
        if not self.entered:
            kind = torch.autograd.function.BackwardCFunction
            self.backward.enter_context(patch.object(kind, "apply", self._within(kind.apply)))
        self.entered += 1
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        self.entered -= 1
        if not self.entered:
            self.backward.close()
        super().__exit__(*error)

    def _within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The user's code of a backward pass, wrapped to run in this context, since torch calls it outside."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with at_line(line_above(sys._getframe(1))):
            given = _without_generator(kwargs or {})
            graph = graph_of_trace()
            known = 0 if graph is None else len(graph.nodes)
            try:
                found = self._call(function, args, given)
                refuse_failing(function, known, graph, sys._getframe(1))
            except Exception as error:
                if any(isinstance(x, UNKNOWN) for x in tree_leaves((args, given))):
                    self.caught.errors.append(error)  # an error of the tracer's number
                if not isinstance(error, RuntimeError | ValueError):
                    raise
                raise torchs_error(error, function, (args, given)) from None
            return self._born(found) if function in DECIDING or isinstance(found, torch.SymBool) else found

    def _born(self, found: Any) -> Any:
        """The numbers that are read, as objects of Python's classes; ProgramError for a truth value that may decide a
        branch."""
        frame = sys._getframe(2)
        truths = any(isinstance(leaf, torch.SymBool) for leaf in tree_leaves(found))
        if truths and not asks_class(frame) and self.printed.is_read(frame):
            raise decides_by_values(f"a truth value{line_above(frame)}", TRUTH)
        return tree_map(shown_number, found)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        refuse_changing((args, kwargs))
        refuse_tried(function, args, kwargs)
        if function is torch._assert and isinstance(args[0], T):
            args = (bool(self._call(T.__bool__, args[:1], {})), *args[1:])
        if function is torch.nn.functional.one_hot:
            with _marked(ONE_HOT):
                return function(*args, **kwargs)
        if any(type(a) is T and "sparse" in str(a.layout) for a in args):
            return self._of_sparse(function, args, kwargs)
        if function in OPENED:
            return OPENED[function](*args, **kwargs)
        if function is T.register_hook and len(args) > 1:
            args = (args[0], self._within(args[1]))
        if function in BY_SHAPE and has_unknown_shape(args[0]) and self.printed.is_read(sys._getframe(2)):
            raise decides_by_values(f"{function.__name__}{here()}", SHAPES)
        if function == T.data.__set__:
            what = f"{args[0].dtype} {tuple(args[0].shape)}"
            raise ProgramError(f"the model sets .data of a tensor, {what}; make it a buffer, or compute a new tensor")
        if function in (GRADIENT, TRAINS):
            self._refuse_read(function, args[0])
        if function in (T.lt, torch.lt) and len(args) == 2 and _is_uniform(args[0]) and _is_limit(args[1]):
            args, function = (args[0].shape, args[1] == 1), torch.full  # a layer never or always dropped: a constant
        if function in DECIDING or function in TEXTS:
            if (real := self.known.replaced((args, kwargs))) is not None:
                with unset_fake_temporarily(), disable_proxy_modes_tracing():
                    return function(*real[0], **real[1])
            if function in TEXTS:
                return self._text(sys._getframe(2), function, *args)
            number = self.printed.number(sys._getframe(1), function is T.__int__) if function in CONVERTING else None
            if number is None:
                number = self.printed.checks.answer(function, sys._getframe(1), (args, kwargs))
            if number is not None:
                return number
            refuse_torchvisions_chance()
            self._decides(f"{function.__name__}{here()}")
        if function is T.numpy and (array := self.printed.checks.array(args[0], sys._getframe(1))) is not None:
            return array
        if function in (torch.bincount, T.bincount):
            real = self.known.replaced((args, kwargs))
            if real is None:
                return bincount(*args, **kwargs)
            with unset_fake_temporarily(), disable_proxy_modes_tracing():
                return function(*real[0], **real[1])
        if function in (torch.repeat_interleave, T.repeat_interleave) and not _repeats_evenly(args, kwargs):
            return self._repeated(function, *args, **kwargs)
        if function is T.__getitem__ and _has_mask(args[1]):
            if (real := self.known.replaced(args[1])) is not None:
                args = (args[0], _without_masks(real))
            else:
                self._decides(f"a selection by a mask{here()}")
        with self.caught.noting() if function in DECIDING or function in COPIES else nullcontext():
            return function(*args, **kwargs)

    def _decides(self, read: str) -> None:
        """Record a read of unknown numbers, which Python's functions reject."""
        self.decided.append(read)
        self.caught.raised.reads()

    def _text(self, frame: FrameType | None, function: Any, tensor: T, spec: str = "") -> str:
        """The text of an unknown tensor that is only printed; torch's usual text if torch itself reads it, as for its
        errors."""
        while frame is not None and frame.f_code.co_filename in (__file__, torch._tensor.__file__, OVERRIDES):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(TORCHS):
            return function(tensor, spec) if spec else function(tensor)
        while frame is not None and not calls_loss(frame):
            if frame.f_code.co_filename == logging.__file__ and self.printed.number(frame.f_back) is not None:
                return "???"  # in a handler of logging, of any library
            frame = frame.f_back
        return self.printed.text(spec)

    def _repeated(self, function: Any, input: T, repeats: T | None = None, dim: int | None = None, **other: Any) -> T:
        """repeat_interleave by a tensor, whose numbers determine the shape: they must be constant."""
        real = self.known.replaced(input if repeats is None else repeats)
        if real is None:
            self._decides(f"a number of repeats{here()}")
            return function(*((input,) if repeats is None else (input, repeats, dim)), **other)
        x = input.flatten() if dim is None else input
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            places = torch.repeat_interleave(real if repeats is None else real.expand(x.shape[dim or 0]))
        return places if repeats is None else x.index_select(dim or 0, places)

    def _of_sparse(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The dense tensor of a sparse constant, or an attribute that both have; ProgramError for all else."""
        if not isinstance(function, MethodWrapper) and function not in (T.to_dense, T.size, T.dim, T.is_coalesced):
            raise ProgramError(
                f"the loss or the model computes with a sparse tensor ({function.__name__}{here()}), but a program "
                "has dense tensors only; write adj.to_dense() where it is made"
            )
        with unset_fake_temporarily(), disable_proxy_modes_tracing():
            return function(*args, **kwargs)

    def _refuse_read(self, function: Any, tensor: torch.Tensor) -> None:
        """Raise ProgramError if the user's code reads a gradient or flag that differs between the steps of a loop, but
        not between those of a job."""
        if is_library_file(sys._getframe(3).f_code.co_filename):
            return
        name, where = self.name_of(tensor), here()
        if function == GRADIENT and name is not None and tensor.grad is None:
            raise ProgramError(
                f"the loss reads the gradient of {name}{where}, which is that of the step before until zero_grad() is "
                "called; remove it (gradients inside a loss: torch.autograd.grad)"
            )
        rests = name is None or any(fnmatchcase(name, pattern) for pattern in self.frozen)
        if function == TRAINS and self.frozen and rests and tensor.requires_grad:
            raise ProgramError(
                f"the loss reads requires_grad of {name or 'a result'}{where}, which stays True where `frozen` stops "
                "the gradient; choose the same parameters in all steps, by their names"
            )


def _without_generator(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without torch's default generator; ProgramError for any other generator."""
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator) and generator is not torch._C.default_generator:
        line = here()
        raise ProgramError(
            f"the model or its loss draws from a torch.Generator of its own{line}; a program draws from the "
            "job's seed: remove generator="
        )
    return {name: value for name, value in kwargs.items() if name != "generator"}


#: Mark of the nodes of a one-hot tensor: torch requires its numbers to be in range.
ONE_HOT = "one_hot"


@contextmanager
def _marked(name: str) -> Iterator[None]:
    """Context in which traced nodes carry this mark beside their module."""
    before = fx_traceback.current_meta.get("custom", {})
    fx_traceback.current_meta["custom"] = {**before, name: True}
    try:
        yield
    finally:
        fx_traceback.current_meta["custom"] = before


def _repeats_evenly(args: Any, kwargs: Any) -> bool:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    return repeats is not None and not isinstance(repeats, T)


def _is_limit(bound: Any) -> bool:
    return isinstance(bound, int | float) and bound in (0, 1)


def _is_uniform(tensor: Any) -> bool:
    """Whether a node is an unused (so unwritten) tensor of torch.rand."""
    mode = get_proxy_mode()
    proxy = None if mode is None or not isinstance(tensor, T) else get_proxy_slot(tensor, mode.tracer, None)
    node = None if proxy is None else proxy.proxy.node
    return node is not None and getattr(node.target, "overloadpacket", None) is torch.ops.aten.rand and not node.users


def _has_mask(index: Any) -> bool:
    return any(isinstance(i, T) and i.dtype == torch.bool for i in (index if isinstance(index, tuple) else (index,)))


def _without_masks(index: Any) -> tuple:
    """The index with the positions of each mask's true elements in its place."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        parts = index if isinstance(index, tuple) else (index,)
        masks = [i.nonzero(as_tuple=True) if isinstance(i, T) and i.dtype == torch.bool else (i,) for i in parts]
    return tuple(part for parts in masks for part in parts)

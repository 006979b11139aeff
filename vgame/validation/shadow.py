"""Run torch code in float32 and binary64 at once: each tensor has a shadow, and every ATen operator is computed on
both.

In: code over ordinary tensors. Out: the same code's results, and their shadows. A shadow belongs to a tensor's memory,
so views, writes in place, `.data` and saved tensors need no special rule. Types in the code (float32, bfloat16) become
the shadow's type, so casts between them are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from vgame.validation.approximate import OTHERWISE
from vgame.validation.budget import Budget
from vgame.validation.draws import Drawn

T = torch.Tensor
aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SWEEP = 4_096  # operators between two searches for freed memory


class CannotCheck(Exception):
    """The code has an operation that shadows do not support; the text names it."""


class Shadows(TorchDispatchMode):
    """Context in which operators are computed twice. `dtype`: type of the shadows; `draws`: results of random
    operators. `steps`: an optimizer runs: Python reads the shadows' numbers, but counters (single numbers created
    without a tensor, and numbers computed only from them) have no shadow, since they are float32 in a program too."""

    def __init__(self, budget: Budget, dtype: torch.dtype = torch.float64, steps: bool = False) -> None:
        super().__init__()
        self.budget, self.dtype, self.steps = budget, dtype, steps
        self.draws: Drawn | None = None
        self.narrow = False  # whether a result was bfloat16
        self.counters: dict[int, T] = {}
        self._shadows: dict[int, tuple[StorageWeakRef, torch.dtype, T]] = {}
        #: Shadows of integers that an operator saves for its gradient and that have another shape in binary64 (bags of
        #: embeddings).
        self._whole: dict[int, tuple[StorageWeakRef, T]] = {}
        self._count = 0

    # ---- tensors and their shadows ----

    def of(self, tensor: T) -> T:
        """The shadow of a tensor; its own numbers if no operator computed it."""
        return self._shadow(tensor.detach())

    def put(self, tensor: T, shadow: T) -> None:
        """Set a tensor's shadow, and the tensor to its rounded value."""
        with torch.no_grad():
            tensor.copy_(shadow)
            self._shadow(tensor.detach()).copy_(shadow)

    def _shadow(self, tensor: T) -> T:
        if type(tensor) not in (T, torch.nn.Parameter):
            raise CannotCheck(f"a tensor of type {type(tensor).__name__}")
        whole = self._whole.get(tensor.untyped_storage()._cdata)
        if whole is not None and not whole[0].expired():
            return whole[1]
        flat = self._flat(tensor)
        return torch.as_strided(flat, tensor.shape, tensor.stride(), tensor.storage_offset())

    def _flat(self, tensor: T) -> T:
        """The shadow of the tensor's memory; for a counter, its own number."""
        storage = tensor.untyped_storage()
        found = None if storage._cdata in self.counters else self._shadows.get(storage._cdata)
        size = storage.nbytes() // tensor.element_size()
        if found is not None and not found[0].expired():
            if found[1] != tensor.dtype and {found[1], tensor.dtype} & {*FLOATS}:
                raise CannotCheck(f"memory of {found[1]} that is read as {tensor.dtype}")
            if found[2].numel() >= size:
                return found[2]
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (size,), (1,))
        return self._keep(tensor, whole.to(self._type(tensor.dtype), copy=True))

    def _keep(self, tensor: T, flat: T) -> T:
        storage = tensor.untyped_storage()
        self._shadows[storage._cdata] = StorageWeakRef(storage), tensor.dtype, flat
        return flat

    def _known(self, tensor: T) -> bool:
        found = self._shadows.get(tensor.untyped_storage()._cdata)
        return found is not None and not found[0].expired()

    def _type(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype if dtype in FLOATS else dtype

    # ---- operators ----

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look()
        leaves, form = tree_flatten((args, kwargs or {}))
        if self.steps and (func is aten.lift_fresh.default or self._counts(leaves)):
            return self._counted(func, args, kwargs or {})
        if self.steps and _writes(func):
            self._discount(func, args, kwargs or {})
        shadows = [self._argument(leaf) for leaf in leaves]
        result = func(*args, **(kwargs or {}))
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, T)]
        self.narrow = self.narrow or any(t.dtype == torch.bfloat16 for t in outputs)
        if func is aten._local_scalar_dense.default and self.steps:
            return shadows[0].item()
        if not outputs and not func._schema.is_mutable:
            return result
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args):
            return self._draw(func, *tree_unflatten(shadows, form), result)
        if all(self._known(t) for t in outputs) and not _writes(func):
            return result  # views
        self._follow(func, *tree_unflatten(shadows, form), outputs)
        return result

    def _counts(self, leaves: Sequence[Any]) -> bool:
        """Whether an operator reads only counters, or creates a single number without a tensor."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, T)]
        single = not any(isinstance(leaf, int) and leaf > 1 for leaf in leaves)
        return all(t.untyped_storage()._cdata in self.counters for t in tensors) and bool(tensors or single)

    def _counted(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, T) and tensor.dim() == 0:
                self.count(tensor)
        return result

    def _discount(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A tensor is no longer a counter when an operator writes to it a value computed from another tensor."""
        named = [*zip(func._schema.arguments, args, strict=False)]
        named += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        for argument, value in named:
            if isinstance(value, T) and argument.alias_info and argument.alias_info.is_write:
                self.counters.pop(value.untyped_storage()._cdata, None)

    def count(self, tensor: T) -> None:
        """Mark the tensor as a counter."""
        self.counters[tensor.untyped_storage()._cdata] = tensor

    def _look(self) -> None:
        self._count += 1
        self.budget.check()
        if self._count % SWEEP == 0:
            self._shadows = {k: v for k, v in self._shadows.items() if not v[0].expired()}

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, T):
            return self._shadow(leaf)
        return self._type(leaf) if isinstance(leaf, torch.dtype) else leaf

    def _follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: list[T]) -> None:
        """Compute the operator on the shadows; its results become the shadows of the new tensors."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            result = OTHERWISE.get(func, func)(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            raise CannotCheck(f"{func} in binary64: {' '.join(str(error).split())[:200]}") from None
        finally:
            torch.set_default_dtype(before)
        shadows = [t for t in tree_flatten(result)[0] if isinstance(t, T)]
        for output, shadow in zip(outputs, shadows, strict=True):
            if not self._known(output):
                self._add(func, output, shadow)

    def _add(self, func: Any, output: T, shadow: T) -> None:
        if output.shape != shadow.shape and not output.is_floating_point():
            self._whole[output.untyped_storage()._cdata] = StorageWeakRef(output.untyped_storage()), shadow
            return
        if output.shape != shadow.shape:
            raise CannotCheck(f"{func}, whose result has another shape in binary64")
        size = output.untyped_storage().nbytes() // output.element_size()
        alike = output.stride() == shadow.stride() and shadow.dtype == self._type(output.dtype)
        whole = shadow.untyped_storage().nbytes() == size * shadow.element_size()
        if alike and whole and output.storage_offset() == shadow.storage_offset() == 0:
            self._keep(output, torch.as_strided(shadow, (size,), (1,), 0))
            return
        flat = self._keep(output, torch.zeros(size, dtype=self._type(output.dtype)))
        once = tuple(slice(0, 1) if step == 0 else slice(None) for step in output.stride())
        torch.as_strided(flat, output.shape, output.stride(), output.storage_offset())[once].copy_(shadow[once])

    # ---- random numbers ----

    def _draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Replace torch's random numbers by the program's."""
        if self.draws is None or not isinstance(result, T):
            raise CannotCheck(f"random numbers of {func}, which the program does not have")
        drawn = self.draws.next(func, args, kwargs, result)
        if drawn is None:
            raise CannotCheck(f"random numbers of {func}, which the program draws differently or not at all")
        result.copy_(drawn)
        self._flat(result)
        self._shadow(result).copy_(drawn)
        return result


def _draws_nothing(func: Any, args: Sequence[Any]) -> bool:
    """Whether this is a randomized ReLU that is not training."""
    return func._overloadpacket in (aten.rrelu_with_noise, aten.rrelu_with_noise_) and not any(a is True for a in args)


def _writes(func: Any) -> bool:
    """Whether an operator changes an argument (the schema of batch norm does not mark its statistics)."""
    return func._schema.is_mutable or func._overloadpacket in SILENT


SILENT = (aten.native_batch_norm, aten.cudnn_batch_norm, aten._batch_norm_with_update)

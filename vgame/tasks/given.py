"""Batches in the form of the user's tensors, with float64 and `requires_grad`, which a job's data do not have.

In: the data as the user gave them. Out: data of float32 without gradients, and losses that get batches as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vgame.errors import ProgramError

T = torch.Tensor
Loss = Callable[[Any, Any], T]


def as_kept(tensor: T) -> T:
    """The tensor as data of a job. ROUNDING: a float64 as `.float()` rounds it, which a loss must call first."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def as_given(loss: Loss, doubles: Mapping[str, str], differentiated: set[str]) -> Loss:
    """The loss, called with float64 for `doubles` (name -> place in a batch) and with `requires_grad` for
    `differentiated`."""

    def giving(model: Any, batch: dict[str, T]) -> T:
        made = {name: tensor.double() if name in doubles else tensor for name, tensor in batch.items()}
        for name in differentiated:
            made[name].requires_grad_()
        before = {name: (tensor, tensor._version) for name, tensor in made.items()}
        try:
            found = loss(model, made)
        except RuntimeError as error:  # of torch: operands of float32 and float64
            if doubles and "double" in str(error).lower():
                raise ProgramError(refused(doubles)) from None
            raise
        for name, (tensor, version) in before.items():  # vgame/program/passes.py looks for changes in the batch
            if name not in made:
                del batch[name]
            elif made[name] is not tensor or (name in doubles and tensor._version != version):
                batch[name] = made[name]
        batch.update({name: tensor for name, tensor in made.items() if name not in before})
        if isinstance(found, T) and found.dtype == torch.float64:
            raise ProgramError(refused(doubles))
        return found

    return giving


def refused(doubles: Mapping[str, str]) -> str:
    """The error message for a loss that computes in float64."""
    places = list(doubles.values())
    are, them = ("is", "it") if len(places) == 1 else ("are", "them")
    return (
        f"{' and '.join(places)} {are} torch.float64, and the loss computes with {them}; vgame trains in float32 and "
        f"bfloat16: convert {them} with .float() first"
    )

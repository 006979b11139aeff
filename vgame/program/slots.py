"""The slots of a parameter: the tensors that an optimizer keeps for it.

In: an optimizer. Out: by name the tensors of `state[parameter]`, also those in dictionaries and lists there, and those
in the state of optimizers that it holds (a wrapper such as Lookahead).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vgame.errors import ProgramError
from vgame.program.stand_ins import optimizers_held


class Slots:
    """The slots of an optimizer's parameters, at any time."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.name = type(optimizer).__name__
        self.owners = [optimizer, *optimizers_held(optimizer)]

    def of(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        """The slots of a parameter, by name; of several counters with one name, only one. ProgramError if two slots
        have the same name."""
        found: dict[str, torch.Tensor] = {}
        for name, tensor in (pair for state in self.states(p) for pair in tensors_in("", state)):
            if found.setdefault(name, tensor) is not tensor and not is_counter(name, tensor, p):
                also = ", one of them in the state of an optimizer that it holds" if len(self.owners) > 1 else ""
                raise ProgramError(
                    f"the optimizer {self.name} keeps two tensors for a parameter as {name!r}{also}, but the state of "
                    "a program names each; rename one"
                )
        return found

    def states(self, p: torch.Tensor) -> list[dict[Any, Any]]:
        """The dictionaries `state[p]` of the optimizer and of those that it holds."""
        try:
            states = {id(s): s for owner in self.owners if isinstance(s := owner.state.get(p), dict)}
        except (RuntimeError, NotImplementedError):  # a key with the hash of the parameter is compared with it
            raise ProgramError(
                f"the optimizer {self.name} keeps its state by the id of a parameter; keep it in self.state[p]"
            ) from None
        return list(states.values())


def is_counter(name: str, tensor: torch.Tensor, p: torch.Tensor) -> bool:
    """Whether a tensor in the state of a parameter is a single number, whose value is known at each step."""
    return name == "step" or (tensor.dim() == 0 and p.dim() > 0)


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of a state, and of the dictionaries and lists in it. Dots in a name are replaced, because a dot
    ends the slot's name in the state of a program."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            text = str(key).replace(".", "_")
            yield from tensors_in(f"{name}[{text}]" if name else text, part)

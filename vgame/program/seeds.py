"""Refuse a model or a loss that sets torch's random generator while it is traced, and name the line. A program draws
from the job's seed, so the setting would have no effect."""

from __future__ import annotations

import contextlib
import random
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.utils.checkpoint

from vgame.errors import ProgramError
from vgame.program.hidden_state import DEEP, own_line


class _Unset:
    """torch's generator without its setters; only torch.utils.checkpoint may restore a state."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)

    def manual_seed(self, seed: int) -> NoReturn:
        _refuse()

    def seed(self) -> NoReturn:
        _refuse()

    def set_state(self, state: torch.Tensor) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in (torch.random.__file__, contextlib.__file__):
            frame = frame.f_back
        if frame.f_code.co_filename != torch.utils.checkpoint.__file__:
            _refuse()
        self.generator.set_state(state)


def _refuse() -> NoReturn:
    line = own_line(f for f in traceback.extract_stack(limit=DEEP) if f.filename not in (__file__, contextlib.__file__))
    raise ProgramError(
        f"the model or its loss sets torch's random numbers{line}; a program draws them from the job's seed: remove "
        "torch.manual_seed, torch.random.fork_rng and similar calls"
    )


def _refuse_drawing(_: int) -> NoReturn:
    raise ProgramError(
        "the model or its loss draws numbers from the operating system (random.SystemRandom, secrets)"
        f"{own_line(traceback.extract_stack(limit=DEEP))}, which a program does not record; draw them with torch"
    )


@contextlib.contextmanager
def unset() -> Iterator[None]:
    """Context in which setting torch's random generator, and drawing from the operating system's, is refused."""
    generator, guard = torch.random.default_generator, _Unset(torch.random.default_generator)
    torch.random.default_generator = torch.default_generator = guard
    try:
        with patch.object(random, "_urandom", _refuse_drawing):
            yield
    finally:
        torch.random.default_generator = torch.default_generator = generator

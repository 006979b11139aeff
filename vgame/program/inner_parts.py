"""Parts of objects in addition to those of `vgame.tasks.reach`. Their changes by a forward pass are not compared, but a
loss may reach through them a value that an optimizer changes.

In: a value. Out: attributes of tensors, parts of large containers and of arrays of objects, objects behind weak
references, and what objects of Python and of libraries hold (a view of a dictionary, a logger).
"""

from __future__ import annotations

import gc
import weakref
from types import BuiltinMethodType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vgame.tasks.fingerprint import CONTAINERS, MOST_PARTS
from vgame.tasks.opened import held_by
from vgame.tasks.reach import behind, is_own_class

PLAIN = (int, float, complex, str, bytes, type(None))
#: Types that hold all of a module, or whose parts are read elsewhere.
CLOSED = (type, ModuleType, FunctionType, BuiltinMethodType, nn.Module, Optimizer, LRScheduler)
CLOSED += (GeneratorType, CoroutineType, FrameType, TracebackType, BaseException)


def inner_parts(value: Any) -> list[Any]:
    if type(value) in weakref.ProxyTypes:
        return behind(value)
    if isinstance(value, PLAIN):
        return []
    if isinstance(value, torch.Tensor):
        return list(held_by(value).values())
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else []
    if isinstance(value, (*CONTAINERS, dict)):
        inner = dict.values(value) if isinstance(value, dict) else value
        return [part for part in inner if not isinstance(part, PLAIN)] if len(inner) > MOST_PARTS else []
    kind = type(value)
    if issubclass(kind, CLOSED) or kind.__module__.startswith("vgame.") or is_own_class(kind):
        return []
    inner = [part for part in gc.get_referents(value) if type(part) not in weakref.ProxyTypes or behind(part)]
    return [part for part in inner if not isinstance(part, (*PLAIN, type, ModuleType))]

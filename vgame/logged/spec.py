"""The log in an order of mode `logged`: the fields of a bundle's `log`, which is None in the other modes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from vgame.arithmetic.functions import ELEMENTARY
from vgame.program.operators import Map
from vgame.program.program import Program

#: Window with certain replication, in bounds e (sums.py): each side's error is at most one.
PROVEN = 2.0


class LogSpec(BaseModel):
    """The fields of mode `logged` in a bundle: one window per sum operator, in units of the proven error bound (2:
    replication is certain)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bits: int = Field(ge=26, le=32)
    windows: tuple[Annotated[float, Field(ge=0, le=2)], ...]

    @property
    def is_certain(self) -> bool:
        """Whether every honest device gives the same words."""
        return min(self.windows, default=PROVEN) >= PROVEN

    def off_chain(self, program: Program) -> str:
        """The reason why the contract cannot decide the program's elements; empty if it can."""
        if not self.is_certain:
            return (
                "with calibrated thresholds an honest trainer may lose, because equal results are likely but not "
                "certain; order [log] thresholds = 'proven'"
            )
        functions = {op.function for op in program.operators if isinstance(op, Map)} & set(ELEMENTARY)
        if self.bits < 32 and functions:
            names = ", ".join(sorted(function.name.lower() for function in functions))
            return f"the contract cannot compute {names} with {self.bits} bits; order [log] bits = 32"
        return ""

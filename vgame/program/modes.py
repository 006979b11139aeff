"""Rounding modes, and the properties of each besides its arithmetic.

INVARIANT: this table alone determines in which mode a run has a log (vgame/logged).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mode:
    """The properties of a rounding mode. Gas: upper bounds for a call of a dispute."""

    keeps_log: bool = False
    bfloat16: bool = True  # outputs may be bfloat16
    most_terms: int | None = None  # of a block of a sum: bounded by the gas of a transaction (EIP-7825)
    gas: Mapping[str, int] = field(default_factory=dict)  # of calls for which it differs from mode `correct`
    block_gas: int = 6_000  # of `postPartials`, more for each block after the third
    term_gas: int = 330  # of `prove`, more for each term beyond LEAF_TERMS, for products, the most expensive case


#: By name; the position is the mode's number in the contract's JobSpec, except that mode `logged` is given by its bits.
#: The contract takes 0 and 26 to 32.
MODES = {
    "correct": Mode(),
    "nearest": Mode(),
    "fp32": Mode(),
    # More roots to store, three accumulators instead of one, the log's entry.
    "logged": Mode(
        keeps_log=True,
        bfloat16=False,
        most_terms=20_000,
        gas={"postPartials": 175_000, "postSegment": 145_000, "prove": 950_000},
        block_gas=10_000,
        term_gas=765,
    ),
}

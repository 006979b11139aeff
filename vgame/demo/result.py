"""Results of the demonstration: filled by the story, shown by the screen and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from vgame.demo.dossier import Dossier

DEVICE_A, DEVICE_B = "default", "compatible"


@dataclass(frozen=True)
class Sale:
    """The end of one delivery: complaint, calls refused by the contract, gains and losses. `right`: it ended as it
    must."""

    name: str
    title: str
    verdict: str
    fault: str | None
    refused: list[str]
    requests: int
    money: dict[str, int]
    right: bool

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Prize:
    """A bonus by accuracy: its mark, the total found, its end (paid, returned), the error that refused a false
    number."""

    title: str
    least: int
    total: int
    outcome: str
    refused: str

    @property
    def right(self) -> bool:
        return self.outcome == ("paid" if self.total >= self.least else "returned")

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Result:
    """The results of the demonstration."""

    honest: dict[str, Any] = field(default_factory=dict)
    attacks: list[Dossier] = field(default_factory=list)
    accusations: list[Dossier] = field(default_factory=list)
    conserved: bool = False
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    money: dict[str, int] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    exchanges: list[Sale] = field(default_factory=list)
    prizes: list[Prize] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "honest": self.honest,
            "attacks": [a.facts() for a in self.attacks],
            "accusations": [a.facts() for a in self.accusations],
            "exchanges": [s.facts() for s in self.exchanges],
            "bonuses": [p.facts() for p in self.prizes],
            "conserved": self.conserved,
            "seconds": round(self.seconds, 1),
        }

"""The trainer's queue as a model: for all duties and all openings by others, a trainer with one worker is charged two
slots a duty at most, one without openings by others (docs/promises.md, T1). Twin: `VerificationGame._await`,
`Trainer.defend`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

SLOT = 100


@dataclass
class Waiting:
    """A dispute at a duty: the start of its clock, and its duty."""

    key: int
    start: int


@dataclass
class Game:
    """Disputes arrive at duties; one worker serves the clock that starts first. `order`: its rule of choice."""

    dice: random.Random
    disputes: int
    duties: int
    keys: int
    strangers: float
    order: str = "start"
    now: int = 0
    opened: set[int] = field(default_factory=set)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    arrivals: dict[int, tuple[int, int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    worst: int = 0

    def arrive(self, number: int) -> None:
        """The auditor moves: the grace is a slot for each other duty that is awaited now."""
        if not self.left[number]:
            return
        self.left[number] -= 1
        fresh = self.dice.random() < 0.5
        key = self.dice.randrange(self.keys) if not fresh else self.keys + len(self.opened) * 1000 + number
        if key in self.opened:
            return
        others = {w.key for w in self.waiting.values()} - {key}
        self.waiting[number] = Waiting(key, self.now + len(others) * SLOT)
        self.arrivals[number] = (self.now, -number)

    def open(self, key: int) -> None:
        """By the trainer or another account: all waiting disputes are charged from the starts of their clocks."""
        self.opened.add(key)
        for number, w in list(self.waiting.items()):
            if w.key == key:
                self.worst = max(self.worst, self.now - w.start)
                del self.waiting[number]

    def choose(self) -> int:
        if self.order == "number":  # the time of the auditor's move, then the number
            return self.waiting[min(self.waiting, key=lambda n: (self.arrivals[n][0], n))].key
        return min(self.waiting.items(), key=lambda item: (item[1].start, item[0]))[1].key

    def play(self) -> int:
        """The largest charge of a duty, in seconds."""
        self.left = dict.fromkeys(range(self.disputes), self.duties)
        while any(self.left.values()) or self.waiting:
            movers = [n for n in self.left if n not in self.waiting and self.dice.random() < 0.6]
            self.dice.shuffle(movers)
            for number in movers:
                self.arrive(number)
            if not self.waiting:
                self.now += self.dice.randrange(1, SLOT)
                continue
            key, work = self.choose(), self.dice.choice([1, SLOT // 2, SLOT, SLOT])
            end = self.now + work
            while self.now < end:  # others move while the trainer works; nothing of it is dropped
                self.now = min(end, self.now + self.dice.randrange(1, SLOT))
                if self.waiting and self.dice.random() < self.strangers:
                    self.open(self.dice.choice(list(self.waiting.values())).key)
                for number in [n for n in self.left if n not in self.waiting and self.dice.random() < 0.3]:
                    self.arrive(number)
            self.open(key)
        return self.worst


def worst(seed: int, strangers: float, order: str = "start") -> int:
    dice = random.Random(seed)
    return Game(dice, dice.randrange(1, 14), dice.randrange(1, 12), dice.randrange(1, 9), strangers, order).play()


@pytest.mark.parametrize("block", range(6))
def test_no_duty_is_charged_more_than_a_slot(block: int) -> None:
    """3,000 games."""
    assert max(worst(seed, 0) for seed in range(500 * block, 500 * block + 500)) <= SLOT


def test_work_made_useless_by_another_account_costs_one_more_slot() -> None:
    charged = [worst(seed, 0.4) for seed in range(1000)]
    assert SLOT < max(charged) <= 2 * SLOT


def test_the_order_of_moves_would_charge_more() -> None:
    """Red twin: the worker serves disputes by the time of the auditor's move, then by number."""
    assert max(worst(seed, 0, "number") for seed in range(1000)) > SLOT

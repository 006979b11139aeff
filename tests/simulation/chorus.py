"""A story in which each role queries three nodes in turn, one of which may become hostile for ever.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

from branches import Block
from endpoint import Function, SimChain, SimGame
from hostile import Hostile, HostileFunction
from seats import Mortal, Player, SimWallet
from story import Story
from world import Seat, World

from vgame.chain.turns import Endpoint, Turns

NODES = 3
SLOW = 8  # a slow node may delay one look by the time of this many looks
REPLIES = (0.0, 0.25, 1.0, 2.0)  # seconds of each reply of an honest node


def looks_at(world: World) -> int:
    """The number of consecutive looks that may show nothing."""
    return 2 + SLOW * ("slow" in world.enabled)


class ChorusGame(SimGame):
    def _function(self, name: str, args: object) -> Function:
        eth = self.chain.web3.eth
        return (HostileFunction if isinstance(eth, Hostile) else Function)(eth, name, args)


class Sluggish(Mortal):
    """An honest node that may be slow for ever."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.seconds = world.tape.pick(REPLIES) if "slow" in world.enabled else 0.0

    def asked(self) -> Block:
        if self.seconds:
            self.world.clock.sleep(self.seconds)
        return super().asked()


class Singer(Player):
    """A process with three nodes. `honest`: the class of the nodes that stay honest."""

    honest: type[Sluggish] = Sluggish

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.false = world.tape.below(NODES)

    def sit(self) -> None:
        hostile, honest = Hostile(self.world, lambda: True), [self.honest(self.world) for _ in range(NODES - 1)]
        self.eths = [*honest[: self.false], hostile, *honest[self.false :]]
        self.world.eths += self.eths
        self.world.seats.append(Seat(self.world, self.name, self._body))

    def game(self) -> SimGame:
        chain = SimChain(self.world, self.eths[0])
        chain.turns = Turns(chain, [Endpoint(f"node {n}", f"node {n}", eth, False) for n, eth in enumerate(self.eths)])
        return ChorusGame(chain, SimWallet(chain, self.account))


class Chorus(Story):
    """`players`: processes with three nodes."""

    player = Singer
    looks = property(lambda self: looks_at(self.world))


__all__ = ["Chorus"]

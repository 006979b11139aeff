"""The demonstration: the whole story on real data, with real processes and a real chain."""

from vgame.demo.story import Wishes, run_demo

__all__ = ["Wishes", "run_demo"]

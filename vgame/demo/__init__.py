"""The demonstration: the whole story on real data, with real processes and a real chain."""

from vgame.demo.story import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]

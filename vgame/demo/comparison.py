"""What the two devices of the story compute without correct rounding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vgame.demo.processes import Role

if TYPE_CHECKING:
    from vgame.demo.story import Story

MODES = ("fp32", "nearest")


class Comparison:
    """The same two devices without correct rounding: where do they part? Computed beside other scenes; where they have
    parted nothing more is."""

    def __init__(self, story: Story, devices: tuple[str, str]) -> None:
        self.story = story
        threads = ThreadPoolExecutor(len(MODES))
        self.found = {mode: threads.submit(self._parted, mode, devices) for mode in MODES}
        threads.shutdown(wait=False)

    def _parted(self, mode: str, devices: tuple[str, str]) -> int | None:
        """The first step after which the states differ; None if none does."""
        roles, step = [self._run(mode, device) for device in devices], 0
        while step < self.story.bundle.steps:
            for one, other in zip(*(role.wait("roots")["roots"] for role in roles), strict=True):
                step += 1
                if one != other:
                    for role in roles:
                        role.stop()
                    return step
        return None

    def _run(self, mode: str, device: str) -> Role:
        arguments = ["roots", str(self.story.folder / "bundle"), "--mode", mode, "--device", device]
        return self.story.start(f"{mode} on {device}", arguments)

    def tell(self) -> None:
        self.story.screen.scene("The same two devices in `nearest` mode and in plain FP32")
        for mode, future in self.found.items():
            parted = future.result()
            self.story.result.honest[f"{mode}_diverged_at"] = parted
            found = "the same bits to the end" if parted is None else f"the states part at step {parted}"
            self.story.screen.say(f"{mode}: {found}")

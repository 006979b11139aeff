"""Compare the two devices of the story without correct rounding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from vgame.demo.processes import Role
from vgame.demo.stage import Stage

MODES = ("fp32", "nearest")


class Comparison:
    """The first step at which the two devices differ without correct rounding, searched during other scenes. Stops at
    that step."""

    def __init__(self, stage: Stage, devices: tuple[str, str]) -> None:
        self.stage = stage
        threads = ThreadPoolExecutor(len(MODES))
        self.found = {mode: threads.submit(self._first_difference, mode, devices) for mode in MODES}
        threads.shutdown(wait=False)

    def _first_difference(self, mode: str, devices: tuple[str, str]) -> int | None:
        """The first step after which the states differ; None if none does."""
        roles, step = [self._run(mode, device) for device in devices], 0
        while step < self.stage.bundle.steps:
            for one, other in zip(*(role.wait("roots")["roots"] for role in roles), strict=True):
                step += 1
                if one != other:
                    for role in roles:
                        role.stop()
                    return step
        return None

    def _run(self, mode: str, device: str) -> Role:
        arguments = ["roots", str(self.stage.folder / "bundle"), "--mode", mode, "--device", device]
        return self.stage.start(f"{mode} on {device}", arguments)

    def tell(self) -> None:
        self.stage.screen.scene("The same two devices in `nearest` mode and in plain FP32")
        for mode, future in self.found.items():
            step = future.result()
            self.stage.result.honest[f"{mode}_diverged_at"] = step
            found = "the same bits to the end" if step is None else f"the states differ from step {step} on"
            self.stage.screen.say(f"{mode}: {found}")

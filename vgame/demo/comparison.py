"""What the two devices of the story compute without correct rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgame.demo.processes import Role

if TYPE_CHECKING:
    from vgame.demo.story import Story


class Comparison:
    """The same two devices without correct rounding: where do they part? Computed beside the attacks."""

    def __init__(self, story: Story, devices: tuple[str, str]) -> None:
        self.story = story
        self.runs = [self._run(device) for device in devices]

    def _run(self, device: str) -> Role:
        arguments = [
            "roots",
            str(self.story.folder / "bundle"),
            "--mode",
            "fp32",
            "--mode",
            "nearest",
            "--device",
            device,
        ]
        return self.story.start(f"both modes on {device}", arguments)

    @property
    def ready(self) -> bool:
        return all(role.process.poll() is not None for role in self.runs)

    def tell(self) -> None:
        self.story.screen.scene("The same two devices in `nearest` mode and in plain FP32")
        for mode in ("fp32", "nearest"):
            roots = [role.wait("roots", mode=mode)["roots"] for role in self.runs]
            parted = next((i for i, (a, b) in enumerate(zip(*roots, strict=True), 1) if a != b), None)
            self.story.result.honest[f"{mode}_diverged_at"] = parted
            found = "the same bits to the end" if parted is None else f"the states part at step {parted}"
            self.story.screen.say(f"{mode}: {found}")

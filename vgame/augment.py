"""Augmentation as a part of the program: torchvision's names, on whole batches, drawn for each sample.

    augment = nn.Sequential(RandomCrop(32, padding=4), RandomHorizontalFlip())

    def loss(model, batch):
        return F.cross_entropy(model(augment(batch["image"])), batch["label"])

In: images [B, C, H, W], float32 (from 0 to 1 for colours), or tokens [B, T]. Out: the same kind of tensor. A module in
eval() changes nothing. All randomness is torch.rand, randn and randint, so in a program it is Philox's, and a dispute
decides every augmented element. Sizes do not depend on the drawn numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import mpmath
import torch
import torch.nn.functional as F
from torch import nn

from vgame.errors import ProgramError

__all__ = [
    "ColorJitter",
    "CutMix",
    "GaussianNoise",
    "MixUp",
    "RandomApply",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "TokenMasking",
]

Pair = tuple[float, float]
QUANTILES = 1024  # of a beta distribution


class _OfImages(nn.Module):
    """`augmented(images)` in training mode, the images themselves in evaluation mode."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        _check_images(self, images)
        return self.augmented(images) if self.training else images

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class RandomCrop(_OfImages):
    """A window of `size` at a random place of the image, which is padded by `fill` on all sides first."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0, fill: float = 0) -> None:
        super().__init__()
        self.size, self.padding, self.fill = _size(size), padding, fill

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        padded = F.pad(images, [self.padding] * 4, value=self.fill) if self.padding else images
        (height, width), (rows, columns) = padded.shape[2:], self.size
        if rows > height or columns > width:
            raise ProgramError(f"RandomCrop: {self.size} is larger than the padded image, {(height, width)}")
        top = torch.randint(0, height - rows + 1, (len(images), 1, 1))
        left = torch.randint(0, width - columns + 1, (len(images), 1, 1))
        place = (top + torch.arange(rows)[:, None]) * width + left + torch.arange(columns)
        place = place.flatten(1)[:, None].expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, place).view(*images.shape[:2], rows, columns)


class RandomResizedCrop(_OfImages):
    """A part of the image, of `scale` of its area and an aspect in `ratio`, resized to `size` (bilinear, no
    antialiasing)."""

    def __init__(self, size: int | tuple[int, int], scale: Pair = (0.08, 1.0), ratio: Pair = (3 / 4, 4 / 3)) -> None:
        super().__init__()
        self.size, self.scale, self.ratio = _size(size), _range(self, scale), _range(self, ratio)

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        boxes = _boxes(images, self.scale, self.ratio)
        down, across = (_resampling(*b, n, m) for b, n, m in zip(boxes, self.size, images.shape[2:], strict=True))
        return down[:, None] @ images @ across[:, None].transpose(2, 3)


class RandomHorizontalFlip(_OfImages):
    """Each image mirrored with probability p."""

    dim = 3

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = _probability(self, p)

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        return torch.where(_chosen(images, self.p), images.flip(self.dim), images)


class RandomVerticalFlip(RandomHorizontalFlip):
    """Each image upside down with probability p."""

    dim = 2


class RandomGrayscale(_OfImages):
    """Each image (red, green, blue) converted to gray with probability p."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = _probability(self, p)

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        return torch.where(_chosen(images, self.p), _gray(images), images)


class ColorJitter(_OfImages):
    """Brightness, contrast, saturation (factors from 1 - x to 1 + x) and hue (turns from -x to x), in this order."""

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__()
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue
        for name in ("brightness", "contrast", "saturation"):
            if getattr(self, name) < 0:
                raise ProgramError(f"ColorJitter: {name} = {getattr(self, name)}: a number of at least 0 is expected")
        if not 0 <= hue <= 0.5:
            raise ProgramError(f"ColorJitter: hue = {hue}: a number from 0 to 0.5 is expected")

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        if self.brightness:
            images = _blend(images, torch.zeros_like(images), _factor(images, self.brightness))
        if self.contrast:
            images = _blend(images, _gray(images).mean((2, 3), keepdim=True), _factor(images, self.contrast))
        if self.saturation:
            images = _blend(images, _gray(images), _factor(images, self.saturation))
        return _turned(images, _uniform(images, -self.hue, self.hue)[:, 0]) if self.hue else images


class RandomErasing(_OfImages):
    """With probability p a rectangle, of `scale` of the area and an aspect in `ratio`, becomes `value`."""

    def __init__(self, p: float = 0.5, scale: Pair = (0.02, 0.33), ratio: Pair = (0.3, 3.3), value: float = 0) -> None:
        super().__init__()
        self.p, self.value = _probability(self, p), value
        self.scale, self.ratio = _range(self, scale), _range(self, ratio)

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        chosen = _chosen(images, self.p)
        inside = _inside(images, *_boxes(images, self.scale, self.ratio))
        return torch.where(chosen & inside, torch.full_like(images, self.value), images)


class GaussianNoise(_OfImages):
    """A normal random number of `mean` and `sigma` added to every element; with `clip` the result is limited to
    0..1."""

    def __init__(self, mean: float = 0, sigma: float = 0.1, clip: bool = True) -> None:
        super().__init__()
        self.mean, self.sigma, self.clip = mean, sigma, clip

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        noisy = images + self.mean + torch.randn_like(images) * self.sigma
        return noisy.clamp(0, 1) if self.clip else noisy


class RandomApply(_OfImages):
    """Each image transformed with probability p."""

    def __init__(self, transforms: Sequence[nn.Module], p: float = 0.5) -> None:
        super().__init__()
        self.transforms, self.p = nn.Sequential(*transforms), _probability(self, p)

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        return torch.where(_chosen(images, self.p), self.transforms(images), images)


class MixUp(nn.Module):
    """(images, labels) -> (lam * images + (1 - lam) * those of the sample before, label probabilities [B, classes]).

    One lam for the batch, as in torchvision: one of 1,024 quantiles of Beta(alpha, alpha), multiples of 2^-16.
    """

    def __init__(self, alpha: float = 1.0, num_classes: int = 0) -> None:
        super().__init__()
        if not (alpha > 0 and num_classes > 0):
            raise ProgramError(
                f"{type(self).__name__}(alpha={alpha}, num_classes={num_classes}): both above 0 are expected"
            )
        self.classes, self.quantiles = num_classes, torch.tensor(beta_quantiles(alpha), dtype=torch.float32)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _check_images(self, images)
        wanted = F.one_hot(labels, self.classes).float()
        if not self.training:
            return images, wanted
        images, share = self.mixed(images, self.quantiles[torch.randint(0, QUANTILES, (1,))])
        return images, share * wanted + (1 - share) * wanted.roll(1, 0)

    def mixed(self, images: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return share * images + (1 - share) * images.roll(1, 0), share


class CutMix(MixUp):
    """(images, labels) -> (images with a rectangle of 1 - lam of the area from the sample before, label
    probabilities)."""

    def mixed(self, images: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sides = []
        for size in images.shape[2:]:
            centre, half = torch.randint(0, size, (1, 1, 1, 1)), ((1 - share).sqrt() * (size / 2)).floor()
            low = (centre - half).clamp(min=0)
            sides.append((low, (centre + half).clamp(max=size) - low))
        (_, height), (_, width) = sides
        area = images.shape[2] * images.shape[3]
        mixed = torch.where(_inside(images, *sides), images.roll(1, 0), images)
        return mixed, (1 - height * width / area).flatten()


class TokenMasking(nn.Module):
    """tokens [B, T] -> (tokens, labels): each token is chosen with probability p. Of those 80 % become `mask`, 10 % a
    random token below `vocabulary`, 10 % stay. Labels are the chosen tokens, -100 elsewhere. `special` are never
    chosen."""

    def __init__(self, mask: int, vocabulary: int, p: float = 0.15, special: Sequence[int] = ()) -> None:
        super().__init__()
        self.mask, self.vocabulary, self.special = mask, vocabulary, tuple(special)
        self.p = _probability(self, p)
        if not 0 <= mask < vocabulary:
            raise ProgramError(f"TokenMasking: mask = {mask}, a token from 0 to {vocabulary - 1} is expected")

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.training:
            return tokens, torch.full_like(tokens, -100)
        chosen = torch.rand(tokens.shape) < self.p
        for token in self.special:
            chosen = chosen & (tokens != token)
        kind, other = torch.rand(tokens.shape), torch.randint(0, self.vocabulary, tokens.shape)
        masked = torch.where(kind < 0.8, self.mask, torch.where(kind < 0.9, other, tokens))
        return torch.where(chosen, masked, tokens), torch.where(chosen, tokens, -100)


# ---- random numbers ----


def _uniform(images: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """One number for each sample, [B, 1, 1, 1]."""
    return low + (high - low) * torch.rand(len(images), 1, 1, 1)


def _chosen(images: torch.Tensor, p: float) -> torch.Tensor:
    return torch.rand(len(images), 1, 1, 1) < p


def _factor(images: torch.Tensor, most: float) -> torch.Tensor:
    return _uniform(images, max(0.0, 1 - most), 1 + most)


def _boxes(images: torch.Tensor, scale: Pair, ratio: Pair) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """((top, height), (left, width)) of a random box in each image: whole numbers, cut to the image."""
    area = images.shape[2] * images.shape[3]
    share, aspect = _uniform(images, *scale), _uniform(images, *map(math.log, ratio)).exp()
    sides = (share * area / aspect).sqrt(), (share * area * aspect).sqrt()
    return tuple(_placed(images, side.round(), size) for side, size in zip(sides, images.shape[2:], strict=True))


def _placed(images: torch.Tensor, length: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(start, length) of a random interval inside 0 .. size - 1."""
    length = length.clamp(1, size)
    start = (_uniform(images, 0, 1) * (size - length + 1)).floor()
    return torch.minimum(start, size - length), length  # the product may be rounded up


@lru_cache(maxsize=16)
def beta_quantiles(alpha: float) -> tuple[float, ...]:
    """The quantiles (i + 1/2) / 1024 of Beta(alpha, alpha), multiples of 2^-16: the same on every machine."""
    half, low = [], 0
    for i in range(QUANTILES // 2):  # the distribution is symmetric
        wanted, high = (i + 0.5) / QUANTILES, 2**15
        while low < high:
            middle = (low + high) // 2
            reached = mpmath.betainc(alpha, alpha, 0, middle / 2**16, regularized=True) >= wanted
            low, high = (low, middle) if reached else (middle + 1, high)
        half.append(low / 2**16)
    return (*half, *(1 - x for x in reversed(half)))


# ---- arithmetic of images ----


def _inside(images: torch.Tensor, *sides: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """[B, 1, H, W]: is the pixel in the box ((top, height), (left, width))?"""
    (top, height), (left, width) = sides
    row = torch.arange(images.shape[2]).view(1, 1, -1, 1)
    column = torch.arange(images.shape[3]).view(1, 1, 1, -1)
    return (row >= top) & (row < top + height) & (column >= left) & (column < left + width)


def _resampling(start: torch.Tensor, length: torch.Tensor, size: int, source: int) -> torch.Tensor:
    """[B, size, source]: the weights that stretch [start, start + length) of a line to `size` points, bilinear."""
    step = (length / size).flatten(1)[:, :, None]
    start, length = (t.flatten(1)[:, :, None] for t in (start, length))
    inner = (torch.arange(size)[:, None] + 0.5) * step - 0.5
    place = start + torch.minimum(inner.clamp(min=0), length - 1)
    return (1 - (place - torch.arange(source)).abs()).clamp(min=0)


def _gray(images: torch.Tensor) -> torch.Tensor:
    """[B, 1, H, W]; the weights of ITU-R 601."""
    if images.shape[1] != 3:
        raise ProgramError(f"colours need images of 3 channels, red, green and blue; these have {images.shape[1]}")
    red, green, blue = images.split(1, 1)
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _blend(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _turned(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Each hue moved by `turn` turns of the colour circle (to HSV and back)."""
    _gray(images)  # three channels
    red, green, blue = images.unbind(1)
    most = images.amax(1)
    spread = most - images.amin(1)
    safe = torch.where(spread == 0, 1.0, spread)
    sector = torch.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    sector = torch.where(most == red, (green - blue) / safe, sector)
    places = [sector + 6 * turn + n for n in (5, 3, 1)]
    places = [p - 6 * (p / 6).floor() for p in places]
    return torch.stack([most - spread * torch.minimum(p, 4 - p).clamp(0, 1) for p in places], 1)


# ---- refusals ----


def _check_images(module: nn.Module, images: torch.Tensor) -> None:
    if images.dim() != 4:
        raise ProgramError(
            f"{type(module).__name__} takes a batch of images [B, C, H, W], not {tuple(images.shape)}: use it in the "
            "loss, not in the data set"
        )


def _size(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _probability(module: nn.Module, p: float) -> float:
    if not 0 <= p <= 1:
        raise ProgramError(f"{type(module).__name__}: p = {p}, a probability from 0 to 1 is expected")
    return p


def _range(module: nn.Module, pair: Pair) -> Pair:
    if not 0 < pair[0] <= pair[1]:
        raise ProgramError(f"{type(module).__name__}: {pair}, two numbers above 0 are expected, the smaller one first")
    return pair

"""Factories of the shipped jobs (`model = "vgame.tasks.shipped:..."`). Copy and change one for your own task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn

from vgame.augment import RandomCrop, RandomHorizontalFlip
from vgame.errors import DataError, how_to_install
from vgame.tasks import cifar10, digits, models
from vgame.tasks.task import Batch, Task
from vgame.tasks.text import load_tokens

Loss = Callable[[nn.Module, Batch], torch.Tensor]


def next_token_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of every next token of the windows."""
    tokens = batch["tokens"]
    logits = model(tokens[:, :-1])
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def in_bfloat16(loss: Loss) -> Loss:
    """The same loss under torch.autocast."""

    def region(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast(next(iter(batch.values())).device.type, dtype=torch.bfloat16):
            return loss(model, batch)

    return region


def small_resnet(seed: int = 0, batch: int = 32, lr_decay: float = 0.0005, autocast: bool = False) -> Task:
    """A residual network with batch norm on the digits; SGD with Nesterov momentum. autocast: to bfloat16."""
    torch.manual_seed(seed)
    model = models.SmallResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=lr_decay)
    pixels, labels = digits.images()
    data = {"image": pixels[: digits.TRAINING_IMAGES], "label": labels[: digits.TRAINING_IMAGES]}
    loss = in_bfloat16(digits.cross_entropy) if autocast else digits.cross_entropy
    return Task(model, loss, optimizer, data, batch)


def _language_task(
    model: nn.Module, tokens: torch.Tensor, batch: int, length: int, decay: float, loss: Loss = next_token_loss
) -> Task:
    """AdamW on windows of a text, gradients clipped at norm 1; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95))
    return Task(model, loss, optimizer, {"tokens": tokens}, batch, length + 1, length, clip=1.0)


def language_model(
    text: str,
    name: str = "SmallGPT",
    seed: int = 0,
    batch: int = 8,
    length: int = 32,
    decay: float = 0.1,
    autocast: bool = False,
    **sizes: int,
) -> Task:
    """SmallGPT, SmallLlama or SmallLSTM on the bytes of a text file. autocast: to bfloat16."""
    torch.manual_seed(seed)
    factory: Callable[..., nn.Module] = getattr(models, name)
    loss = in_bfloat16(next_token_loss) if autocast else next_token_loss
    return _language_task(factory(**sizes), load_tokens(text), batch, length, decay, loss)


def resnet50(folder: str, seed: int = 0, batch: int = 64, check: bool = True, augmented: bool = False) -> Task:
    """ResNet-50 (CIFAR form) from random initialisation on CIFAR-10; the paper's first workload. augmented: crops of
    images padded by 4 pixels, and flips, are part of the program, and the data are the published pixels."""
    torch.manual_seed(seed)
    model = models.ResNet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.0005)
    images, labels = cifar10.load(folder, check=check)
    data = {"image": images if augmented else cifar10.normalized(images), "label": labels}
    loss = cropped_and_flipped(digits.cross_entropy) if augmented else digits.cross_entropy
    return Task(model, loss, optimizer, data, batch)


def cropped_and_flipped(loss: Loss) -> Loss:
    """The usual augmentation of CIFAR-10, then its normalisation, before the loss."""
    transform = nn.Sequential(RandomCrop(32, padding=4), RandomHorizontalFlip())
    return lambda model, batch: loss(model, {**batch, "image": cifar10.normalized(transform(batch["image"]))})


def _hide_broken_torchvision() -> None:
    """Hide a torchvision that cannot be imported (built for another torch), which transformers would import; GPT-2 does
    not need it."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        sys.modules["torchvision"] = None


def gpt2(
    text: str,
    seed: int = 0,
    batch: int = 8,
    length: int = 64,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    dropout: float = 0.1,
    **config: int,
) -> Task:
    """transformers' GPT2LMHeadModel, unchanged (124 M parameters unless `config` changes it); the paper's second
    workload.

    `checkpoint`: a local folder with config.json and model.safetensors; else random initialisation.
    """
    _hide_broken_torchvision()
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise DataError(f"GPT-2 needs the package transformers ({error}): {how_to_install('hf')}") from None
    torch.manual_seed(seed)
    if checkpoint is not None:
        if not (Path(checkpoint) / "config.json").is_file():
            raise DataError(
                f"the checkpoint folder {checkpoint} has no config.json; give a local folder (vgame never downloads)"
            )
        try:
            model = GPT2LMHeadModel.from_pretrained(checkpoint, local_files_only=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise DataError(
                f"the checkpoint {checkpoint} cannot be loaded: {' '.join(str(error).split())[:200]}"
            ) from None
    else:
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, **config))
    model.config.use_cache = False
    return _language_task(model, load_tokens(text, tokenizer), batch, length, 0.01)

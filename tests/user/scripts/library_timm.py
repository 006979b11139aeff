"""Scripts of timm: its models and the parts of its train.py."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn, optim
from training_scripts import images, job, script

pytest.importorskip("torchvision_anyhow")
timm = pytest.importorskip("timm")
pytest.importorskip("timm.loss")
pytest.importorskip("timm.optim")
pytest.importorskip("timm.scheduler")

from vgame.augment import CutMix, MixUp, RandomErasing  # noqa: E402


def resnet(**options) -> nn.Module:
    return timm.create_model("resnet10t.c3_in1k", pretrained=False, num_classes=10, **options)


@script("timm", "ResNet with mixup and label smoothing (soft-target cross-entropy)")
def mixup():
    model, mix, criterion = resnet(), MixUp(0.2, 10), timm.loss.SoftTargetCrossEntropy()

    def loss(model, batch):
        x, target = mix(batch["x"], batch["y"])
        return criterion(model(x), target * 0.9 + 0.1 / 10)

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True), images(8, 3, 32))


@script("timm", "ResNet with timm's own Mixup (NumPy's random numbers)", refused=r"NumPy.*vgame\.augment")
def numpys_mixup():
    from timm.data import Mixup

    model, mix = resnet(), Mixup(mixup_alpha=0.2, num_classes=10)

    def loss(model, batch):
        x, target = mix(batch["x"], batch["y"])
        return timm.loss.SoftTargetCrossEntropy()(model(x), target)

    return job(model, loss, optim.SGD(model.parameters(), lr=0.1), images(8, 3, 32))


@script("timm", "ResNet with an average of weights (EMA) and label smoothing")
def ema():
    model, criterion = resnet(drop_rate=0.1), timm.loss.LabelSmoothingCrossEntropy(0.1)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.1, weight_decay=1e-4)
    return job(model, lambda m, b: criterion(m(b["x"]), b["y"]), optimizer, images(8, 3, 32), average=0.9998)


@script("timm", "Vision transformer with layer-wise decay of learning rates and stochastic depth")
def layer_decay():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48, num_classes=10, drop_path_rate=0.1
    )
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05, layer_decay=0.75)
    for group in optimizer.param_groups:
        group["lr"] *= group.get("lr_scale", 1.0)  # the effect of timm's schedulers
    criterion = timm.loss.LabelSmoothingCrossEntropy()
    return job(model, lambda m, b: criterion(m(b["x"]), b["y"]), optimizer, images(8, 3, 32), clip=1.0)


@script("timm", "Vision transformer with cutmix, erasing and Lion")
def cutmix():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=48, num_classes=10)
    mix, erase = CutMix(1.0, 10), RandomErasing(0.25)

    def loss(model, batch):
        x, target = mix(erase(batch["x"]), batch["y"])
        return F.cross_entropy(model(x), target)

    optimizer = timm.optim.create_optimizer_v2(model, opt="lion", lr=1e-4, foreach=False)
    return job(model, loss, optimizer, images(8, 3, 32))


@script("timm", "A scheduler of timm's own", refused="schedul")
def own_scheduler():
    model = resnet()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = timm.scheduler.CosineLRScheduler(optimizer, t_initial=10)
    loss = lambda m, b: F.cross_entropy(m(b["x"]), b["y"])
    return job(model, loss, optimizer, images(8, 3, 32), schedulers=[scheduler])

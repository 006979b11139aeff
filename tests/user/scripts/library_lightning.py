"""Scripts of Lightning: a LightningModule, its data and its Trainer, read by vgame.lightning."""

from __future__ import annotations

import tempfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from training_scripts import STEPS, images, script

L = pytest.importorskip("lightning")

from vgame.lightning import job_from  # noqa: E402

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def loader() -> DataLoader:
    data = images(16, 1, 8)
    return DataLoader(TensorDataset(data["x"], data["y"]), batch_size=4)


def fitted(module, **options):
    """The job in place of Trainer(...).fit(module, loader())."""
    options = {"max_steps": STEPS, "accelerator": "cpu", "default_root_dir": tempfile.mkdtemp()} | options
    return job_from(module, loader(), L.Trainer(**QUIET, **options), interval=1, seed=7)


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-3)


@script("Lightning", "Lightning in 15 minutes (autoencoder)")
def plain():
    return fitted(LitAutoEncoder())


@script("Lightning", "A classifier that returns a dictionary, dropout and batch norm")
def classifier():
    class LitClassifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10)
            )

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self.net(x)
            self.log("accuracy", (logits.argmax(1) == y).float().mean(), prog_bar=True)
            return {"loss": F.cross_entropy(logits, y)}

        def configure_optimizers(self):
            return optim.SGD(self.parameters(), lr=0.1)

    return fitted(LitClassifier())


class Scheduled(LitAutoEncoder):
    def configure_optimizers(self):
        optimizer = optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@script("Lightning", "A scheduler's dictionary, each step")
def scheduler():
    return fitted(Scheduled())


@script("Lightning", "Accumulated gradients and clipping by norm")
def accumulated():
    return fitted(LitAutoEncoder(), accumulate_grad_batches=2, gradient_clip_val=0.5)


@script("Lightning", "Clipping by value")
def clipped():
    return fitted(Scheduled(), gradient_clip_val=0.1, gradient_clip_algorithm="value")


class LitGAN(LitAutoEncoder):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        first.step()
        second.step()

    def configure_optimizers(self):
        return [optim.Adam(self.encoder.parameters()), optim.Adam(self.decoder.parameters())]


@script("Lightning", "A GAN by manual optimization", refused="optimiz")
def gan():
    return fitted(LitGAN())


@script("Lightning", "The same GAN as two losses of a task")
def gan_as_task():
    from training_scripts import job

    module = LitAutoEncoder()

    def reconstruction(model, batch):
        x = batch["x"].flatten(1)
        return F.mse_loss(model.decoder(model.encoder(x)), x)

    optimizers = [optim.Adam(module.encoder.parameters()), optim.Adam(module.decoder.parameters())]
    return job(module, [reconstruction, reconstruction], optimizers, {"x": torch.rand(16, 1, 8, 8)})


@script("Lightning", "Early stopping", refused="EarlyStopping")
def early_stopping():
    return fitted(LitAutoEncoder(), callbacks=[L.pytorch.callbacks.EarlyStopping("train_loss")])

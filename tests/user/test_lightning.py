"""vgame.lightning.job_from: a LightningModule becomes a job whose weights and rates are those of Trainer.fit."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import vgame
from vgame.lightning import job_from

L = pytest.importorskip("lightning")
warnings.filterwarnings("ignore", module="lightning")


class Net(L.LightningModule):
    def __init__(self, interval: str = "step", lr: float = 0.05) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net, self.interval, self.lr = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), interval, lr

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


class Data(L.LightningDataModule):
    def train_dataloader(self):
        torch.manual_seed(3)
        x = torch.randn(16, 3)
        return DataLoader(TensorDataset(x, x.argmax(1) % 2), batch_size=4)


def trainer(folder, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, **(quiet | {"max_epochs": 2} | options))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("interval", "options"),
    [("step", {}), ("epoch", {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}), ("epoch", {"max_steps": 6})],
)
def test_weights_are_those_of_fit(interval, options, tmp_path) -> None:
    theirs = Net(interval)
    trainer(tmp_path, **options).fit(theirs, Data())
    job = job_from(Net(interval), Data(), trainer(tmp_path, **options))
    assert job.steps == (4 if "accumulate_grad_batches" in options else options.get("max_steps", 8))
    mine = vgame.train(vgame.prepare(job), tmp_path / "run").state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.allclose(mine[name], tensor, rtol=1e-4, atol=1e-6), name


class Two(Net):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    def on_after_backward(self):
        pass


@pytest.mark.filterwarnings("ignore")
def test_all_that_cannot_be_taken_over_is_listed_at_once(tmp_path) -> None:
    stopping = L.pytorch.callbacks.EarlyStopping("loss")
    with pytest.raises(vgame.JobFileError) as error:
        job_from(Two(), Data(), trainer(tmp_path, callbacks=[stopping], precision="bf16-mixed"))
    for part in (
        "automatic_optimization = False",
        "precision = bf16-mixed",
        "on_after_backward of Two",
        "EarlyStopping",
        "2 optimizers",
    ):
        assert part in str(error.value)
    with pytest.raises(vgame.JobFileError, match="neither max_steps nor max_epochs"):
        job_from(Net(), Data(), trainer(tmp_path, max_epochs=-1))
    with pytest.raises(vgame.JobFileError, match="the data is a list; a DataLoader"):
        job_from(Net(), [1], trainer(tmp_path))

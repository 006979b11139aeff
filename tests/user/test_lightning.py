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


class Estimated(Net):
    """As Lightning's documentation advises."""

    def setup(self, stage: str) -> None:
        assert self.trainer.max_epochs == 2

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"max_steps": 5}])
def test_a_scheduler_may_read_the_length_of_the_training(options, tmp_path) -> None:
    theirs, module = Estimated(), Estimated()
    fitting = trainer(tmp_path, **options)
    fitting.fit(theirs, Data())
    job = job_from(module, Data(), trainer(tmp_path, **options))
    assert job.steps == fitting.estimated_stepping_batches
    assert module._trainer is None
    mine = vgame.train(vgame.prepare(job), tmp_path / "run").state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.allclose(mine[name], tensor, rtol=1e-4, atol=1e-6), name


class Counting(Net):
    """It keeps losses, as a metric keeps its counts."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = []

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.losses.append(loss.detach())
        return loss


@pytest.mark.filterwarnings("ignore")
def test_results_kept_by_a_module_are_refused_with_a_remedy(tmp_path) -> None:
    with pytest.raises(vgame.VgameError, match=r"`losses.1` .* lists of results belong beside the loss: vgame.train"):
        vgame.prepare(job_from(Counting(), Data(), trainer(tmp_path)))


class Two(Net):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    def on_after_backward(self):
        pass


@pytest.mark.filterwarnings("ignore")
def test_all_unsupported_settings_are_listed_at_once(tmp_path) -> None:
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


class Hooked(Net):
    def on_train_start(self):
        nn.init.zeros_(self.net[0].weight)

    def configure_callbacks(self):
        return []

    def optimizer_zero_grad(self, epoch, index, optimizer):
        pass

    def on_validation_epoch_end(self):
        pass


class Moved(Data):
    def on_after_batch_transfer(self, batch, index):
        return batch


class Looking(L.Callback):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"limit_train_batches": 2}, "limit_train_batches = 2"),
        ({"limit_train_batches": 0.5}, "limit_train_batches = 0.5"),
        ({"limit_train_batches": 1}, "limit_train_batches = 1"),
        ({"overfit_batches": 1}, "overfit_batches = 1"),
        ({"fast_dev_run": True}, "fast_dev_run = True"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs = 1"),
        ({"max_time": "00:00:00:01"}, "the callback Timer"),
        ({"precision": "64-true"}, "precision = 64-true"),
        ({"callbacks": lambda c: c.StochasticWeightAveraging(1e-2)}, "the callback StochasticWeightAveraging"),
        ({"callbacks": lambda c: c.GradientAccumulationScheduler({0: 2})}, "callback GradientAccumulationScheduler"),
        ({"callbacks": lambda c: c.BackboneFinetuning()}, "the callback BackboneFinetuning"),
        ({"callbacks": lambda c: c.EMAWeightAveraging()}, "the callback EMAWeightAveraging"),
        ({"callbacks": lambda c: c.BatchSizeFinder()}, "the callback BatchSizeFinder"),
        ({"callbacks": lambda c: c.LambdaCallback(on_train_start=print)}, "the callback LambdaCallback"),
        ({"callbacks": lambda c: Looking()}, "the callback Looking"),
    ],
)
def test_an_argument_that_changes_training_is_refused_by_name(options, problem: str, tmp_path) -> None:
    callbacks = options.get("callbacks")
    options = options | ({"callbacks": [callbacks(L.pytorch.callbacks)]} if callbacks else {})
    with pytest.raises(vgame.JobFileError, match=problem):
        job_from(Net(), Data(), trainer(tmp_path, **options))


@pytest.mark.filterwarnings("ignore")
def test_hooks_that_change_training_are_refused_by_name(tmp_path) -> None:
    module = Hooked()
    module.on_before_zero_grad = lambda optimizer: None
    with pytest.raises(vgame.JobFileError) as error:
        job_from(module, Moved(), trainer(tmp_path))
    hooks = ("on_train_start", "configure_callbacks", "optimizer_zero_grad", "on_before_zero_grad")
    assert all(f"a {name} of Hooked" in str(error.value) for name in hooks)
    assert "a on_after_batch_transfer of Moved" in str(error.value) and "on_validation" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_callbacks_that_only_read_are_accepted(tmp_path) -> None:
    callbacks = [L.pytorch.callbacks.ModelCheckpoint(tmp_path), L.pytorch.callbacks.ModelSummary()]
    options = {"enable_checkpointing": True, "callbacks": callbacks, "limit_val_batches": 0}
    assert job_from(Net(), Data(), trainer(tmp_path, **options)).steps == 8


class Annealed(Net):
    by = "current_epoch"

    def training_step(self, batch, index):
        scale = 1.0 + (index if self.by == "batch_idx" else getattr(self, self.by))
        return scale * super().training_step(batch, index)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by", ["current_epoch", "global_step", "batch_idx"])
def test_a_step_that_counts_is_refused(by: str, tmp_path) -> None:
    module = Annealed()
    module.by = by
    with pytest.raises(vgame.VgameError, match=f"training_step reads {by}, which does not exist in a job's step"):
        vgame.prepare(job_from(module, Data(), trainer(tmp_path)))
    assert module.current_epoch == module.global_step == 0


class Freezing(Net):
    def train(self, mode=True):
        super().train(mode)
        self.net[0].requires_grad_(not mode)
        return self


@pytest.mark.filterwarnings("ignore")
def test_the_modes_are_those_that_fit_finds(tmp_path) -> None:
    """Since 2.2, fit does not call train()."""
    for module in (Net().eval(), Freezing()):
        with pytest.raises(vgame.JobFileError, match=r"the module's modes, as Trainer.fit does not call module.train"):
            job_from(module, Data(), trainer(tmp_path))
        assert all(p.requires_grad for p in module.parameters())
    part = Net()
    part.net[1].eval()
    for module in (part, Freezing().train()):
        assert job_from(module, Data(), trainer(tmp_path)).task.model is module


class Built(Net):
    def setup(self, stage: str) -> None:
        self.net = nn.Linear(3, 2)

    def training_step(self, batch):
        return super().training_step(batch, 0)


@pytest.mark.filterwarnings("ignore")
def test_setup_is_called_and_a_step_without_index_accepted(tmp_path) -> None:
    job = job_from(Built(), Data(), trainer(tmp_path))
    assert vgame.prepare(job, validate=60).validation["samples"] == 16
    with pytest.raises(vgame.JobFileError, match="`steps` = 0"):
        vgame.prepare(job_from(Net(), Data(), trainer(tmp_path, max_epochs=0)))

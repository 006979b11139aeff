"""vgame.hf.job_from: a transformers.Trainer becomes a job whose losses and rates are the trainer's own."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hf_trainers import InOrder, causal, compare, gpt, job_from, model, padded, trainer, transformers

import vgame


@pytest.mark.parametrize(
    ("made", "collator", "options"),
    [
        (model, padded, {}),
        (gpt, causal, {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"}),
        (model, padded, {"gradient_accumulation_steps": 2, "optim": "sgd", "label_smoothing_factor": 0.1}),
    ],
)
def test_losses_and_rates_are_the_trainers(made, collator, options, tmp_path) -> None:
    compare(lambda: trainer(tmp_path / "hf", made(), collator, **options), tmp_path / "run")


def test_epochs_and_the_interval_come_from_the_arguments(tmp_path) -> None:
    options = {
        "max_steps": -1,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 3,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    job = job_from(trainer(tmp_path, kind=transformers.Trainer, **options))
    assert (job.steps, job.interval, job.seed, job.task.order, job.task.batch) == (18, 1, 42, "shuffled", 3)
    assert job.task.clip == 0.5 and len(job.task.schedulers) == 1


class Watching(transformers.TrainerCallback):
    pass


class OwnStep(InOrder):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


def test_all_unsupported_settings_are_listed_at_once(tmp_path) -> None:
    def noisy(rows):
        return padded(rows) | {"noise": torch.rand(len(rows))}

    wrong = trainer(
        tmp_path,
        collator=noisy,
        kind=OwnStep,
        callbacks=[Watching()],
        neftune_noise_alpha=5,
        gradient_checkpointing=True,
    )
    wrong.model.bert.pooler.half()
    with pytest.raises(vgame.JobFileError) as error:
        job_from(wrong)
    text = str(error.value)
    for part in (
        "neftune_noise_alpha = 5",
        "gradient_checkpointing = True",
        "a training_step of OwnStep, test_hf.py line",
        "the callback Watching",
    ):
        assert part in text
    assert "parameters of torch.float16 (model.float())" in text and "collate_fn gives another batch each time" in text


class OwnLog(InOrder):
    def log(self, logs, start_time=None):
        self.optimizer.param_groups[0]["lr"] /= 2


class AddsToLog(InOrder):
    def log(self, logs, start_time=None):
        super().log({**logs, "epoch": self.state.epoch, "mine": 1.0}, start_time)


class OwnLoader(InOrder):
    def get_train_dataloader(self):
        return super().get_train_dataloader()


class OwnBoth(InOrder):
    def create_optimizer_and_scheduler(self, num_training_steps):
        return super().create_optimizer_and_scheduler(num_training_steps)


class OwnClip(InOrder):
    def _clip_grad_norm(self, model):
        return super()._clip_grad_norm(model)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"eval_strategy": "steps", "eval_steps": 2}, "eval_strategy = 'steps'"),
        ({"use_liger_kernel": True}, "use_liger_kernel = True"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size = True"),
        ({"activation_checkpointing": True}, "activation_checkpointing = True"),
        ({"resume_from_checkpoint": "checkpoint-3"}, "resume_from_checkpoint = 'checkpoint-3'"),
        (
            {"train_sampling_strategy": "group_by_length", "kind": transformers.Trainer},
            "samples by LengthGroupedSampler",
        ),
        ({"kind": OwnLoader}, "a get_train_dataloader of OwnLoader"),
        ({"kind": OwnBoth}, "a create_optimizer_and_scheduler of OwnBoth"),
        ({"kind": OwnLog}, r"a log of OwnLog, test_hf.py line \d+ \(a job does not call it: remove it"),
        ({"kind": OwnClip}, "a _clip_grad_norm of OwnClip"),
        ({"callbacks": [transformers.EarlyStoppingCallback()]}, "the callback EarlyStoppingCallback"),
        ({"dataloader_drop_last": True, "kind": transformers.Trainer, "per_device_train_batch_size": 3}, "drop_last"),
    ],
)
def test_an_argument_that_changes_training_is_refused_by_name(options, problem: str, tmp_path) -> None:
    made = trainer(tmp_path, **{k: v for k, v in options.items() if k not in ("eval_strategy", "use_liger_kernel")})
    for name in {"eval_strategy", "use_liger_kernel"} & options.keys():
        object.__setattr__(made.args, name, options[name])
    with pytest.raises(vgame.JobFileError, match=problem):
        job_from(made)


def test_arguments_without_effect_are_accepted(tmp_path) -> None:
    options = {"logging_first_step": True, "dataloader_num_workers": 2, "save_total_limit": 1, "run_name": "a"}
    made = trainer(tmp_path, kind=AddsToLog, dataloader_drop_last=True, per_device_train_batch_size=3, **options)
    job = job_from(made)
    assert len(job.task.data["labels"]) == 15 and job.task.epoch == 5


class Ignoring(torch.nn.Module):
    """Takes the number of items, and does not use it; `extra` adds a term that is no mean over items."""

    def __init__(self, extra: float = 0.0, uses: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.extra, self.uses = torch.nn.Embedding(12, 2), extra, uses

    def forward(self, input_ids, labels, attention_mask=None, num_items_in_batch=None, **kwargs):
        scores = (self.table(input_ids) * attention_mask[:, :, None]).sum(1)
        total = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        loss = total / (num_items_in_batch if self.uses else len(labels))
        return {"loss": loss + self.extra * scores.square().mean(), "logits": scores}


@pytest.mark.parametrize("made", [Ignoring(), Ignoring(0.5, True), Ignoring(0.0, True)])
def test_accumulated_losses_are_the_trainers_whatever_the_model_counts(made, tmp_path) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "optim": "sgd"}
    compare(lambda: trainer(tmp_path / "hf", deepcopy(made), **options), tmp_path / "run")


class Setting(InOrder):
    """As in older examples: both methods set an attribute, and return nothing."""

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def test_the_job_has_the_trainers_objects_and_every_module_in_training_mode(tmp_path) -> None:
    made = trainer(tmp_path, kind=Setting)
    made.model.bert.embeddings.eval()
    task = job_from(made).task
    assert task.optimizer is made.optimizer and list(task.schedulers) == [made.lr_scheduler]
    assert all(module.training for module in task.model.modules())


FACTORY = """
import torch, transformers, vgame

def task():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **none))
    data = {"ids": torch.arange(32).reshape(8, 4) % 12}
    loss = lambda m, b: m(input_ids=b["ids"], labels=b["ids"]).loss
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=4)
"""


def test_weights_become_a_folder_that_from_pretrained_reads(tmp_path, monkeypatch) -> None:
    from typer.testing import CliRunner

    from vgame.cli import app
    from vgame.cli.commands import main  # noqa: F401  (registers the commands)

    (tmp_path / "gpt_of_a_user.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = tmp_path / "job.toml"
    job.write_text('model = "gpt_of_a_user:task"\nseed = 1\nsteps = 2\ninterval = 1\n[schedule]\nlr = "0.1"\n')
    run = vgame.train(vgame.prepare(vgame.Job.from_toml(job)), tmp_path / "run")
    run.export(tmp_path / "model.safetensors")
    call = ["pretrained", str(tmp_path / "model.safetensors"), str(job), "--out", str(tmp_path / "saved")]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved").state_dict()
    assert all(torch.equal(read[key], value) for key, value in run.state_dict().items())
    again = CliRunner().invoke(app, call)
    assert again.exit_code != 0 and "is there already" in str(again.exception)

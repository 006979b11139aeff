"""Trainers of ordinary users, compared with their train(): a trainer that a job would train differently is refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hf_trainers import InOrder, causal, compare, gpt, job_from, model, padded, trainer, transformers

import vgame

Tokenizer = pytest.importorskip("tokenizers").Tokenizer
WordLevel = pytest.importorskip("tokenizers.models").WordLevel


class Head(torch.nn.Module):
    """The sum of the losses over the number of items in the step, and a term that is 0 at first."""

    def __init__(self, extra: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.extra = torch.nn.Embedding(12, 2), extra
        self.unused, self.shift = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, input_ids, labels, attention_mask=None, num_items_in_batch=None, **kwargs):
        scores = (self.table(input_ids) * attention_mask[:, :, None]).sum(1)
        total = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
        return {"loss": total / num_items_in_batch + self.extra * self.shift.sum(), "logits": scores}


class Mean(InOrder):
    """Declares that its loss is a mean, which train() divides by the number of batches."""

    loss_is_scaled_for_ga = False


class CountsBatches(InOrder):
    def _get_num_items_in_batch(self, batch_samples, device):
        return torch.tensor(float(len(batch_samples)))


class Kept(torch.optim.AdamW):
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=False)


class KeptZeros(InOrder):
    def create_optimizer(self, model=None):
        self.optimizer = Kept(self.model.parameters(), lr=0.01, weight_decay=0.1)
        return self.optimizer


def squared(outputs, labels, num_items_in_batch=None):
    return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


class OwnLoss(InOrder):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, compute_loss_func=squared, compute_metrics=lambda found: {}, **kwargs)


TWO = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "optim": "sgd"}
MORE = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Head, TWO | {"kind": Mean}),
        (Head, TWO | {"kind": CountsBatches}),
        (lambda: Head(0.5), TWO),
        (Head, {"kind": KeptZeros}),
        (model, {"kind": OwnLoss, "gradient_accumulation_steps": 2}),
        (model, {"optim": "rmsprop", "warmup_steps": 0.4, "label_smoothing_factor": 0.2} | MORE),
        (model, {"optim": "adagrad", "dataloader_drop_last": True, "logging_nan_inf_filter": False}),
        (gpt, {"collator": causal, "gradient_accumulation_steps": 4, "lr_scheduler_type": "inverse_sqrt"}),
        (gpt, {"collator": causal, "label_smoothing_factor": 0.1, "lr_scheduler_type": "polynomial"}),
    ],
)
def test_a_job_trains_as_the_trainer_does(make, options, tmp_path) -> None:
    compare(lambda: trainer(tmp_path / "hf", make(), **options), tmp_path / "run")


def test_a_scheduler_of_the_trainers_own_is_made_anew(tmp_path) -> None:
    def make():
        made = trainer(tmp_path / "hf")
        made.create_optimizer_and_scheduler(num_training_steps=1000)
        return made

    compare(make, tmp_path / "run")


def test_a_model_of_model_init_is_made_anew(tmp_path) -> None:
    def make():
        made = trainer(tmp_path / "hf", made=torch.nn.Linear(1, 1))
        args = made.args
        made = InOrder(None, args, train_dataset=made.train_dataset, data_collator=padded, model_init=lambda: model())
        with torch.no_grad():
            made.model.classifier.weight.zero_()
        return made

    compare(make, tmp_path / "run")


def test_a_batch_that_is_split_among_gpus_is_refused(tmp_path) -> None:
    made = trainer(tmp_path)
    made.args._n_gpu = 2
    with pytest.raises(vgame.JobFileError, match="2 GPUs, among which the trainer splits each batch"):
        job_from(made)


def test_more_batches_a_step_than_a_pass_has_are_refused(tmp_path) -> None:
    with pytest.raises(vgame.JobFileError, match="gradient_accumulation_steps = 3 for 2 batches a pass"):
        job_from(trainer(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=3))


def test_the_padding_of_the_tokenizer_becomes_the_models(tmp_path) -> None:
    """A classifier reads the last token before the padding."""
    words = {str(i): i for i in range(12)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="1")), pad_token="0", eos_token="2"
    )

    def make():
        torch.manual_seed(0)
        config = gpt().config
        config.pad_token_id, config.num_labels = 11, 2
        made = transformers.GPT2ForSequenceClassification(config)
        made = trainer(tmp_path / "hf", made)
        made.processing_class = tokenizer
        return made

    compare(make, tmp_path / "run")


def test_a_package_that_is_not_installed_is_named(tmp_path) -> None:
    with pytest.raises(vgame.JobFileError, match=r"optim = 'lomo' cannot be made: You need to install `lomo_optim`"):
        job_from(trainer(tmp_path, optim="lomo"))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, r"batch\['n'\] is of type int; a tensor with the samples in its first dimension .*: repeat"),
        ("a", r"batch\['n'\] is of type str; a tensor with the samples in its first dimension .*: tokenise text"),
    ],
)
def test_a_collator_that_gives_no_tensor_is_refused(value, problem: str, tmp_path) -> None:
    made = trainer(tmp_path, collator=lambda rows: padded(rows) | {"n": value}, remove_unused_columns=False)
    with pytest.raises(vgame.JobFileError, match=problem):
        job_from(made)


def test_a_batch_size_of_tokens_is_refused(tmp_path) -> None:
    made = trainer(tmp_path, kind=transformers.Trainer, train_sampling_strategy="batch_rebalance")
    with pytest.raises(vgame.JobFileError, match="samples by BatchRebalanceSampler"):
        job_from(deepcopy(made))

"""A transformers.Trainer as a job: model, data set, collator, TrainingArguments. What cannot be taken over is listed,
all of it.

In: a trainer that has not trained. Out: a Job whose losses and rates are those of `trainer.train()`; the order of
samples is vgame's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from transformers import EarlyStoppingCallback, Trainer

from vgame.api import Job
from vgame.errors import JobFileError, VgameError
from vgame.tasks.datasets import Collated, collate
from vgame.tasks.task import Batch, Task

#: What a TrainingArguments may ask for that a job does not have: (field, values that mean nothing, what to do).
ASKED = (
    ("bf16", (False,), "train in float32"),
    ("fp16", (False,), "train in float32"),
    ("neftune_noise_alpha", (None, 0), "write the noise into the model's forward"),
    ("torch_compile", (False,), "leave it out: vgame captures the step itself"),
    ("deepspeed", (None,), "leave it out"),
    ("load_best_model_at_end", (False,), "choose among the run's checkpoints afterwards: run.state_dict(step)"),
    ("gradient_checkpointing", (False,), "leave it out: it changes memory, not values"),
)  # fmt: skip
#: Methods that decide what a step computes and are not asked.
OWN_LOOP = ("training_step", "_inner_training_loop", "train", "get_batch_samples")


def job_from(trainer: Trainer, *, interval: int | None = None, **options: Any) -> Job:
    """The job of `trainer.train()`. `interval`: steps between two checkpoints, by default its `save_steps`, at most a
    tenth of all.

    Further options are those of a Job: mode, depth, terms. JobFileError lists everything that cannot be taken over.
    """
    data, problems = None, list(_problems(trainer))
    loader = trainer.get_train_dataloader()
    try:
        data = collate(loader.dataset, loader.collate_fn)
    except VgameError as error:
        problems.append(str(error))
    if problems or data is None:
        raise JobFileError("the trainer asks for what a job does not have: " + "; ".join(problems))
    args, steps = trainer.args, _steps(trainer, len(loader))
    optimizer = trainer.create_optimizer()
    task = _task(trainer, data, optimizer, trainer.create_scheduler(steps, optimizer))
    every = interval or min(_save_steps(args, steps), max(1, steps // 10))
    seed = args.seed if args.data_seed is None else args.data_seed
    return Job(task, steps=steps, interval=every, seed=seed, **options)


def _task(trainer: Trainer, data: Collated, optimizer: torch.optim.Optimizer, scheduler: Any) -> Task:
    """Losses that count their items over the whole step are those of one batch; others are the mean over the
    batches."""
    args, batch, counted = trainer.args, trainer.args.train_batch_size, _counts_items(trainer)
    pieces = args.gradient_accumulation_steps

    def loss(model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        items = trainer._get_num_items_in_batch([inputs], torch.device("cpu"))
        return trainer.compute_loss(model, dict(inputs), num_items_in_batch=items)

    return Task(
        trainer.model,
        data.restored(loss),
        optimizer,
        data.tensors,
        batch * pieces if counted else batch,
        clip=args.max_grad_norm or None,
        accumulate=1 if counted else pieces,
        order="shuffled" if isinstance(trainer._get_train_sampler(), RandomSampler) else "sequential",
        schedulers=[scheduler],
    )


def _counts_items(trainer: Trainer) -> bool:
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def _steps(trainer: Trainer, batches: int) -> int:
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(args.num_train_epochs * max(math.ceil(batches / args.gradient_accumulation_steps), 1))


def _save_steps(args: Any, steps: int) -> int:
    every = args.save_steps if str(getattr(args.save_strategy, "value", args.save_strategy)) == "steps" else steps
    return max(1, round(every * steps) if 0 < every < 1 else int(every))


def _problems(trainer: Trainer) -> Iterator[str]:
    args = trainer.args
    for name, nothing, instead in ASKED:
        if (value := getattr(args, name, nothing[0])) not in nothing:
            yield f"{name} = {value!r} ({instead})"
    if args.world_size > 1:
        yield f"{args.world_size} processes (train in one)"
    for name in OWN_LOOP:
        if getattr(type(trainer), name) is not getattr(Trainer, name, None):
            yield f"a {name} of {type(trainer).__name__} (write it into compute_loss)"
    sampler = trainer._get_train_sampler()
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        yield f"samples by {type(sampler).__name__} (train_sampling_strategy = 'random')"
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback) or not type(callback).__module__.startswith("transformers."):
            yield (
                f"the callback {type(callback).__name__} (vgame.train(..., callbacks=[...]) calls functions at "
                "checkpoints)"
            )
    if trainer.optimizer is not None and trainer.optimizer.state:
        yield "an optimizer that has been used (make a new trainer)"
    odd = {str(p.dtype) for p in trainer.model.parameters() if p.dtype != torch.float32}
    if odd:
        yield f"parameters of {', '.join(sorted(odd))} (model.float())"


__all__ = ["job_from"]

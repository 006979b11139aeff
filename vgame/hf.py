"""A transformers.Trainer as a job: model, data set, collator, TrainingArguments. One error lists every unsupported
setting.

In: a trainer that has not trained. Out: a Job whose losses and rates are those of `trainer.train()`; the order of
samples is vgame's.
"""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from vgame.api_job import Job
from vgame.errors import JobFileError, VgameError, missing_package
from vgame.job.file import usual_interval
from vgame.program.hidden_state import own_line
from vgame.tasks.datasets import Collated, collate
from vgame.tasks.task import Batch, Task

try:
    import accelerate  # transformers makes no Trainer without it
    import transformers
    from transformers import Trainer
except ModuleNotFoundError as error:
    raise missing_package(error) from None

#: Arguments that are used, or that do not affect training, with any value.
KNOWN = re.compile(
    "(output_dir|per_device_(train|eval)_batch_size|num_train_epochs|max_steps|learning_rate|lr_scheduler_(type|kwargs)"
    "|warmup_(steps|ratio)|optim|optim_(args|target_modules)|weight_decay|adam_(beta1|beta2|epsilon)|max_grad_norm"
    "|gradient_accumulation_steps|label_smoothing_factor|seed|data_seed|train_sampling_strategy|label_names"
    "|length_column_name|remove_unused_columns|full_determinism|tf32|use_cpu|local_rank|disable_tqdm|report_to|run_name"
    "|project|trackio_.*|log(ging)?_.*|include_.*|prediction_loss_only|eval_(?!strategy|on_start).*|batch_eval_metrics"
    "|(bf16|fp16)_full_eval|save_.*|enable_jit_checkpoint|push_to_hub|hub_.*|metric_for_best_model|greater_is_better"
    "|ignore_data_skip|restore_callback_states_from_checkpoint|dataloader_.*|do_(train|eval|predict)|debug|ddp_.*"
    "|skip_memory_metrics|torch_empty_cache_steps|average_tokens_across_devices|accelerator_config|use_cache"
    "|(liger_kernel_config|torch_compile_(backend|mode)|(gradient|activation)_checkpointing_kwargs|fsdp_config)|_n_gpu)"
)
#: Other arguments are refused unless they have their default; argument -> remedy.
INSTEAD = {
    "bf16": "train in float32",
    "fp16": "train in float32",
    "neftune_noise_alpha": "write the noise into the model's forward",
    "torch_compile": "remove it: vgame captures the step itself",
    "load_best_model_at_end": "choose among the run's checkpoints afterwards: run.state_dict(step)",
    "gradient_checkpointing": "remove it: it changes memory, not values",
    "activation_checkpointing": "remove it: it changes memory, not values",
    "eval_strategy": 'write "no"; vgame.train(..., callbacks=[...]) calls functions at checkpoints',
    "eval_on_start": "remove it: a job does not evaluate",
}
NOTHING: tuple[object, ...] = (None, False, 0, "", [], {}, "no")
#: Methods of a trainer that are called here, or outside the training step; all others can change a step.
METHODS = re.compile(
    "_?(compute_loss|create_optimizer|create_scheduler|get_optimizer_cls_and_kwargs|get_decay_parameter_names"
    "|get_train_sampler|get_num_items_in_batch|.*remove_unused_columns|.*collator_with_removed_columns|get_learning_rate"
    "|set_signature_columns_if_needed|eval.*|predict.*|get_(eval|test)_.*|save.*|load.*"
    "|determine_best_metric|get_output_dir|store_flos|floating_point_ops|init_hf_repo|.*hub|push_.*|finish_.*"
    "|create_model_card|hyperparameter_search|hp_.*|report_to_hp_search|tune_.*|call_model_init|is_.*_process_zero"
    "|(add|pop|remove)_callback|track_num_input_tokens|num_(examples|tokens)|end|issue_.*|validate_args|__init__"
    "|get_total_train_batch_size)"
)
#: Methods that train() calls between two steps; a `log` that names none of WORKINGS only adds to the log.
BETWEEN = ("log", "_maybe_log_save_evaluate")
WORKINGS = {"optimizer", "lr_scheduler", "model", "accelerator", "callback_handler", "control", "args", "param_groups"}
#: Attributes of a trainer that change from step to step.
CHANGING = ("state", "control", "optimizer", "lr_scheduler", "callback_handler")
HARMLESS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "NotebookProgressCallback")


def job_from(trainer: Trainer, *, interval: int | None = None, **options: Any) -> Job:
    """The job of `trainer.train()`. `interval`: steps between two checkpoints, by default its `save_steps`, at most a
    tenth of all.

    Further options are those of a Job: mode, depth, terms. JobFileError lists every unsupported setting.
    """
    data, problems = None, list(_problems(trainer))
    loader = trainer.get_train_dataloader()
    args, sampler = trainer.args, trainer._get_train_sampler()
    try:
        plain = {"collate_fn": loader.collate_fn, "drop_last": args.dataloader_drop_last}
        data = collate(DataLoader(loader.dataset, args.train_batch_size, sampler=sampler, **plain))
    except VgameError as error:
        problems.append(str(error))
    if problems or data is None:
        raise JobFileError("a job does not support these settings of the trainer: " + "; ".join(problems))
    assert data.batches is not None, "a DataLoader has them"
    steps = _steps(trainer, data.batches)
    trainer.create_optimizer()
    trainer.create_scheduler(steps, trainer.optimizer)
    trainer.model.train()  # every module, as in train(), after the optimizer is made
    task = _task(trainer, data)
    every = interval or min(_save_steps(args, steps), usual_interval(steps))
    seed = args.seed if args.data_seed is None else args.data_seed
    return Job(task, steps=steps, interval=every, seed=seed, **options)


def _task(trainer: Trainer, data: Collated) -> Task:
    """The task of a trainer. A loss that counts its items over the whole step is a sum over one large batch; other
    losses are the mean over the step's batches."""
    args, pieces = trainer.args, trainer.args.gradient_accumulation_steps
    assert data.batch is not None, "a DataLoader has one"
    summed = pieces > 1 and _is_summed(trainer, data.tensors)
    part = data.batch if summed and not _is_of_one_batch(trainer, data) else data.batch * pieces

    def loss(model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        items = trainer._get_num_items_in_batch([inputs], torch.device("cpu"))
        if part >= len(next(iter(inputs.values()))):
            return _loss(trainer, model, dict(inputs), items)
        split = zip(*(tensor.split(part) for tensor in inputs.values()), strict=True)
        parts = [dict(zip(inputs, tensors, strict=True)) for tensors in split]
        return sum(_loss(trainer, model, each, items) for each in parts)

    return Task(
        trainer.model,
        loss,
        trainer.optimizer,
        replace(data, batch=data.batch * pieces if summed else data.batch),
        clip=args.max_grad_norm or None,
        accumulate=1 if summed else pieces,
        schedulers=[trainer.lr_scheduler],
    )


class _Changing:
    """An attribute of a trainer that changes from step to step: its own attributes cannot be read."""

    is_local_process_zero = is_world_process_zero = True

    def __init__(self, name: str, kind: type) -> None:
        self._name, self._kind = name, kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return self._kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        frames = traceback.extract_stack(sys._getframe(1))
        folders = tuple(os.path.dirname(package.__file__) for package in (transformers, accelerate))
        where = own_line(f for f in frames if not f.filename.startswith(folders))
        raise JobFileError(
            f"compute_loss reads {self._name}.{name}{where}, which changes from step to step, but the loss of a job is "
            "the same in all steps; remove it from compute_loss"
        )


@contextmanager
def _in_train(trainer: Trainer) -> Iterator[None]:
    """Context in which the trainer's attributes are those within train(), which logs nothing; CHANGING ones are
    refused."""
    own_state = trainer.accelerator.gradient_state
    changing: dict[str, Any] = {name: _Changing(name, type(getattr(trainer, name))) for name in CHANGING}
    parts = {"current_gradient_accumulation_steps": trainer.args.gradient_accumulation_steps}
    here = (
        (vars(trainer), changing | parts | {"is_in_train": True, "log": lambda *_, **__: None}),
        (vars(trainer.accelerator), {"gradient_state": _Changing("accelerator", type(own_state))}),
    )
    before = [(own, new, {name: own[name] for name in new if name in own}) for own, new in here]
    for own, new in here:
        own.update(new)
    try:
        yield
    finally:
        for own, new, old in before:
            for name in new:
                own.pop(name, None)
            own.update(old)


def _loss(trainer: Trainer, model: torch.nn.Module, inputs: dict[str, torch.Tensor], items: Any) -> torch.Tensor:
    with _in_train(trainer):
        return trainer.compute_loss(model, inputs, num_items_in_batch=items)


def _is_summed(trainer: Trainer, batch: Batch) -> bool:
    """Whether the trainer adds up the losses of an accumulation's batches, not their mean."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    has_items = trainer._get_num_items_in_batch([batch], torch.device("cpu")) is not None
    takes_items = trainer.model_accepts_loss_kwargs and has_items
    return bool(scaled if scaled is not None else takes_items or trainer.compute_loss_func is not None)


def _is_of_one_batch(trainer: Trainer, data: Collated) -> bool:
    """Whether the losses of a step's batches, each with the number of items of all, add up to the loss of one large
    batch. Computed with the present model; False if it ignores the number of items, or has batch norm layers."""
    model, pieces = trainer.model, trainer.args.gradient_accumulation_steps
    if any(isinstance(m, _BatchNorm) for m in model.modules()):
        return False
    rows = torch.arange(data.batch * pieces) % len(next(iter(data.tensors.values())))
    items = trainer._get_num_items_in_batch([{n: t[rows] for n, t in data.tensors.items()}], torch.device("cpu"))

    def of(some: torch.Tensor) -> float:
        batch = {name: tensor[some] for name, tensor in data.tensors.items()}
        return float(_loss(trainer, model, batch, items))

    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            one, parts = of(rows), sum(of(part) for part in rows.split(data.batch))
    finally:
        model.train(training)
    return math.isclose(one, parts, rel_tol=1e-4)


def _steps(trainer: Trainer, batches: int) -> int:
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    a_pass = max(math.ceil(batches / args.gradient_accumulation_steps), 1)
    steps: int = math.ceil(args.num_train_epochs * a_pass)
    return steps


def _save_steps(args: Any, steps: int) -> int:
    every = args.save_steps if str(getattr(args.save_strategy, "value", args.save_strategy)) == "steps" else steps
    return max(1, round(every * steps) if 0 < every < 1 else int(every))


def _only_logs(method: Any) -> bool:
    """Whether a log() reads nothing by which it could change a training."""
    codes = [getattr(method, "__code__", None)]
    for code in codes:
        if code is None or WORKINGS & {*code.co_names, *code.co_freevars}:
            return False
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    return True


def _problems(trainer: Trainer) -> Iterator[str]:
    args = trainer.args
    for field in fields(args):
        value = getattr(args, field.name)
        value = getattr(value, "value", value)
        if not KNOWN.fullmatch(field.name) and value not in NOTHING:
            yield f"{field.name} = {value!r} ({INSTEAD.get(field.name, 'remove it')})"
    if args.world_size > 1:
        yield f"{args.world_size} processes (train in one)"
    for name, method in vars(Trainer).items():
        own = getattr(trainer, name, None) if isinstance(method, FunctionType) else None
        other = own is not None and getattr(own, "__func__", own) is not method and not METHODS.fullmatch(name)
        if other and not (name == "log" and _only_logs(own)):
            instead = (
                "a job does not call it: remove it, or let log only change its logs"
                if name in BETWEEN
                else "write it into compute_loss"
            )
            yield f"a {name} of {type(trainer).__name__} ({instead})"
    sampler = trainer._get_train_sampler()
    if not isinstance(sampler, RandomSampler | SequentialSampler | WeightedRandomSampler):
        yield f"samples by {type(sampler).__name__} (train_sampling_strategy = 'random')"
    for callback in trainer.callback_handler.callbacks:
        kind = type(callback)
        logs = kind.__module__ == "transformers.integrations.integration_utils"
        if not logs and not (kind.__name__ in HARMLESS and kind.__module__.startswith("transformers.")):
            yield (f"the callback {kind.__name__} (vgame.train(..., callbacks=[...]) calls functions at checkpoints)")
    if trainer.optimizer is not None and trainer.optimizer.state:
        yield "an optimizer that has been used (create a new trainer)"
    odd = {str(p.dtype) for p in trainer.model.parameters() if p.dtype != torch.float32}
    if odd:
        yield f"parameters of {', '.join(sorted(odd))} (model.float())"


__all__ = ["job_from"]

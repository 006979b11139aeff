"""A transformers.Trainer as a job: model, data set, collator, TrainingArguments. One error lists every unsupported
setting.

In: a trainer that has not trained. Out: a Job whose losses and rates are those of `trainer.train()`; the order of
samples is vgame's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from vgame.api_job import Job
from vgame.errors import JobFileError, VgameError, missing_package
from vgame.job.file import usual_interval
from vgame.tasks.datasets import Collated, collate
from vgame.tasks.task import Batch, Task

try:
    import accelerate  # noqa: F401  (transformers makes no Trainer without it)
    import transformers
    from transformers import Trainer, TrainerCallback, set_seed
    from transformers.trainer import align_special_tokens

    from vgame.hf_within import BETWEEN, OUTSIDE, Within, changed_by, is_of_transformers, place
except ModuleNotFoundError as error:
    raise missing_package(error) from None
except ImportError as error:
    raise VgameError(f"{error}; transformers 5.6.2 or later is expected: pip install -U transformers") from None

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
#: A `log` that names none of these only adds to the log.
WORKINGS = {"optimizer", "lr_scheduler", "model", "accelerator", "callback_handler", "control", "args", "param_groups"}
HARMLESS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "NotebookProgressCallback")


def job_from(trainer: Trainer, *, interval: int | None = None, **options: Any) -> Job:
    """The job of `trainer.train()`. `interval`: steps between two checkpoints, by default its `save_steps`, at most a
    tenth of all.

    Further options are those of a Job: mode, depth, terms. JobFileError lists every unsupported setting.
    """
    if trainer.model_init is not None:  # train() creates the model again
        set_seed(trainer.args.seed)
        trainer.model = trainer.model_wrapped = trainer.call_model_init()
        trainer.optimizer = trainer.lr_scheduler = None
    tokenizer = isinstance(trainer.processing_class, transformers.PreTrainedTokenizerBase | transformers.ProcessorMixin)
    if tokenizer and hasattr(trainer.model, "config"):
        align_special_tokens(trainer.model, trainer.processing_class)
    data, problems = None, list(_problems(trainer))
    loader = trainer.get_train_dataloader()
    args, sampler = trainer.args, trainer._get_train_sampler()
    try:
        plain = {"collate_fn": loader.collate_fn, "drop_last": args.dataloader_drop_last}
        plain["num_workers"] = args.dataloader_num_workers  # the data set's samples may depend on it
        data = collate(DataLoader(loader.dataset, args.train_batch_size, sampler=sampler, **plain))
    except VgameError as error:
        problems.append(str(error))
    pieces = args.gradient_accumulation_steps
    if data is not None and pieces > (batches := len(loader)):
        problems.append(
            f"gradient_accumulation_steps = {pieces} for {batches} batches a pass, so that a step of train() has only "
            f"{batches} (gradient_accumulation_steps = {batches})"
        )
    if problems or data is None:
        raise JobFileError("a job does not support these settings of the trainer: " + "; ".join(problems))
    epochs, *_, steps = trainer.set_initial_training_values(args, loader)
    _create_optimizer(trainer, steps)
    trainer.model.train()  # every module, as in train(), after the optimizer is made
    task = _task(trainer, data, Within(trainer, steps, epochs))
    every = interval or min(_save_steps(args, steps), usual_interval(steps))
    seed = args.seed if args.data_seed is None else args.data_seed
    return Job(task, steps=steps, interval=every, seed=seed, **options)


def _create_optimizer(trainer: Trainer, steps: int) -> None:
    """Create optimizer and scheduler as train() does: a scheduler that the trainer created before is created again."""
    if trainer._created_lr_scheduler:
        trainer.lr_scheduler, trainer._created_lr_scheduler = None, False
    try:
        trainer.create_optimizer()
    except (ImportError, ValueError) as error:  # a package that is not installed
        if not is_of_transformers(trainer.create_optimizer):
            raise
        name = getattr(trainer.args.optim, "value", trainer.args.optim)
        raise JobFileError(f"optim = {name!r} cannot be made: {' '.join(str(error).split())}") from None
    trainer.create_scheduler(steps, trainer.optimizer)


def _task(trainer: Trainer, data: Collated, within: Within) -> Task:
    """The task of a trainer. A loss that counts its items over the whole step is one loss of the step's rows; other
    losses are the mean over the step's batches."""
    args, pieces = trainer.args, trainer.args.gradient_accumulation_steps
    assert data.batch is not None, "a DataLoader has one"
    rows: int = data.batch
    counts = within.items([data.tensors]) is not None
    summed = _is_summed(trainer, counts)
    together = pieces > 1 and (summed or counts)
    whole = together and summed and _is_of_one_batch(trainer, data, rows, within)

    def loss(model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        found = within.loss(model, inputs, rows, whole)
        return found if summed or not together else found / trainer.args.gradient_accumulation_steps

    loss.place = f" ({place(trainer.compute_loss)[2:]})"  # type: ignore[attr-defined]
    return Task(
        trainer.model,
        loss,
        trainer.optimizer,
        replace(data, batch=rows * pieces if together else rows),
        clip=args.max_grad_norm or None,
        accumulate=1 if together else pieces,
        schedulers=[trainer.lr_scheduler],
    )


def _is_summed(trainer: Trainer, counts: bool) -> bool:
    """Whether the trainer adds up the losses of an accumulation's batches, not their mean. `counts`: it counts their
    items."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    takes_items = trainer.model_accepts_loss_kwargs and counts
    return bool(scaled if scaled is not None else takes_items or trainer.compute_loss_func is not None)


def _is_of_one_batch(trainer: Trainer, data: Collated, each: int, within: Within) -> bool:
    """Whether the losses of a step's batches, each with the number of items of all, add up to the loss of one large
    batch. Computed with the present model; False for a loss of the user's, which may have a further term."""
    model, pieces = trainer.model, trainer.args.gradient_accumulation_steps
    own = not is_of_transformers(trainer.compute_loss) or not is_of_transformers(type(model).forward)
    if own or trainer.compute_loss_func is not None or any(isinstance(m, _BatchNorm) for m in model.modules()):
        return False
    rows = torch.arange(each * pieces) % len(next(iter(data.tensors.values())))
    batch = {name: tensor[rows] for name, tensor in data.tensors.items()}
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            one, parts = (float(within.loss(model, batch, each, whole)) for whole in (True, False))
    finally:
        model.train(training)
    return math.isclose(one, parts, rel_tol=1e-5)


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
    if args.n_gpu > 1:
        yield f"{args.n_gpu} GPUs, among which the trainer splits each batch (show it one: CUDA_VISIBLE_DEVICES=0)"
    for name, method in vars(Trainer).items():
        own = getattr(trainer, name, None) if isinstance(method, FunctionType) else None
        theirs = is_of_transformers(own) and getattr(own, "__func__", own) is method
        other = own is not None and not theirs and not METHODS.fullmatch(name)
        only_logs = name == "log" and _only_logs(own)
        between = BETWEEN.fullmatch(name) is not None
        if (other and not only_logs) or (between and OUTSIDE in changed_by(type(trainer), name)):
            instead = (
                "a job does not call it: remove it, or let log only change its logs"
                if between
                else "write it into compute_loss"
            )
            yield f"a {name} of {type(trainer).__name__}{place(own)} ({instead})"
    sampler = trainer._get_train_sampler()
    if not isinstance(sampler, RandomSampler | SequentialSampler | WeightedRandomSampler):
        yield f"samples by {type(sampler).__name__} (train_sampling_strategy = 'random')"
    yield from _callbacks(trainer.callback_handler)
    zero = type(trainer.model).zero_grad
    if zero is not torch.nn.Module.zero_grad:
        yield f"a zero_grad of {type(trainer.model).__name__}{place(zero)} (a job does not call it: remove it)"
    if trainer.optimizer is not None and trainer.optimizer.state:
        yield "an optimizer that has been used (create a new trainer)"
    odd = {str(p.dtype) for p in trainer.model.parameters() if p.dtype != torch.float32}
    if odd:
        yield f"parameters of {', '.join(sorted(odd))} (model.float())"


def _callbacks(handler: Any) -> Iterator[str]:
    """The callbacks that could change a training: all but those of transformers that print or log."""
    for callback in (handler, *handler.callbacks):
        kind = type(callback)
        own = [n for n in dir(TrainerCallback) if n.startswith("on_") and not is_of_transformers(getattr(callback, n))]
        known = kind.__name__ in (*HARMLESS, "CallbackHandler") and kind.__module__.startswith("transformers.")
        known |= kind.__module__ == "transformers.integrations.integration_utils"
        if own or not known:
            where = f", its {own[0]}{place(getattr(callback, own[0]))}" if own else ""
            yield (
                f"the callback {kind.__name__}{where} (a job does not call it: write its changes into the model or "
                "compute_loss; vgame.train(..., callbacks=[...]) calls functions at checkpoints)"
            )


__all__ = ["job_from"]

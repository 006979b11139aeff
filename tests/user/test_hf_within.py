"""A compute_loss may read constants of its trainer. Other reads, and callbacks that a job does not call, are refused by
name and line."""

from __future__ import annotations

import copy
import heapq
import logging

import pytest
import torch
from hf_trainers import InOrder, compare, job_from, model, trainer, transformers

import vgame

REFUSED = {
    "state.global_step": lambda own: own.state.global_step,
    "state.epoch": lambda own: own.state.epoch or 0,
    "state.log_history": lambda own: len(own.state.log_history),
    "state": lambda own: len(vars(own.state)),
    "state ": lambda own: len(str(own.state)),
    "state  ": lambda own: len(f"{own.state}"),
    "state   ": lambda own: copy.copy(own.state).global_step,
    "_get_learning_rate (lr_scheduler.get_last_lr)": lambda own: own._get_learning_rate(),
    "lr_scheduler.get_last_lr": lambda own: own.lr_scheduler.get_last_lr()[0],
    "optimizer.param_groups": lambda own: own.optimizer.param_groups[0]["lr"] if own.optimizer else 0.0,
    "accelerator.sync_gradients": lambda own: float(own.accelerator.sync_gradients),
    "accelerator._optimizers": lambda own: len(own.accelerator._optimizers),
    "get_train_dataloader (accelerator.prepare)": lambda own: len(own.get_train_dataloader()),
    "control.should_log": lambda own: float(own.control.should_log),
    "callback_handler.optimizer": lambda own: own.callback_handler.optimizer.param_groups[0]["lr"],
    "_total_loss_scalar": lambda own: 1 + own._total_loss_scalar,
    "_tr_loss": lambda own: vars(own).get("_tr_loss") * 2,
    "current_flos": lambda own: 1.0 if own.current_flos > 100 else 2.0,
    "_globalstep_last_logged": lambda own: float(getattr(own, "_globalstep_last_logged", 0)),
    "state.global_step ": lambda own: own.kept.global_step,
}


class Reading(InOrder):
    read = staticmethod(lambda own: 1.0)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = self.state

    def compute_loss(self, *args, **kwargs):
        if self.state.is_world_process_zero and self.is_in_train and self.optimizer:
            self.log({"aux": 1.0})
        return super().compute_loss(*args, **kwargs) * self.read(self)


def reading(folder, read, kind=Reading, **options):
    made = trainer(folder, kind=kind, **options)
    made.read = read
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_reads_a_value_that_changes_between_steps_is_refused(name: str, tmp_path) -> None:
    made = reading(tmp_path, REFUSED[name])
    with pytest.raises(vgame.JobFileError) as error:
        vgame.prepare(job_from(made), validate=0)
    text = str(error.value)
    assert text.startswith(f"compute_loss uses {name.strip()}, test_hf_within.py line "), text
    assert "can change from step to step" in text


@pytest.mark.parametrize("options", [{}, {"max_steps": -1, "num_train_epochs": 1.5}])
def test_a_loss_reads_constants_as_within_train(options, tmp_path) -> None:
    def constants(own):
        state, args, accelerator = own.state, own.args, own.accelerator
        numbers = [state.max_steps, state.num_train_epochs, state.train_batch_size, state.logging_steps]
        numbers += [args.warmup_steps, accelerator.num_processes, own.current_gradient_accumulation_steps]
        assert accelerator.is_main_process and own.is_world_process_zero() and own.model is own.model_wrapped
        assert isinstance(state, transformers.TrainerState) and isinstance(own.optimizer, torch.optim.Optimizer)
        return sum(n / (i + 1) for i, n in enumerate(numbers)) / 10

    compare(lambda: reading(tmp_path / "hf", constants, **options), tmp_path / "run")


def test_a_loss_leaves_the_trainer_as_it_was(tmp_path) -> None:
    made = trainer(tmp_path, kind=Reading)
    state, optimizer, names = made.state, made.optimizer, {*vars(made)}
    vgame.prepare(job_from(made), validate=0)
    assert made.state is state and not made.is_in_train and {*vars(made)} == names and optimizer is None
    assert made.optimizer.param_groups and made.state.log_history == []


class Annealing(Reading):
    """Its method `log` changes values that the loss reads."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight, self.table = 1.0, {"a": 1.0}

    def log(self, logs, start_time=None):
        self.weight *= 0.9
        self.table["a"] *= 0.9
        super().log(logs, start_time)


class Helping(Annealing):
    def log(self, logs, start_time=None):
        self.step_down()

    def step_down(self):
        self.weight /= 2


class Appending(Annealing):
    def log(self, logs, start_time=None):
        self.table.update(a=len(self.table))


class Counting(Reading):
    def floating_point_ops(self, inputs):
        self.seen = getattr(self, "seen", 0) + 1
        return 0


class Inheriting(Annealing):
    def log(self, logs, start_time=None):
        super().log(logs, start_time)


class ByAnotherName(Reading):
    def log(s, logs, start_time=None):
        s.weight *= 0.9


class LikeAConstant(Reading):
    is_warm = True

    def log(self, logs, start_time=None):
        self.is_warm = False


class IntoAHeap(Reading):
    table = (1.0,)

    def log(self, logs, start_time=None):
        heapq.heappush(self.table, 1.0)


@pytest.mark.parametrize(
    ("kind", "name", "read"),
    [
        (IntoAHeap, "table", lambda own: 1.0 + len(own.table)),
        (Inheriting, "weight", lambda own: 1.0 + own.weight),
        (ByAnotherName, "weight", lambda own: 1.0 + own.weight),
        (LikeAConstant, "is_warm", lambda own: 1.0 + own.is_warm),
        (Annealing, "weight", lambda own: 1.0 + own.weight),
        (Annealing, "table", lambda own: own.table["a"]),
        (Helping, "weight", lambda own: 1.0 + own.weight),
        (Appending, "table", lambda own: own.table["a"]),
        (Counting, "seen", lambda own: 1.0 + own.seen),
    ],
)
def test_a_loss_that_reads_a_value_that_another_method_changes_is_refused(kind, name, read, tmp_path) -> None:
    with pytest.raises(vgame.JobFileError, match=rf"compute_loss uses {name}, test_hf_within.py line \d+"):
        vgame.prepare(job_from(reading(tmp_path, read, kind)), validate=0)


WEIGHTS = [1.0]


class ByName(Reading):
    def log(self, logs, start_time=None):
        for name in ("weight", "table"):
            setattr(self, name, 2.0)


class OfTheFile(Reading):
    def log(self, logs, start_time=None):
        WEIGHTS[0] /= 2


class OnSave(Reading):
    def _save(self, *args, **kwargs):
        global WEIGHTS
        WEIGHTS = [2.0]


class ByAnAlias(Reading):
    def log(self, logs, start_time=None):
        me = self
        me.weight *= 0.9


class InALoop(Reading):
    def log(self, logs, start_time=None):
        for table in (self.table,):
            table.update(a=2.0)


class APart(Reading):
    def log(self, logs, start_time=None):
        double(self.table)


class InPlace(Reading):
    def log(self, logs, start_time=None):
        weight = self.weight
        weight *= 0.9


class InAComprehension(Reading):
    def log(self, logs, start_time=None):
        [table.update(a=2.0) for table in (self.table,)]


class IntoATensor(Reading):
    def log(self, logs, start_time=None):
        torch.mul(self.weight, 0.9, out=self.weight)


class InItsDictionary(Reading):
    def log(self, logs, start_time=None):
        self.__dict__["weight"] *= 0.9


class OfAFunction(Reading):
    def log(self, logs, start_time=None):
        halve(self)


class OfAProperty(Reading):
    @property
    def factor(self):
        return self.weight

    @factor.setter
    def factor(self, value):
        self.weight = value

    def log(self, logs, start_time=None):
        self.factor = 2.0


class ByAMethodOfTheFile(Reading):
    def log(self, logs, start_time=None):
        WEIGHTS.append(0.5)


class OfADictionary(Reading):
    def log(self, logs, start_time=None):
        SEEN.update(a=2.0)


class OfAnObject(Reading):
    def log(self, logs, start_time=None):
        METER.tick()


class ByAModule(Reading):
    def log(self, logs, start_time=None):
        table = self.table
        heapq.heappush(table, 1.0)


class Meter:
    seen = 0

    def tick(self):
        self.seen += 1


SEEN, METER = {"a": 1.0}, Meter()


def double(table):
    table["a"] *= 2


def halve(own):
    own.weight /= 2


ALIASED = [(kind, "log") for kind in (
    ByAnAlias, InALoop, APart, InPlace, InAComprehension, IntoATensor, InItsDictionary, OfAFunction, OfAProperty,
    ByAMethodOfTheFile, OfADictionary, OfAnObject, ByAModule,
)]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [*ALIASED, (ByName, "log"), (OfTheFile, "log"), (OnSave, "_save")])
def test_a_method_between_steps_that_changes_other_values_is_refused(kind, name, tmp_path) -> None:
    with pytest.raises(
        vgame.JobFileError, match=rf"a {name} of {kind.__name__}, test_hf_within.py line \d+ \(a job does"
    ):
        job_from(trainer(tmp_path, kind=kind))


LOG = logging.getLogger(__name__)


class Reporting(InOrder):
    """As in many trainers, the loss leaves values for the log."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.parts = {}

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.last = self.parts["loss"] = loss.detach()
        return loss

    def log(self, logs, start_time=None):
        logs["last"], logs["epoch"] = float(self.last), self.state.epoch
        logs["mean"] = float(torch.stack([self.last]).mean())
        LOG.info("%s, seen %s", logs, SEEN.get("a"))
        super().log(logs | {name: float(part) for name, part in self.parts.items()}, start_time)


def test_a_loss_that_leaves_values_for_the_log_is_trained(tmp_path) -> None:
    compare(lambda: trainer(tmp_path / "hf", kind=Reporting), tmp_path / "run")


class OwnZeros(transformers.BertForSequenceClassification):
    def zero_grad(self, set_to_none: bool = True) -> None:
        self.classifier.weight.data.mul_(0.9)


def test_a_model_with_a_zero_grad_of_its_own_is_refused(tmp_path) -> None:
    with pytest.raises(vgame.JobFileError, match=r"a zero_grad of OwnZeros, test_hf_within.py line \d+"):
        job_from(trainer(tmp_path, OwnZeros(model().config)))


class Calls(Reading):
    calls = 0

    def compute_loss(self, *args, **kwargs):
        self.calls += 1
        return super().compute_loss(*args, **kwargs) * self.calls


def test_a_loss_that_counts_its_calls_is_refused_with_the_users_line(tmp_path) -> None:
    with pytest.raises(vgame.VgameError, match=r"trainer\.calls \(test_hf_within.py line \d+\)"):
        vgame.prepare(job_from(trainer(tmp_path, kind=Calls)), validate=0)


class Freezing(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model.bert.requires_grad_(False)


class Halving(transformers.PrinterCallback):
    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer.param_groups[0]["lr"] /= 2


def patched_callback():
    made = transformers.ProgressCallback()
    made.on_epoch_end = Freezing().on_step_begin
    return made


def patched_handler(made):
    made.callback_handler.on_step_end = Freezing().on_step_begin


@pytest.mark.parametrize(
    ("callback", "change", "problem"),
    [
        (Freezing, None, "the callback Freezing, its on_step_begin, test_hf_within.py line"),
        (Halving, None, "the callback Halving, its on_optimizer_step, test_hf_within.py line"),
        (patched_callback, None, "the callback ProgressCallback, its on_epoch_end, test_hf_within.py line"),
        (transformers.EarlyStoppingCallback, None, "the callback EarlyStoppingCallback"),
        (None, patched_handler, "the callback CallbackHandler, its on_step_end, test_hf_within.py line"),
        (None, lambda made: made.add_callback(Freezing), "the callback Freezing"),
    ],
)
def test_a_callback_that_a_job_does_not_call_is_refused(callback, change, problem: str, tmp_path) -> None:
    made = trainer(tmp_path, callbacks=[callback()] if callback else None)
    if change:
        change(made)
    with pytest.raises(vgame.JobFileError, match=problem):
        job_from(made)


def test_a_method_that_was_replaced_in_transformers_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(transformers.Trainer, "training_step", lambda self, *args: None)
    with pytest.raises(vgame.JobFileError, match=r"a training_step of InOrder, test_hf_within.py line \d+"):
        job_from(trainer(tmp_path))

"""Translation validation: compare the user's step with the program's, stage by stage, in binary64 (docs/validation.md).

In: a task, its lowered program, the initial state. Out: a `Report`; ValidationError if a stage differs. Each stage of
the user's side starts from the program's values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from vgame.errors import ValidationError
from vgame.program.batches import POSITION
from vgame.program.capture import owned
from vgame.program.coupled import coupled_of, coupled_with
from vgame.program.lowering.builder import Value
from vgame.program.lowering.marks import Turn
from vgame.program.operators import Ref, RefClass
from vgame.program.schedule import double
from vgame.validation import user
from vgame.validation.bends import LATEST, steps_of_rates
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.casts import Types
from vgame.validation.compare import Differs, Rungs, Tensors, compare, compare_updates
from vgame.validation.draws import Drawn
from vgame.validation.evaluate import Evaluation
from vgame.validation.held import Held, held_by
from vgame.validation.order import check_weights, frozen_of, position_after, rows_of_step, trained_of
from vgame.validation.padding import warn_of_padding
from vgame.validation.places import LONGEST, Noted, place_of, step_of
from vgame.validation.report import Order, Report
from vgame.validation.samples import check_samples
from vgame.validation.shadow import CannotCheck, Shadows
from vgame.validation.start import check_start

T = torch.Tensor
ROWS = 16  # first steps with compared samples, and steps spread over all; also those near the end of an epoch


def validate(order: Order, seconds: float, memory: float | None = None) -> Report:
    """Compare within the given seconds and bytes of memory (default: half of the free memory). ValidationError for the
    first tensor that differs."""
    report, begin = Report(), time.monotonic()
    try:
        _Validation(order, report, Budget(seconds, memory)).run()
    except (CannotCheck, Exhausted) as reason:
        report.unchecked.append(str(reason))
    report.seconds = time.monotonic() - begin
    return report


class _Validation:
    def __init__(self, order: Order, report: Report, budget: Budget) -> None:
        self.order, self.report, self.budget = order, report, budget
        self.task, self.program, self.marks = order.task, order.lowered.program, order.lowered.marks
        self.places = {label.name: i for i, label in enumerate(self.program.labels.state)}
        self.shapes = {label.name: label.shape for label in self.program.labels.state}
        self.own = {name for turn in self.marks.turns for name in turn.before}  # parameters and buffers
        self.rows: list[int] = []  # samples read so far
        self.chance = torch.Generator().manual_seed(1)
        self.narrow = any(getattr(operator, "bfloat16", False) for operator in self.program.operators)
        self.casts: list[Callable[[], None]] = []  # pending comparisons of types
        names = [name for turn in self.marks.turns for name in turn.gradients]
        self.frozen_steps = frozen_of(self.task, names)
        self.coupled, self.trained = coupled_of(self.task), trained_of(self.task, self.marks.turns)

    def run(self) -> None:
        first = self.order.before + 1
        named = dict(zip(self.places, self.order.state, strict=True))
        self._raise(check_weights(self.task) or check_start(self.task, named, first))
        warn_of_padding(self.task, [*map(self._rows, self._steps_of_rows(first))], self.budget.seconds)
        before = self._all_steps(first)
        self.report.samples = check_samples(self.task, self.rows, self.budget)
        if changed := held_by(self.task).changed(before):
            raise ValidationError(
                f"{changed[0]} has changed after the compared steps{_and_more(changed)}, but a program does "
                "not carry it to the next step; make it a buffer of the model, draw it with torch in the loss, or "
                "remove it (a log: the run has all losses)"
            )

    def _all_steps(self, first: int) -> Held:
        """Returns the state held outside after the first step, which may fill caches."""
        before = held_by(self.task)
        self._steps(first, list(self.order.state))
        for compare_types in self.casts:
            compare_types()
        if self.order.steps > first:
            before = held_by(self.task)
            self._steps(first + 1, self._moved_state(), later=True)
        return before

    def _steps(self, step: int, state: list[T], later: bool = False) -> None:
        """Compare all stages at a step; the optimizers also at their later steps, if `later`."""
        if POSITION in self.places:
            state[self.places[POSITION]] = torch.tensor([self._position(step)], dtype=torch.int32)
        for number, turn in enumerate(self.marks.turns):
            flats = self._gradients(number, turn, step, state)
            self._clipping(turn, step, state, flats)
            for each in self._optimizer_steps(number) if later else [step]:
                if each != step and self.frozen_steps:
                    self._clipping(turn, each, state, flats)
                self._optimizer(number, turn, each, state, flats)
        if self.task.average is not None:
            self._average(step, state, later)
        self._raise(self._read_on(step, state))
        self.report.steps.append(step)

    def _read_on(self, step: int, state: Sequence[T]) -> Differs | None:
        """The difference if a step does not leave the read position of the next step."""
        if POSITION not in self.places:
            return None
        ref, due = self.program.sources[self.places[POSITION]].ref, self._position(step + 1)
        ours = int(self._evaluation(step, state).wanted([ref])[ref][0])
        detail = f"the program continues after sample {ours}, sample {due} is expected"
        return Differs("batches", POSITION, step, 0.0, 0.0, detail) if ours != due else None

    def _raise(self, found: Differs | None) -> None:
        if found is not None:
            raise ValidationError(str(found), found)

    # ---- states ----

    def _position(self, step: int) -> int:
        start = int(self.order.state[self.places[POSITION]][0])
        return position_after(self.task, start, step - self.order.before - 1)

    def _moved_state(self) -> list[T]:
        """The state with trained weights and averages perturbed by about 1 %."""
        state = list(self.order.state)
        trained = {name for turn in self.marks.turns for name in turn.gradients}
        for name in [*trained, *(f"average.{name}" for name in trained)]:
            if name in self.places:
                old = state[self.places[name]]
                size = float(old.square().mean().sqrt()) or 0.1
                state[self.places[name]] = old + 0.02 * size * (self._uniform(old.shape) - 0.5)
        return state

    def _uniform(self, shape: Sequence[int]) -> T:
        return torch.rand(tuple(shape), generator=self.chance)

    def _evaluation(self, step: int, state: Sequence[T], **how: Any) -> Evaluation:
        lowered = self.order.lowered
        return Evaluation(self.program, self.marks, lowered.data, state, self.order.seed, step, self.budget, **how)

    # ---- loss and gradients ----

    def _gradients(self, number: int, turn: Turn, step: int, state: Sequence[T]) -> dict[Ref, T]:
        """Compare the gradients; returns the program's flat tensors of them, before and after clipping."""
        values = {"loss": turn.loss, **{f"gradient.{n}": v for n, v in turn.gradients.items() if v is not None}}
        values |= {f"buffer.{n}": v for n, v in turn.after.items() if v is not None}
        clipped = [v for v in turn.clipped.values() if v is not None]
        wanted = [*values.values(), *turn.before.values(), *clipped]
        evaluation = self._evaluation(step, state)
        flats = evaluation.wanted(_refs(wanted))
        rows = self._rows(step)
        ours = {name: evaluation.value(value, flats) for name, value in values.items()}
        before = {name: evaluation.value(value, flats) for name, value in turn.before.items()}
        self.rows += rows.tolist()
        batches = [self.task.samples(part) for part in rows.split(self.task.batch)]

        def play(dtype: torch.dtype = torch.float64, shadows: Shadows | None = None) -> user.Side:
            draws = [Drawn(batch, self.order.seed, step) for batch in turn.draws]
            loss = self.task.losses[number]
            return user.run_user(
                partial(user.gradients, self.task, loss, before, batches, draws, self.budget, dtype, shadows)
            )

        def again(**how: Any) -> Tensors:
            other = self._evaluation(step, state, **how)
            tensors = other.wanted(_refs(values.values()))
            return {name: other.value(value, tensors) for name, value in values.items()}

        theirs = play()
        rounded = lambda: play(torch.float32).exact if self.narrow else theirs.rounded  # noqa: E731
        rungs = Rungs(lambda: (again(dtype=torch.float32), rounded()), lambda: again(moved=step))
        ours |= dict.fromkeys(self._untrained(number, turn, theirs))
        found = compare("loss and gradients", step, ours, theirs.exact, rungs, self.report.tally)
        if found is not None:
            self.budget = Budget(LONGEST)
            once_more = partial(place_of, found.name, theirs.exact, ours, self.task.model)
            where = once_more(lambda noted: play(shadows=noted), lambda seen: again(seen=seen))
            self._raise(replace(found, where=where))
        if (self.narrow or theirs.narrow) and not self.report.steps:
            made = [tensor for tensor in theirs.exact.values() if tensor is not None]
            self.casts.append(partial(self._types, step, list(state), made, play, again))
        self.report.batches += len(batches)
        return {ref: flats[ref] for ref in _refs([*turn.gradients.values(), *clipped])}

    def _types(self, step: int, state: Sequence[T], made: Sequence[T], play: Any, again: Any) -> None:
        """Compare the types of the first loss's results."""
        types, model = Types(self.program, state, self.order.lowered.data), self.task.model
        self._raise(types.compare_state(step, {**dict(model.named_parameters()), **dict(model.named_buffers())}))
        again(seen=types.add)
        noted = Noted(self.budget)
        with noted.watching(model):
            play(shadows=noted)
        needed = [noted.results[place] for place in sorted(noted.leading_to(made))]
        self._raise(types.compare(needed, step, self.report.tally))

    def _steps_of_rows(self, first: int) -> list[int]:
        """The steps with compared samples: the first, some of all, those near the end of an epoch, and the last."""
        epoch = first + int(self.task.population // (self.task.batch * self.task.accumulate))
        spread = range(first, self.order.steps, max(1, (self.order.steps - first) // ROWS))
        steps = {*range(first, first + ROWS), *spread, *range(epoch - 1, epoch + 3), self.order.steps}
        return sorted(step for step in steps if first <= step <= self.order.steps)

    def _rows(self, step: int) -> T:
        """Check the samples that the program reads in a step; returns their indices."""
        state = list(self.order.state)
        position = 0
        if POSITION in self.places:
            position = self._position(step)
            state[self.places[POSITION]] = torch.tensor([position], dtype=torch.int32)
        rows = rows_of_step(self.task, self.order.seed, step, position, self.marks.row_draws)
        if self.marks.rows is not None:
            evaluation = self._evaluation(step, state)
            ours = evaluation.value(self.marks.rows, evaluation.wanted(_refs([self.marks.rows])))
            if not torch.equal(ours, rows):
                wrong = int((ours != rows).int().argmax())
                detail = f"the program reads sample {int(ours[wrong])}, sample {int(rows[wrong])} is expected"
                self._raise(Differs("batches", f"row {wrong}", step, 0.0, 0.0, detail))
        return rows

    def _untrained(self, number: int, turn: Turn, theirs: user.Side) -> Iterator[str]:
        """Parameters of this loss that get a gradient only in torch."""
        own = owned(self.task)[number]
        for name, parameter in self.task.model.named_parameters():
            only = name not in turn.gradients and theirs.exact.get(f"gradient.{name}") is not None
            if only and id(parameter) in own:
                yield f"gradient.{name}"

    def _optimizers(self, number: int) -> Sequence[torch.optim.Optimizer]:
        return self.task.optimizers if len(self.marks.turns) == 1 else [self.task.optimizers[number]]

    # ---- clipping ----

    def _clipping(self, turn: Turn, step: int, state: Sequence[T], flats: Mapping[Ref, T]) -> None:
        """Compare the clipping of the gradients, and of gradients scaled to the other side of the limit."""
        if self.task.clip is None and self.task.clip_value is None:
            return
        for scale in (1.0, self._other_scale(turn, flats, step, state)):
            given = {r.index: scale * flats[r] for r in _refs(turn.gradients.values()) if r.cls is RefClass.OPERATOR}
            evaluation = self._evaluation(step, state)
            found = evaluation.wanted(_refs([*turn.clipped.values(), *turn.gradients.values()]), given)
            raw = {n: evaluation.value(v, found) for n, v in turn.gradients.items() if v is not None}
            ours = {n: evaluation.value(v, found) for n, v in turn.clipped.items() if v is not None and n in raw}
            awake = {n: g if self._awake(n, step) else None for n, g in raw.items()}
            theirs = user.clipped(self.task, awake, self.budget).exact
            ours = {name: tensor for name, tensor in ours.items() if name in theirs}
            self._raise(compare("clipping", step, ours, theirs, _NO_RUNGS, self.report.tally))

    def _other_scale(self, turn: Turn, flats: Mapping[Ref, T], step: int, state: Sequence[T]) -> float:
        evaluation = self._evaluation(step, state)
        known = [evaluation.value(v, flats) for v in turn.gradients.values() if v is not None]
        norm = float(torch.stack([torch.linalg.vector_norm(g) for g in known]).norm())
        limit = self.task.clip if self.task.clip is not None else self.task.clip_value
        return (3.0 if norm < limit else 0.3) * limit / norm if norm else 1.0

    def _awake(self, name: str, step: int) -> bool:
        return not any(step in steps for steps in self.frozen_steps.get(name, ()))

    # ---- optimizers ----

    def _optimizer_steps(self, number: int) -> list[int]:
        """The steps to compare: one of each form, the edges of frozen steps, bends of the learning rates, and some
        between."""
        first, last = self.order.before + 1, self.order.steps
        frozen = [steps for ranges in self.frozen_steps.values() for steps in ranges]
        edges = [e for r in frozen for e in (r.start - 1, r.start, r.stop - 1, r.stop)]
        chosen = {first + 1, first + 2, min(first + 9, last), min(last // 2, LATEST), *edges, *self.marks.forms}
        for optimizer in self._optimizers(number):
            chosen |= steps_of_rates(coupled_with(self.coupled, optimizer), optimizer, self._rates(optimizer), last)
        return sorted(step for step in chosen if first < step <= last)

    def _optimizer(self, number: int, turn: Turn, step: int, state: list[T], flats: Mapping[Ref, T]) -> None:
        evaluation = self._evaluation(step, state)
        gradients = {n: evaluation.value(v, flats) for n, v in turn.clipped.items() if v is not None}
        for optimizer in self._optimizers(number):
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            mine = [name for i, name in self.trained.items() if i in held and name in gradients]
            coupled = coupled_with(self.coupled, optimizer)
            by_rule = self.task.optimizers.index(optimizer) not in self.marks.played
            at = user.run_user(partial(
                user.AtStep, coupled, optimizer, by_rule, self.trained, self.frozen_steps, self._rates, step,
                self.budget,
            ))  # fmt: skip
            for chunk in user.chunks(mine, self.shapes):
                self._update(at, chunk, gradients, step, state, flats)

    def _update(
        self,
        at: user.AtStep,
        names: Sequence[str],
        gradients: Tensors,
        step: int,
        state: list[T],
        flats: Mapping[Ref, T],
    ) -> None:
        """Compare the optimizer's step of these parameters, at this scale of their slots."""
        for signed in (True, False):
            slots = {name: self._slots(at, name, gradients[name], state, signed) for name in names}
            filled = list(state)
            for name in names:
                for slot, value in slots[name].items():
                    filled[self.places[f"{slot}.{name}"]] = value.reshape(-1)
            places = {n: self.places[n] for name in names for n in (name, *(f"{s}.{name}" for s in slots[name]))}
            ours = self._after(places, step, filled, flats)
            if all(bool(t.isfinite().all()) for t in ours.values()):
                break
        old = {n: filled[p].reshape(self.shapes[n]).to(torch.float64) for n, p in places.items()}
        values = {name: old[name] for name in names}
        given = {name: {s: v.to(torch.float64) for s, v in slots[name].items()} for name in names}
        theirs = user.run_user(partial(at.stepped, values, gradients, given, self.budget)).exact
        found = compare_updates("optimizer", step, ours, theirs, old, self.report.tally)
        self._raise(found and replace(found, where=step_of(at.optimizer)))

    def _after(self, places: Mapping[str, int], step: int, state: Sequence[T], flats: Mapping[Ref, T]) -> dict[str, T]:
        """The program's new values of these state tensors, from the clipped gradients."""
        sources = {name: self.program.sources[place].ref for name, place in places.items()}
        given = {ref.index: flat for ref, flat in flats.items() if ref.cls is RefClass.OPERATOR}
        found = self._evaluation(step, state).wanted(sources.values(), given)
        return {name: found[ref].reshape(self.shapes[name]) for name, ref in sources.items()}

    def _slots(self, at: user.AtStep, name: str, gradient: T, state: Sequence[T], signed: bool) -> dict[str, T]:
        """The slots of a parameter: the initial ones, or random ones at the scale of its gradient or of its square, not
        near 0. A mean of squares is greater than the square of a mean, as in every run: the root of their difference
        has no digits where they are equal (RMSprop with `centered`)."""
        found, fresh = {}, not at.begun(name)
        for full, place in self.places.items():
            slot, _, owner = full.partition(".")
            if owner != name or slot == "average" or full in self.own:
                continue
            if fresh:
                value = state[place].reshape(self.shapes[full])
                fill = self.marks.fills.get(full)
                found[slot] = value if fill is None else torch.full(value.shape, fill, dtype=torch.float64)
                continue
            size = float(gradient.square().mean().sqrt()) or 1e-3
            squares = at.is_square(slot)
            drawn = self._uniform(self.shapes[full])
            value = size * size * (2.5 + drawn) if squares else size * (0.5 + drawn)
            sign = 1 - 2 * (self._uniform(self.shapes[full]) < 0.5).float() if signed and not squares else 1
            found[slot] = value * sign
        return found

    def _rates(self, optimizer: torch.optim.Optimizer) -> Callable[[int], list[float]] | None:
        schedule = self.order.schedule
        if schedule is None:
            return None
        base = self.task.optimizers[0].param_groups[0]["lr"]
        shares = [1.0 if g["lr"] == base else float(g["lr"]) / base for g in optimizer.param_groups]
        return lambda step: [double(schedule.rate(step, self.order.steps) * Fraction(share)) for share in shares]

    # ---- average ----

    def _average(self, step: int, state: Sequence[T], later: bool) -> None:
        """Compare the average at a step, and the average of its new weights at later steps."""
        names = [name for turn in self.marks.turns for name in turn.gradients]
        sources = {n: self.program.sources[self.places[n]].ref for n in (*names, *(f"average.{n}" for n in names))}
        new = self._evaluation(step, state).wanted([sources[n] for n in names])
        given = {ref.index: flat for ref, flat in new.items() if ref.cls is RefClass.OPERATOR}
        old = {n: state[self.places[n]].reshape(self.shapes[n]).to(torch.float64) for n in sources}
        last = self.order.steps
        for each in sorted({step, min(step + 1, last), max(last // 2, step), last}) if later else [step]:
            found = self._evaluation(each, state).wanted(sources.values(), given)
            tensors = {n: found[ref].reshape(self.shapes[n]) for n, ref in sources.items()}
            ours = {f"average.{n}": tensors[f"average.{n}"] for n in names}
            before, after = {n: old[f"average.{n}"] for n in names}, {n: tensors[n] for n in names}
            theirs = user.averaged(self.task.average, before, after, each).exact
            self._raise(compare_updates("average", each, ours, theirs, old, self.report.tally))


def _and_more(changed: Sequence[str]) -> str:
    return f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""


def _refs(values: Iterable[Value | None]) -> list[Ref]:
    return list({v.ref: None for v in values if v is not None and not v.is_immediate})


_NO_RUNGS = Rungs(lambda: ({}, {}), dict)

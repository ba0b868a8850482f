"""Part of a training that records some steps with all that they were computed from, for ``gym-trl check``."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gym_trl.grpo import trl_versions
from gym_trl.grpo.credit.columns import turn_row
from gym_trl.grpo.credit.estimators import ESTIMATORS, RAE
from gym_trl.grpo.credit.turn_credit import CreditPart
from gym_trl.grpo.parts.history import SegmentRows
from gym_trl.grpo.parts.part import Call, Part
from gym_trl.grpo.planned_rows import Planned, game_of
from gym_trl.grpo.trainer_parts import Batch, TrainerPart
from gym_trl.records.json_lines import plain
from gym_trl.records.schema import as_record
from gym_trl.training.step_file import (
    ROW_ARRAYS,
    VERSION,
    Ragged,
    RoleMean,
    StepAbout,
    StepCredit,
    StepSettings,
    pack_step,
)
from gym_trl.types import EpisodeResult

OnStep = Callable[[int, int, bytes], None]
"""Function that keeps the content of a file, of a step and a call."""
_OF_TOKENS = {
    "row_sampled": "sampling_per_token_logps",
    "row_old": "old_per_token_logps",
    "row_reference": "ref_per_token_logps",
    "row_ratios": "importance_sampling_ratio",
}


class _Played(NamedTuple):
    """Rollout of this process that is recorded."""

    call: Call
    rows: Sequence[Planned]
    episodes: Sequence[EpisodeResult]


class RecordSteps(Part):
    """Part that records the first step and then one in ``every``: all its rows, and what they were computed from.

    ::

        spec = GymSpec("TrlEnv/Wordle-v0", parts=[RecordSteps(50, keep)])

    A step is counted by its rollout, so with several steps per rollout it is one rollout in ``every``. It should be
    the last part, because it records what the others have made.

    Args:
        every: Distance of the recorded rollouts.
        on_step: Function that keeps a file; it is called on the first process.
        about: Common fields of the records, by the names of ``as_record``'s arguments.
    """

    name: ClassVar[str] = "full_record_every"

    def __init__(self, every: int, on_step: OnStep, **about: Any) -> None:
        self.every, self.on_step, self.about = every, on_step, about
        self.played: _Played | None = None
        """Rollout that is recorded as soon as it is scored."""

    def trainer_part(self) -> "StepRows":
        """Return a new part for one trainer."""
        return StepRows(self)

    def columns(self, rows: Sequence[Planned], episodes: Sequence[EpisodeResult], call: Call) -> dict[str, list[Any]]:
        """Keep the rollout if it is recorded, and add no column."""
        due = call.trainer is not None and call.place.generation % self.every == 0
        self.played = _Played(call, rows, episodes) if due else None
        return {}


class StepRows(TrainerPart):
    """Part of one trainer that records the rows of its loss."""

    name: ClassVar[str] = "full_record_every"

    def __init__(self, steps: RecordSteps) -> None:
        self._steps = steps

    def rewards(self, batch: Batch, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Keep the rewards of this process's rows."""
        if self._steps.played is not None and batch.trainer.model.training:
            first = batch.trainer.accelerator.process_index * len(inputs)
            batch.notes[self] = rewards[first : first + len(inputs)].tolist()
        return rewards

    def scored(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Write the file, on the first process."""
        from accelerate.utils import gather_object

        played, self._steps.played = self._steps.played, None
        if played is None or self not in batch.notes:
            return columns
        place, group = played.call.place, played.call.group_size
        mine = _episodes(played, batch.notes.pop(self)), _records(played, self._steps.about), _rows(columns)
        parts = gather_object([mine])
        if batch.trainer.accelerator.is_main_process:
            about = _about(batch, played, columns, [len(episodes) for episodes, _, _ in parts], group)
            episodes = [one for own, _, _ in parts for one in own]
            records = [one for _, own, _ in parts for one in own]
            rows = {name: [one for _, _, own in parts for one in own[name]] for name in mine[2]}
            self._steps.on_step(place.step + 1, place.call, pack_step(about, episodes, records, rows))
        return columns


def _episodes(played: _Played, rewards: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    call = played.call
    return [
        {
            "number": row.number,
            "attempt": row.attempt,
            "sampling_seed": row.sampling_seed(call.seed, call.place),
            "rewards": list(paid),
            **plain(turn_row(episode)._asdict()),
        }
        for row, episode, paid in zip(played.rows, played.episodes, rewards, strict=True)
    ]


def _records(played: _Played, about: Mapping[str, Any]) -> list[Any]:
    place, size = played.call.place, played.call.group_size
    step = {"step": place.step + 1, "split": place.split, "greedy": False, "tokens": True, **about}
    records = []
    for row, episode in zip(played.rows, played.episodes, strict=True):
        group, attempt = divmod(row.number, size)
        game = game_of(episode, attempt, played.call.seats)
        records.append(as_record(episode, group=group, attempt=attempt, game=game, **step))
    return records


def _rows(columns: Mapping[str, Any]) -> dict[str, Ragged]:
    """Return the values of each row without padding."""

    def cut(values: Any, mask: Any) -> Ragged:
        pairs = zip(values.float().cpu().numpy(), mask.bool().cpu().numpy(), strict=True)
        return [row[kept] if len(row) == len(kept) else row for row, kept in pairs]

    prompt, completion = columns["prompt_mask"], columns["completion_mask"]
    advantages = columns["advantages"]
    arrays = {
        "row_prompt_ids": _ids(columns["prompt_ids"], prompt),
        "row_completion_ids": _ids(columns["completion_ids"], completion),
        "row_mask": _ids(completion * columns.get("tool_mask", 1), completion),
        "row_advantages": cut(advantages if advantages.dim() == 2 else advantages[:, None], completion),
    }
    for name, column in _OF_TOKENS.items():
        if columns.get(column) is not None:
            arrays[name] = cut(columns[column], completion)
    return {name: [row.astype(ROW_ARRAYS[name]) for row in rows] for name, rows in arrays.items()}


def _ids(values: Any, mask: Any) -> Ragged:
    pairs = zip(values.cpu().numpy(), mask.bool().cpu().numpy(), strict=True)
    return [np.asarray(row[kept]) for row, kept in pairs]


def _about(
    batch: Batch, played: _Played, columns: Mapping[str, Any], rows_by_process: list[int], group: int
) -> StepAbout:
    trainer, place, limits = batch.trainer, played.call.place, played.call.limits
    template, options = trl_versions.chat_options(trainer)
    tokenizer = trl_versions.tokenizer_of(trainer)
    text = template or tokenizer.chat_template
    items = columns.get("num_items_in_batch")
    return {
        "version": VERSION,
        "step": place.step + 1,
        "call": place.call,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "generation": place.generation,
        "seed": played.call.seed,
        "rows_by_process": rows_by_process,
        "group_size": group,
        "functions": list(trainer.reward_func_names),
        "weights": trainer.reward_weights.tolist(),
        **_credit(trainer),
        "masks_cut_off": trainer.gym_trl.masks_cut_off,
        "segments": any(isinstance(part, SegmentRows) for part in trainer.gym_trl.parts),
        "items": None if items is None else float(items),
        "template": text if isinstance(text, str) else None,
        "template_options": plain({**options, **played.call.config.chat_template_kwargs}),
        "end_ids": trl_versions.end_ids(trainer),
        "max_tokens_per_turn": limits.tokens_per_turn,
        "max_tokens": limits.tokens,
        "max_context": limits.context,
        "settings": plain({name: vars(trainer.args)[name] for name in StepSettings.__annotations__}),
    }


def _credit(trainer: Any) -> StepCredit:
    """Return the estimator of credit per turn, with the baselines that it has compared with."""
    for part in trainer.gym_trl.parts:
        if not isinstance(part, CreditPart):
            continue
        roles = part.credit.roles
        if roles is None:
            names = (name for name, one in ESTIMATORS.items() if one is part.credit.estimator)
            return StepCredit(credit=next(names, "function"), role_decay=None, role_means=[])
        means = [
            RoleMean(role=name, before=roles.before.get(name, 0.0), after=mean) for name, mean in roles.state.items()
        ]
        return StepCredit(credit=RAE, role_decay=roles.decay, role_means=means)
    return StepCredit(credit=None, role_decay=None, role_means=[])

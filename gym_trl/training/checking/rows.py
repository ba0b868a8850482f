"""Stages of the rows of a step's loss: ids, masks and segments, and advantages, of the episodes alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError, described
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import EPISODE, ESTIMATORS, RAE, Estimator, TurnRewards, scales
from gym_trl.grpo.credit.groups import Member, compared
from gym_trl.grpo.credit.role_baselines import RoleBaselines
from gym_trl.grpo.credit.turn_credit import TurnCredit
from gym_trl.records.schema import Record
from gym_trl.training.checking.step import (
    CheckedStep,
    Difference,
    Found,
    UncheckedError,
    first_difference,
    is_scored,
)
from gym_trl.training.step_file import Ragged, StepAbout, StepEpisode
from gym_trl.types import StopReason

Floats = NDArray[np.float64]
TOLERANCE = 1e-4
"""Largest difference of an advantage, relative to its size if that is above 1: the trainer computes in 32 bits."""
_EPSILON = 1e-4
"""Added to a deviation before dividing by it, as in TRL."""
_PRECISION = float(np.finfo(np.float32).eps)
_BY_ROWS = ("dr_grpo", "grpo", "luspo", "sapo")
_BY_TOKENS = ("grpo", "sapo")


@dataclass(frozen=True)
class ExpectedRow:
    """Row that an episode, or a segment of it, is to be in the loss."""

    episode: int | None
    """Index of the episode; ``None`` for a row that only fills the batch."""
    start: int
    """Index of its first id in the episode's completion."""
    prompt: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float | None]


def expected_rows(step: CheckedStep) -> list[ExpectedRow]:
    """Return the rows that a step's episodes are to be, those of each process filled up to the recorded number.

    Raises:
        UncheckedError: The step is not recorded as a whole.
    """
    about, _, rows = step.full()
    expected: list[ExpectedRow] = []
    per_process = len(rows["row_prompt_ids"]) // len(about["rows_by_process"])
    filler = about["end_ids"][0] if about["end_ids"] else 0
    ends = [*accumulate(about["rows_by_process"], initial=0)]
    for number, (first, last) in enumerate(pairwise(ends), start=1):
        for index in range(first, last):
            expected += _rows_of(index, step.records[index], about, filler)
        expected += [ExpectedRow(None, 0, [filler], [filler], [0], [0.0])] * (number * per_process - len(expected))
    return expected


def _rows_of(index: int, record: Record, about: StepAbout, filler: int) -> Iterator[ExpectedRow]:
    """Yield the rows of an episode; one masked token for an unscored one."""
    ids, mask, prompt = record["completion_ids"] or [], record["mask"] or [], record["prompt_ids"] or []
    logprobs = record["logprobs"] or []
    scored = is_scored(record)
    if not ids or (not scored and record["images"] is not None):
        prompt = [filler]
    if not scored:
        yield ExpectedRow(index, 0, prompt, [filler], [0], [0.0])
        return
    if about["masks_cut_off"] and StopReason(record["stop_reason"]).cut_off:
        mask = [0] * len(mask)
    borders = (record["segments"] or []) if about["segments"] else []
    starts = [0, *(border["stop"] for border in borders)]
    stops = [*(border["start"] for border in borders), len(ids)]
    prompts = [prompt, *(ids[border["start"] : border["stop"]] for border in borders)]
    for begin, start, stop in zip(prompts, starts, stops, strict=True):
        yield ExpectedRow(index, start, begin, ids[start:stop], mask[start:stop], logprobs[start:stop])


def check_rows(step: CheckedStep) -> Iterator[Found]:
    """Yield rows whose ids, masks or log-probabilities are not those of their episodes' segments."""
    about, _, rows = step.full()
    expected = expected_rows(step)
    count = len(rows["row_prompt_ids"])
    if len(expected) != count:
        yield Difference.of(None, "", "the number of rows", len(expected), count)
        return
    for number, row in enumerate(expected):
        yield from _ids_of(row, number, rows)
        yield from _numbers_of(row, number, rows)
    items = float(sum(sum(row.mask) for row in expected))
    if about["items"] is not None and about["items"] != items:
        yield Difference.of(None, "", "the number of trained tokens", items, about["items"])


def _ids_of(row: ExpectedRow, number: int, rows: Mapping[str, Ragged]) -> Iterator[Found]:
    """Yield differences of the ids and the mask of a row."""
    for what, now, name in (
        ("the prompt", row.prompt, "row_prompt_ids"),
        ("the ids", row.ids, "row_completion_ids"),
        ("the mask", row.mask, "row_mask"),
    ):
        then = rows[name][number].tolist()
        if list(now) != then:
            if (at := first_difference(now, then)) < min(len(now), len(then)):
                yield Difference.of(row.episode, f"row {number}: token {at}", what, now[at], then[at])
            else:
                yield Difference.of(row.episode, f"row {number}", f"the length of {what}", len(now), len(then))


def _numbers_of(row: ExpectedRow, number: int, rows: Mapping[str, Ragged]) -> Iterator[Found]:
    """Yield differences of the sampled log-probabilities of a row, and arrays of a wrong length."""
    if "row_sampled" in rows:
        logprobs = np.array([np.nan if one is None else one for one in row.logprobs], dtype=np.float32)
        theirs = rows["row_sampled"][number]
        if len(logprobs) != len(theirs) or not np.array_equal(logprobs, theirs, equal_nan=True):
            yield _differing(row, number, logprobs, theirs)
    for name in ("row_old", "row_reference", "row_ratios", "row_advantages"):
        lengths = {len(row.ids)} if name in ("row_old", "row_reference") else {1, len(row.ids)}
        if name in rows and len(rows[name][number]) not in lengths:
            then = len(rows[name][number])
            yield Difference.of(row.episode, f"row {number}", f"the length of {name}", len(row.ids), then)


def _differing(row: ExpectedRow, number: int, now: Any, then: Any) -> Difference:
    """Return the first difference of the sampled log-probabilities of a row."""
    what = "the sampled log-probability"
    if len(now) != len(then):
        return Difference.of(row.episode, f"row {number}", f"the length of {what}", len(now), len(then))
    at = int(np.flatnonzero((now != then) & ~(np.isnan(now) & np.isnan(then)))[0])
    return Difference.of(row.episode, f"row {number}, token {at}", what, float(now[at]), float(then[at]))


# ---------------------------------------------------------------------------------------------------------------------
# Advantages
# ---------------------------------------------------------------------------------------------------------------------


def check_advantages(step: CheckedStep) -> Iterator[Found]:
    """Yield advantages that the rewards do not have: of each episode, or with credit per turn of each turn."""
    expected = expected_rows(step)
    weighted = list(zip(expected, row_weights(step, expected), strict=True))
    if step.full()[0]["credit"] is None:
        yield from _of_episodes(step, weighted)
    else:
        judged = _judged(step)
        yield from _of_turns(step, weighted, turn_advantages(step, judged))
        if isinstance(judged.estimator, RoleBaselines):
            yield from _role_means(step, judged.estimator, judged.groups)


def _of_episodes(step: CheckedStep, weighted: Sequence[tuple[ExpectedRow, float]]) -> Iterator[Found]:
    """Yield rows whose advantage is not that of their episode, times their weight."""
    about, episodes, rows = step.full()
    advantages, rounding = episode_advantages(about, episodes)
    for number, (row, weight) in enumerate(weighted):
        now = 0.0 if row.episode is None else float(advantages[row.episode]) * weight
        then = rows["row_advantages"][number]
        least = TOLERANCE if row.episode is None else TOLERANCE + float(rounding[row.episode])
        apart = np.flatnonzero(~np.isclose(then, now, rtol=TOLERANCE, atol=least))
        if len(apart):
            yield Difference.of(row.episode, f"row {number}", "the advantage", now, float(then[apart[0]]))


def _of_turns(
    step: CheckedStep, weighted: Sequence[tuple[ExpectedRow, float]], advantages: Sequence[Sequence[float]]
) -> Iterator[Found]:
    """Yield rows with a token whose advantage is not that of its turn, times the row's weight."""
    _, episodes, rows = step.full()
    for number, (row, weight) in enumerate(weighted):
        then = rows["row_advantages"][number]
        if len(then) != len(row.ids):
            yield Difference.of(row.episode, f"row {number}", "the number of advantages", len(row.ids), len(then))
            continue
        by_token = np.zeros(len(row.ids))
        spans = [] if row.episode is None else episodes[row.episode]["turn_spans"]
        values = [] if row.episode is None else advantages[row.episode]
        for (start, stop), value in zip(spans, values, strict=False):
            by_token[max(0, start - row.start) : max(0, stop - row.start)] = value * weight
        apart = np.flatnonzero(~np.isclose(then, by_token, rtol=TOLERANCE, atol=TOLERANCE))
        if len(apart):
            at = int(apart[0])
            turn = next((turn for turn, (_, stop) in enumerate(spans) if at + row.start < stop), None)
            place = f"row {number}, token {at}" if turn is None else f"turn {turn} (row {number}, token {at})"
            yield Difference.of(row.episode, place, "the advantage", float(by_token[at]), float(then[at]))


def row_weights(step: CheckedStep, expected: Sequence[ExpectedRow]) -> list[float]:
    """Return the weight of each row in the loss, which is 1 where each row is an episode."""
    about, _, rows = step.full()
    if not about["segments"]:
        return [1.0] * len(expected)
    loss, tokens = about["settings"]["loss_type"], [sum(row.mask) for row in expected]
    whole: dict[int | None, int] = {}
    for row, count in zip(expected, tokens, strict=True):
        whole[row.episode] = whole.get(row.episode, 0) + count
    by_process = len(rows["row_prompt_ids"]) / len(about["rows_by_process"])
    share = by_process / about["rows_by_process"][0] if loss in _BY_ROWS else 1.0
    return [
        0.0 if row.episode is None else share * (count / max(1, whole[row.episode]) if loss in _BY_TOKENS else 1.0)
        for row, count in zip(expected, tokens, strict=True)
    ]


def _rewards(about: StepAbout, episodes: Sequence[StepEpisode]) -> Floats:
    """Return the rewards by episode and function, NaN where there is none."""
    rewards = [[np.nan if paid is None else paid for paid in one["rewards"]] for one in episodes]
    return np.array(rewards, dtype=np.float64).reshape(len(episodes), len(about["functions"]))


def _totals(about: StepAbout, rewards: Floats) -> Floats:
    """Return the weighted sum of each episode's rewards, NaN for an unscored one."""
    totals: Floats = np.nansum(rewards * np.array(about["weights"]), axis=1)
    totals[np.isnan(rewards).all(axis=1)] = np.nan
    return totals


def episode_advantages(about: StepAbout, episodes: Sequence[StepEpisode]) -> tuple[Floats, Floats]:
    """Return GRPO's advantage of each episode, written out from its formula, and how far rounding may move it.

    An unscored episode has 0. Where all rewards of a group are equal up to the precision of 32 bits, the trainer
    divides what is left of them by little more than 1e-4.

    Raises:
        UncheckedError: The rewards are combined in a way that is not known here.
    """
    settings, size = about["settings"], about["group_size"]
    rewards, how, scale = _rewards(about, episodes), settings["multi_objective_aggregation"], settings["scale_rewards"]
    groups = [slice(first, first + size) for first in range(0, len(rewards), size)]
    if how == "sum_then_normalize" and scale in ("group", "batch", "none"):
        totals = _totals(about, rewards)
        spread = _deviation(totals) if scale == "batch" else None
        parts = [_centred(totals[group], 1.0 - _EPSILON if scale == "none" else spread) for group in groups]
        return _joined(parts)
    if how == "normalize_then_sum":
        normal, moved = np.full_like(rewards, np.nan), np.zeros_like(rewards)
        for group in groups:
            for column in range(rewards.shape[1]):
                normal[group, column], moved[group, column] = _centred(rewards[group, column], None)
        normal[np.isnan(rewards)] = np.nan
        totals = _totals(about, normal)
        advantages, rounding = _centred(totals, None)
        weighted = (moved * np.abs(about["weights"])).sum(axis=1) / (_deviation(totals) + _EPSILON)
        return advantages, rounding + weighted
    raise UncheckedError(f"multi_objective_aggregation={how!r} with scale_rewards={scale!r} is not known")


def _joined(parts: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])


def _centred(values: Floats, spread: float | None) -> tuple[Floats, Floats]:
    """Return values less their mean, in units of ``spread`` or their deviation, and the error of 32 bits in these."""
    scored = values[~np.isnan(values)]
    if not len(scored):
        return np.zeros_like(values), np.zeros_like(values)
    divisor = (_deviation(values) if spread is None else spread) + _EPSILON
    rounding = np.full_like(values, 4 * _PRECISION * np.abs(scored).max() / divisor)
    return np.nan_to_num((values - scored.mean()) / divisor, nan=0.0), rounding


def _deviation(values: Floats) -> float:
    """Return the standard deviation of a sample, of the values that are there."""
    scored = values[~np.isnan(values)]
    return float(scored.std(ddof=1)) if len(scored) > 1 else 0.0


def _estimator(step: CheckedStep) -> Estimator:
    """Return the estimator of the training, with the baselines that it had.

    Raises:
        UncheckedError: It is a function that the run does not name, or its baselines are not recorded.
    """
    about, _, _ = step.full()
    name = about["credit"] or EPISODE
    if name == RAE:
        if about["role_decay"] is None:
            raise UncheckedError("the baselines of credit='rae' are not recorded")
        baselines = RoleBaselines(about["role_decay"])
        baselines.state = {one["role"]: one["before"] for one in about["role_means"]}
        return baselines
    own = None if step.options is None else step.options.credit
    estimator = own if callable(own) and name not in ESTIMATORS else ESTIMATORS.get(name)
    if estimator is None:
        raise UncheckedError("credit per turn is by a function that the run does not name")
    return estimator


class _Judged(NamedTuple):
    """Scored episodes of a step in the groups that are compared, and the estimator that compares them."""

    estimator: Estimator
    groups: list[list[TurnRewards]]
    places: list[list[int]]
    """Indices of the episodes of each group."""


def _judged(step: CheckedStep) -> _Judged:
    about, episodes, _ = step.full()
    estimator = _estimator(step)
    members, turns, places = _members(about, episodes, step.records)
    groups = compared(members, estimator)
    compared_turns = [[turns[one] for one in group] for group in groups]
    return _Judged(estimator, compared_turns, [[places[one] for one in group] for group in groups])


def _role_means(
    step: CheckedStep, baselines: RoleBaselines, groups: Sequence[Sequence[TurnRewards]]
) -> Iterator[Found]:
    """Yield baselines of roles that are not those before, moved by the step's returns."""
    baselines.count(groups)
    recorded = {one["role"]: one["after"] for one in step.full()[0]["role_means"]}
    for role, now in baselines.state.items():
        then = recorded.get(role)
        if then is None or not math.isclose(now, then, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield Difference.of(None, "", f"the baseline of role {role!r:.80} after the step", now, then)


def turn_advantages(step: CheckedStep, judged: _Judged) -> list[list[float]]:
    """Return the advantages of each episode's turns, by the estimator of the training; none for an unscored one.

    Raises:
        UncheckedError: The estimator cannot be called again, or the scale is not known.
    """
    about, episodes, _ = step.full()
    estimated = _estimates(judged.estimator, judged.groups)
    advantages: list[list[float]] = [[] for _ in episodes]
    scale = about["settings"]["scale_rewards"]
    if scale not in ("group", "batch", "none"):
        raise UncheckedError(f"scale_rewards={scale!r} is not known")
    divisors = scales(judged.groups, estimated, scale)  # type: ignore[arg-type]  # checked
    for group, estimates, divisor in zip(judged.places, estimated, divisors, strict=True):
        for place, values in zip(group, estimates, strict=True):
            advantages[place] = [value / divisor for value in values]
    return advantages


def _estimates(estimator: Estimator, groups: Sequence[Sequence[TurnRewards]]) -> list[list[list[float]]]:
    """Return an advantage for each turn of each episode.

    Raises:
        UncheckedError: A user's estimator raises, or returns something else.
    """
    credit = TurnCredit(estimator)
    try:
        return [credit.estimated(group) for group in groups]
    except ConfigError as error:
        raise UncheckedError(f"the estimator of credit per turn does not return a number per turn: {error}") from error
    except Exception as error:
        raise UncheckedError(f"the estimator of credit per turn raises {described(error)}") from error


def _members(
    about: StepAbout, episodes: Sequence[StepEpisode], records: Sequence[Record]
) -> tuple[list[Member], list[TurnRewards], list[int]]:
    """Return the scored episodes with their groups, what their turns were paid, and their indices."""
    rewards = _rewards(about, episodes)
    totals, members, places, turns = _totals(about, rewards), list[Member](), list[int](), list[TurnRewards]()
    paying = [index for index, one in enumerate(about["functions"]) if one == "env_reward"]
    for index, (one, record) in enumerate(zip(episodes, records, strict=True)):
        if np.isnan(totals[index]) or not is_scored(record):
            continue
        row = _turn_row(one)
        try:
            row.check(f"episode {index}")
        except ConfigError as error:
            raise UncheckedError(str(error)) from error
        weight = math.fsum(about["weights"][column] for column in paying if not np.isnan(rewards[index, column]))
        paid = [weight * reward for reward in row.turn_rewards]
        rest = float(totals[index]) - math.fsum(paid)
        if abs(rest) > 1e-5 * max(1.0, math.fsum(map(abs, paid))):
            paid[-1] += rest  # what other functions pay belongs to the last turn
        turns.append(row.turns(paid, weight))
        members.append(Member(index // about["group_size"], row))
        places.append(index)
    return members, turns, places


def _turn_row(one: StepEpisode) -> TurnRow:
    spans = [(start, stop) for start, stop in one["turn_spans"]]
    values: dict[str, Any] = {name: one[name] for name in TurnRow._fields if name != "turn_spans"}  # type: ignore[literal-required]
    return TurnRow(turn_spans=spans, **values)

"""Stages of the rows of a step's loss: ids, masks and segments, and advantages, of the episodes alone."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError, described
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.grpo.credit.estimators import EPISODE, ESTIMATORS, RAE, Estimator
from gym_trl.grpo.credit.groups import Comparison, Member, compared, scaled
from gym_trl.grpo.credit.role_baselines import RoleBaselines
from gym_trl.grpo.credit.turn_credit import paid_member
from gym_trl.training.checking.step import (
    CheckedStep,
    Difference,
    ExpectedRow,
    Found,
    UncheckedError,
    first_difference,
    is_scored,
)
from gym_trl.training.step_file import Ragged, StepAbout, StepEpisode

Floats = NDArray[np.float64]
TOLERANCE = 1e-4
"""Largest difference of an advantage, relative to its size if that is above 1: the trainer computes in 32 bits."""
_EPSILON = 1e-4
"""Added to a deviation before dividing by it, as in TRL."""
_PRECISION = float(np.finfo(np.float32).eps)
_BY_ROWS = ("dr_grpo", "grpo", "luspo", "sapo")
_BY_TOKENS = ("grpo", "sapo")


def check_rows(step: CheckedStep) -> Iterator[Found]:
    """Yield rows whose ids, masks or log-probabilities are not those of their episodes' segments."""
    about, rows, expected = step.full.about, step.full.rows, step.expected
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
    weighted = list(zip(step.expected, row_weights(step), strict=True))
    if step.full.about["credit"] is None:
        yield from _of_episodes(step, weighted)
        return
    estimator = _estimator(step)
    members = _members(step)
    comparisons = _compared([*members.values()], estimator)
    yield from _of_turns(step, weighted, _turn_advantages(step, members, comparisons))
    if isinstance(estimator, RoleBaselines):
        yield from _role_means(step, estimator, comparisons)


def _of_episodes(step: CheckedStep, weighted: Sequence[tuple[ExpectedRow, float]]) -> Iterator[Found]:
    """Yield rows whose advantage is not that of their episode, times their weight."""
    rows = step.full.rows
    advantages, rounding = episode_advantages(step.full.about, step.full.episodes)
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
    episodes, rows = step.full.episodes, step.full.rows
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


def row_weights(step: CheckedStep) -> list[float]:
    """Return the weight of each row in the loss, which is 1 where each row is an episode."""
    about, rows, expected = step.full.about, step.full.rows, step.expected
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
    about = step.full.about
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


def _role_means(step: CheckedStep, baselines: RoleBaselines, comparisons: Sequence[Comparison]) -> Iterator[Found]:
    """Yield baselines of roles that are not those before, moved by the step's returns."""
    baselines.count([one.turns for one in comparisons])
    recorded = {one["role"]: one["after"] for one in step.full.about["role_means"]}
    for role, now in baselines.state.items():
        then = recorded.get(role)
        if then is None or not math.isclose(now, then, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield Difference.of(None, "", f"the baseline of role {role!r:.80} after the step", now, then)


def _turn_advantages(step: CheckedStep, places: Iterable[int], comparisons: Sequence[Comparison]) -> list[list[float]]:
    """Return the advantages of each episode's turns, by the estimator of the training; none for an unscored one.

    Raises:
        UncheckedError: The scale is not known.
    """
    scale = step.full.about["settings"]["scale_rewards"]
    if scale not in ("group", "batch", "none"):
        raise UncheckedError(f"scale_rewards={scale!r} is not known")
    advantages: list[list[float]] = [[] for _ in step.full.episodes]
    for place, values in zip(places, scaled(comparisons, scale), strict=True):  # type: ignore[arg-type]  # checked
        advantages[place] = values
    return advantages


def _compared(members: Sequence[Member], estimator: Estimator) -> list[Comparison]:
    """Return the episodes that are compared with each other, with the advantages of their turns.

    Raises:
        UncheckedError: A user's estimator raises, or returns something else.
    """
    try:
        return compared(members, estimator)
    except ConfigError as error:
        raise UncheckedError(f"the estimator of credit per turn does not return a number per turn: {error}") from error
    except Exception as error:
        raise UncheckedError(f"the estimator of credit per turn raises {described(error)}") from error


def _members(step: CheckedStep) -> dict[int, Member]:
    """Return the scored episodes as members of their groups, by their indices."""
    about, episodes = step.full.about, step.full.episodes
    rewards, members = _rewards(about, episodes), dict[int, Member]()
    totals = _totals(about, rewards)
    paying = [index for index, one in enumerate(about["functions"]) if one == "env_reward"]
    for index, (one, record) in enumerate(zip(episodes, step.records, strict=True)):
        if np.isnan(totals[index]) or not is_scored(record):
            continue
        row = _turn_row(one)
        try:
            row.check(f"episode {index}")
        except ConfigError as error:
            raise UncheckedError(str(error)) from error
        weight = math.fsum(about["weights"][column] for column in paying if not np.isnan(rewards[index, column]))
        members[index] = paid_member(index // about["group_size"], row, weight, float(totals[index]))
    return members


def _turn_row(one: StepEpisode) -> TurnRow:
    spans = [(start, stop) for start, stop in one["turn_spans"]]
    values: dict[str, Any] = {name: one[name] for name in TurnRow._fields if name != "turn_spans"}  # type: ignore[literal-required]
    return TurnRow(turn_spans=spans, **values)

"""Examinations of episodes that were played as in a training: what was measured, and what to change."""

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from gym_trl.evaluation.play import Result, Score
from gym_trl.grpo.credit.estimators import EPISODE, Estimator
from gym_trl.grpo.credit.turn_credit import find_estimator
from gym_trl.grpo.dead_groups import dead_among, scored_member
from gym_trl.text.textify import counted
from gym_trl.training.action_formats import Judge, Reading, Response, candidate_formats, read_again, sample_actions
from gym_trl.types import EpisodeResult, StopReason, Turn, successes_in

# A share below the first number is a problem, below the second a warning. The bounds are the authors' judgement: with
# less than a tenth, most groups of 8 contain no readable action or no difference, so most steps teach nothing.
READABLE = (0.1, 0.9)
SPREAD = (0.1, 0.5)
CUT = 0.1
"""Share of cut turns or episodes above which there is a warning."""
BETTER = 0.1
"""Share of all responses that another format must read in addition to the present one, to be proposed."""
_SOLVED = 0.95
_EXAMPLES = 3


class Verdict(StrEnum):
    """Meaning of a finding for a training."""

    OK = "ok"
    """Nothing to change."""
    WARNING = "warning"
    """A training works, but worse than it could."""
    PROBLEM = "problem"
    """A training would fail or teach nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one examination."""

    name: str
    verdict: Verdict
    got: str
    """Measured values, as text."""
    fix: str = ""
    """Suggested change."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a training that make the change, by name."""
    warm_start: bool = False
    """True if a warm start makes the change."""
    examples: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Measured values, for programs."""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {**asdict(self), "verdict": str(self.verdict), "examples": list(self.examples)}


@dataclass(frozen=True, slots=True)
class Said:
    """Response of the model in an episode that was played."""

    turn: Turn
    tokens: int
    ended: bool
    """The model ended its turn; otherwise a limit on tokens cut it off."""
    response: Response


class Played:
    """Episodes of whole groups, and their responses.

    Args:
        results: Episodes, those of a group next to each other.
        group_size: Number of episodes in a group.
        ends: Token ids that end a response.
    """

    def __init__(self, results: Sequence[EpisodeResult], *, group_size: int, ends: Collection[int]) -> None:
        self.results = results
        starts, successes = range(0, len(results), group_size), successes_in(results)
        self.groups = [results[start : start + group_size] for start in starts]
        self.successes = [successes[start : start + group_size] for start in starts]
        self.said = [said for one in results for said in _responses(one, ends)]
        self.scored = [one for one in results if one.scored]

    def share(self, chosen: Iterable[bool]) -> float:
        """Return the share of true values among the responses; 0 if there are none."""
        return sum(chosen) / max(1, len(self.said))


def _responses(episode: EpisodeResult, ends: Collection[int]) -> Iterable[Said]:
    before: tuple[str, ...] = ()
    for turn in episode.turns:
        ids = episode.completion_ids[turn.start : turn.stop]
        ended = bool(ids) and ids[-1] in ends
        yield Said(turn, len(ids), ended, Response(turn.answer.text, not ended, episode.task, before))
        if turn.action is not None:
            before = (*before, turn.action)


def scored_episodes(played: Played) -> list[Finding]:
    """Report episodes that failed; nothing if there are none."""
    failed = [one for one in played.results if not one.scored]
    if not failed:
        return []
    reasons = Counter(str(one.stop_reason) for one in failed)
    share = len(failed) / len(played.results)
    error = next((one.error for one in failed if one.error), None)
    return [
        Finding(
            name="scored episodes",
            verdict=Verdict.PROBLEM if share > 0.5 else Verdict.WARNING,
            got=f"{len(failed)} of {counted(len(played.results), 'episode')} could not be scored: {_listed(reasons)}",
            fix="check the environment: gym-trl validate",
            examples=() if error is None else (shortened(error),),
            numbers={"unscored": share},
        )
    ]


def readable_actions(played: Played, action_format: str | None, *, cut_actions: str, judge: Judge | None) -> Finding:
    """Report the share of responses with a readable action, and the format that reads the most from the same ones.

    Args:
        played: The episodes.
        action_format: Format that they were played with; ``None`` passes responses on unchanged.
        cut_actions: Treatment of actions that were cut off.
        judge: Asks the environment if it accepts an action. Default: legality is unknown, and only formats with a mark
            are compared.
    """
    name, total = "readable actions", len(played.said)
    if action_format is None:
        return Finding(name=name, verdict=Verdict.OK, got="not read: responses reach the environment unchanged")
    read = [one.turn.action is not None for one in played.said]
    share = played.share(read)
    lost = sorted(
        (one.turn for one in played.said if one.turn.action is None or not one.turn.action_valid),
        key=lambda turn: turn.action is not None,  # unreadable ones first
    )
    legal = played.share(one.turn.action is not None and one.turn.action_valid for one in played.said)
    got = f"{share:.0%} of {counted(total, 'response')} in the format {action_format}; {legal:.0%} are legal actions"
    numbers: dict[str, Any] = {"readable": share, "legal": legal, "responses": total}
    if min(share, legal) >= READABLE[1]:
        return Finding(name=name, verdict=Verdict.OK, got=got, numbers=numbers)
    responses = [one.response for one in played.said]
    actions = _legal_actions(responses, judge)
    formats = [one for one in candidate_formats(actions, marked=judge is None) if one != action_format]
    accept = cut_actions == "accept"
    readings = read_again(formats, responses, judge, accept_cut=accept)
    cuts = [] if accept else read_again(formats, responses, judge, accept_cut=True)
    numbers["formats"] = [asdict(one) for one in readings]
    best, options = _simplest(readings, formats, total), {}
    if best is not None and cuts and cuts[0].useful > best.useful + BETTER * total:
        best, options = _simplest(cuts, formats, total), {"cut_actions": "accept"}
    present = legal if judge is not None else share
    verdict = Verdict.PROBLEM if min(share, legal) < READABLE[0] else Verdict.WARNING
    examples = tuple(shortened(text) for text in dict.fromkeys(turn.answer.text for turn in lost))[:_EXAMPLES]
    if best is not None and best.useful >= (present + BETTER) * total:
        options = {"action_format": best.format, **options}
        fix = f"{written(options)} reads {_reading(best)} from the same responses{_example(best)}"
        return Finding(
            name=name, verdict=verdict, got=got, fix=fix, options=options, examples=examples, numbers=numbers
        )
    fix = (
        "no other format reads more from the same responses: a warm start (gym-trl warm-start), or an example of a "
        "response in --system-prompt"
    )
    return Finding(name=name, verdict=verdict, got=got, fix=fix, warm_start=True, examples=examples, numbers=numbers)


def _legal_actions(responses: Sequence[Response], judge: Judge | None) -> list[str]:
    if judge is None or not responses:
        return []
    tasks = list({one.task.to_json(): one.task for one in responses}.values())
    return sample_actions(judge.env(tasks[0].env_id), [task for task in tasks if task.env_id == tasks[0].env_id])


def _simplest(readings: Sequence[Reading], formats: Sequence[str], total: int) -> Reading | None:
    """Return the first of ``formats`` that reads about as much as the best."""
    enough = max((one.useful for one in readings), default=0) - BETTER / 2 * total
    found = {one.format: one for one in readings if one.useful >= enough}
    return next((found[name] for name in formats if name in found), None)


def _reading(one: Reading) -> str:
    return counted(one.readable, "action") if one.legal is None else counted(one.legal, "legal action")


def _example(one: Reading) -> str:
    return "" if one.example is None else f", such as {one.example[1]!r} from {shortened(one.example[0])!r}"


def group_spread(
    played: Played, *, best: float | None, group_size: int, readable: Verdict, credit: str | Estimator = EPISODE
) -> Finding:
    """Report the share of groups that are not dead: in the others all advantages of the training are 0.

    Args:
        played: The episodes.
        best: Best possible return, if it is known.
        group_size: Number of episodes in a group, for the suggestion.
        readable: Verdict on the readable actions; without these, returns cannot differ.
        credit: Estimator of the advantages; with the default, those are dead whose returns are all the same.
    """
    groups = [[one for one in group if one.scored] for group in played.groups]
    groups = [group for group in groups if len(group) > 1]
    members = [scored_member(number, one) for number, group in enumerate(groups) for one in group]
    dead = dead_among(members, find_estimator(credit))
    returns = [[one.episode_return or 0.0 for one in group] for group in groups]
    spread = [group for number, group in enumerate(returns) if number not in dead]
    share = len(spread) / max(1, len(returns))
    differ = "different returns" if credit == EPISODE else f"turns with an advantage (credit={credit!r})"
    got = f"{len(spread)} of {counted(len(returns), 'group')} of {group_size} have {differ}"
    flat = [returns[number][0] for number in dead]
    if flat:
        got += f"; all members of the others have {', '.join(f'{value:g}' for value in sorted(set(flat))[:4])}"
    outcomes = [set(group) - {None} for group in played.successes]
    mixed = sum(len(one) == 2 for one in outcomes)
    numbers = {"groups": len(returns), "spread": share, "flat_returns": sorted(set(flat)), "mixed": mixed}
    if spread and any(outcomes):
        got += f"; in {mixed} of them some succeed and some do not"
    verdict = graded(share, SPREAD)
    if verdict is Verdict.OK and (mixed or not any(outcomes)):
        return Finding(name="groups with spread", verdict=verdict, got=got, numbers=numbers)
    if verdict is Verdict.OK:
        fix = (
            "only penalties or partial rewards differ, so a training first learns to act legally; take an easier "
            "variant of the environment, a curriculum or a warm start if success stays as it is"
        )
        return Finding(
            name="groups with spread", verdict=Verdict.WARNING, got=got, fix=fix, warm_start=True, numbers=numbers
        )
    if readable is Verdict.PROBLEM:
        fix = "follows from the unreadable actions: change these first"
        return Finding(name="groups with spread", verdict=verdict, got=got, fix=fix, numbers=numbers)
    solved = best is not None and bool(flat) and sum(value >= _SOLVED * best for value in flat) > len(flat) / 2
    if solved and best is not None and best > 0:
        fix = "most groups are solved: take a harder variant of the environment (gym-trl info shows its arguments)"
        return Finding(name="groups with spread", verdict=verdict, got=got, fix=fix, numbers=numbers)
    fix = (
        "take an easier variant of the environment or a curriculum, a warm start, or larger groups "
        f"(--num-generations {2 * group_size})"
    )
    return Finding(name="groups with spread", verdict=verdict, got=got, fix=fix, warm_start=True, numbers=numbers)


def ends_of_turns(played: Played, *, ends: Mapping[int, str], cut_actions: str, max_tokens: int) -> Finding:
    """Report the share of responses that the model itself ended, and the lengths of responses.

    Args:
        played: The episodes.
        ends: Token ids that end a response, with their texts.
        cut_actions: Treatment of actions that were cut off.
        max_tokens: Maximum tokens of a response.
    """
    name, lengths = "length of a turn", [one.tokens for one in played.said]
    ended = played.share(one.ended for one in played.said)
    middle, high = percentile(lengths, 50), percentile(lengths, 95)
    got = (
        f"median {middle}, 95th percentile {high} of at most {max_tokens} tokens; the model ended {ended:.0%} of its "
        "turns, the others were cut off"
    )
    numbers = {"ended": ended, "median": middle, "p95": high, "limit": max_tokens}
    if 1 - ended <= CUT or cut_actions == "accept":
        return Finding(name=name, verdict=Verdict.OK, got=got, numbers=numbers)
    read = played.share(one.turn.action is not None for one in played.said)
    verdict = Verdict.PROBLEM if read < READABLE[0] else Verdict.WARNING
    if ended < 1 - READABLE[1]:
        shown = " or ".join(f"{text!r} (id {id_})" for id_, text in sorted(ends.items()))
        fix = (
            f"the model almost never ends its turn with {shown}: take its chat (instruct) version, warm-start it, or "
            "read actions from cut responses (--cut-actions accept with a small --max-tokens-per-turn)"
        )
        return Finding(name=name, verdict=verdict, got=got, fix=fix, warm_start=True, numbers=numbers)
    options = {"max_tokens_per_turn": 2 * max_tokens}
    fix = f"give turns more room ({written(options)}), or ask for brevity in --system-prompt"
    return Finding(name=name, verdict=verdict, got=got, fix=fix, options=options, numbers=numbers)


def episode_length(played: Played, *, max_completion: int) -> Finding:
    """Report the lengths of episodes and the share that the token budget or the context cut off."""
    name = "length of an episode"
    lengths = [len(one.completion_ids) for one in played.scored]
    prompts = [len(one.prompt_ids) for one in played.scored]
    middle, high = percentile(lengths, 50), percentile(lengths, 95)
    reasons = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW)
    budget, context = (sum(one.stop_reason is reason for one in played.results) for reason in reasons)
    total = max(1, len(played.results))
    got = (
        f"median {middle}, 95th percentile {high} of at most {max_completion} tokens after a prompt of "
        f"{percentile(prompts, 50)}; {budget / total:.0%} cut off there, {context / total:.0%} by the context"
    )
    numbers = {
        "median": middle,
        "p95": high,
        "limit": max_completion,
        "prompt": percentile(prompts, 50),
        "token_limit": budget / total,
        "context_overflow": context / total,
    }
    if (budget + context) / total <= CUT:
        return Finding(name=name, verdict=Verdict.OK, got=got, numbers=numbers)
    verdict = Verdict.PROBLEM if (budget + context) / total > READABLE[1] else Verdict.WARNING
    if context > budget:
        fix = (
            "the model's context is too short for these episodes: shorten turns (--max-tokens-per-turn) or observations"
        )
        return Finding(name=name, verdict=verdict, got=got, fix=fix, numbers=numbers)
    options = {"max_completion_length": 2 * max_completion}
    fix = f"give episodes more room ({written(options)}), or shorten turns with --max-tokens-per-turn"
    return Finding(name=name, verdict=verdict, got=got, fix=fix, options=options, numbers=numbers)


def scores(played: Played, known: Mapping[str, float | None]) -> Finding:
    """Report success and return beside those of random play, the blind baseline and perfect play.

    Args:
        played: The episodes.
        known: Scores by name, as ``gym_trl.training.run.references`` returns them.
    """
    score = Score.of(map(Result.of, played.results))
    own = {"success": score.success, "return": score.mean_return}
    lines = []
    for what, value in own.items():
        others = [
            f"{label} {known[f'{what}_{key}']:.3f}{_sample(known.get(f'episodes_{key}'))}"
            for key, label in (("random", "random"), ("blind", "blind baseline"), ("optimum", "optimum"))
            if known.get(f"{what}_{key}") is not None
        ]
        if value is not None:
            lines.append(f"{what} {value:.3f}{_sample(score.episodes)}" + (f" ({', '.join(others)})" if others else ""))
    best, reached = known.get("success_optimum"), score.success
    numbers = {**own, **known}
    if best and reached is not None and reached >= _SOLVED * best:
        fix = "there is little left to learn: take a harder variant of the environment"
        return Finding(name="score", verdict=Verdict.WARNING, got="; ".join(lines), fix=fix, numbers=numbers)
    return Finding(name="score", verdict=Verdict.OK, got="; ".join(lines) or "no episode was scored", numbers=numbers)


def _sample(episodes: float | None) -> str:
    return "" if episodes is None else f" of {episodes:,g} episodes"


def graded(share: float, bounds: tuple[float, float]) -> Verdict:
    """Return the verdict on a share that should be high.

    >>> [str(graded(share, (0.1, 0.5))) for share in (0.0, 0.1, 0.5)]
    ['problem', 'warning', 'ok']
    """
    return Verdict.PROBLEM if share < bounds[0] else Verdict.WARNING if share < bounds[1] else Verdict.OK


def percentile(values: Sequence[int], percent: float) -> int:
    """Return a percentile as one of the values, and 0 if there are none.

    >>> percentile([1, 2, 3, 9], 50), percentile([], 95)
    (2, 0)
    """
    return int(np.percentile(values, percent, method="inverted_cdf")) if len(values) else 0


def shortened(text: str, longest: int = 160) -> str:
    r"""Return a text in one line, without its middle if it is long.

    >>> shortened("a\nb"), shortened("x" * 99, longest=10)
    ('a b', 'xxxxx...xxxxx')
    """
    line = " ".join(text.split())
    half = math.ceil(longest / 2)
    return line if len(line) <= longest + 3 else f"{line[:half]}...{line[-half:]}"


def written(options: Mapping[str, Any]) -> str:
    r"""Return options with texts and numbers as they are typed in a shell.

    >>> print(written({"action_format": r"regex:(\d+)", "lora": 16}))
    --action-format 'regex:(\d+)' --lora 16
    """
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())

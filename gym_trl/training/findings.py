"""Examinations of episodes that were played as in a training: what was measured, and what to change."""

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from gym_trl.episode import Episode, Turn
from gym_trl.evaluation.estimates import Estimate, return_estimate, share_estimate, share_of
from gym_trl.grpo.credit import Estimator, find_estimator
from gym_trl.grpo.groups import Member, dead_groups
from gym_trl.report import OK, PROBLEM, WARNING, Finding, Verdict
from gym_trl.success import successes_in
from gym_trl.text import counted
from gym_trl.training.action_formats import Judge, Reading, Response, candidate_formats, read_again, sample_actions
from gym_trl.types import StopReason

_T = TypeVar("_T")
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


@dataclass(frozen=True, slots=True)
class PlayedResponse:
    """Response of the model in an episode that was played."""

    turn: Turn
    tokens: int
    ended: bool
    """The model ended its turn; otherwise a limit on tokens cut it off."""
    response: Response
    group: int
    """Number of the group that plays the same task."""


class Played:
    """Episodes of whole groups, and their responses.

    Args:
        results: Episodes, those of a group next to each other.
        group_size: Number of episodes in a group.
        ends: Token ids that end a response.
    """

    def __init__(self, results: Sequence[Episode], *, group_size: int, ends: Collection[int]) -> None:
        self.results = results
        self.by_group = _in_groups(results, group_size)
        """Episodes of each group, scored or not."""
        scored = [[one for one in group if one.scored] for group in self.by_group]
        self.groups = [group for group in scored if len(group) > 1]
        """Groups whose scored episodes are compared: all but those with fewer than two."""
        self._group_size = group_size
        self._successes = self._outcomes()
        self.mixed = sum(len(set(one)) == 2 for one in self._successes) if any(self._successes) else None
        """Number of groups in which some succeed and some do not; ``None`` if success is not declared."""
        self.responses = [
            response
            for number, group in enumerate(self.by_group)
            for episode in group
            for response in _responses(episode, ends, number)
        ]
        self.scored = [one for one in results if one.scored]

    def _outcomes(self, declaring: Collection[str] = ()) -> list[list[bool]]:
        outcomes = _in_groups(successes_in(self.results, declaring), self._group_size)
        return [[one for one in group if one is not None] for group in outcomes]

    def share(self, chosen: Iterable[bool]) -> Estimate:
        """Return the share of true values among the responses, with the interval of groups as tasks."""
        by_group: list[list[bool]] = [[] for _ in self.by_group]
        for response, value in zip(self.responses, chosen, strict=True):
            by_group[response.group].append(value)
        return share_estimate(by_group)

    def score(self, *, declares: bool = False) -> dict[str, Estimate]:
        """Return success and return of the scored episodes, with the intervals of groups as tasks.

        If the environment is known to declare success (``declares``), episodes without a declaration have failed.
        """
        paid = [[one.episode_return for one in group if one.episode_return is not None] for group in self.by_group]
        successes = self._outcomes({one.task.env_id for one in self.results}) if declares else self._successes
        return {"success": share_estimate(successes), "return": return_estimate(paid, successes)}

    def without_legal_action(self) -> tuple[str, ...]:
        """Return examples of such responses, unreadable ones first."""
        turns = [one.turn for one in self.responses if one.turn.action is None or not one.turn.action_valid]
        turns.sort(key=lambda turn: turn.action is not None)
        return tuple(shortened(text) for text in dict.fromkeys(turn.answer.text for turn in turns))[:_EXAMPLES]


def _in_groups(values: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _responses(episode: Episode, ends: Collection[int], group: int) -> Iterable[PlayedResponse]:
    before: tuple[str, ...] = ()
    for turn in episode.turns:
        segment, start, stop = turn.spans[-1]
        ids = episode.segments[segment].completion_ids[start:stop]
        ended = bool(ids) and ids[-1] in ends
        yield PlayedResponse(turn, len(ids), ended, Response(turn.answer.text, not ended, episode.task, before), group)
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
            "scored episodes",
            PROBLEM if share > 0.5 else WARNING,
            f"{len(failed)} of {counted(len(played.results), 'episode')} could not be scored: {_listed(reasons)}",
            "check the environment: gym-trl validate",
            examples=() if error is None else (shortened(error),),
            numbers={"unscored": share},
        )
    ]


def crashes(played: Played) -> list[Finding]:
    """Report episodes that an action ended because the environment raised or hung; nothing if there are none."""
    crashed = [one for one in played.results if one.stop_reason is StopReason.CRASHED]
    if not crashed:
        return []
    share = len(crashed) / len(played.results)
    errors = Counter(one.error for one in crashed if one.error)
    return [
        Finding(
            "crashes",
            PROBLEM if share > 0.5 else WARNING,
            f"{len(crashed)} of {counted(len(played.results), 'episode')} ended because an action made the environment "
            "fail, which is scored as an invalid action",
            "let step answer any text with an observation and action_valid=False in info",
            examples=tuple(shortened(error) for error, _ in errors.most_common(_EXAMPLES)),
            numbers={"crashed": share},
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
    name, total = "readable actions", len(played.responses)
    if action_format is None:
        return Finding(name, OK, "not read: responses reach the environment unchanged")
    read = played.share(one.turn.action is not None for one in played.responses)
    accepted = played.share(one.turn.action is not None and one.turn.action_valid for one in played.responses)
    share, legal = read.mean or 0.0, accepted.mean or 0.0
    got = f"{read} of {counted(total, 'response')} in the format {action_format}; {accepted} are legal actions"
    numbers: dict[str, Any] = {"readable": share, "legal": legal, "responses": total}
    finding = Finding(name, graded(min(share, legal), READABLE), got, numbers=numbers)
    if finding.verdict is OK:
        return finding
    responses = [one.response for one in played.responses]
    candidates = candidate_formats(_legal_actions(responses, judge), marked=judge is None)
    formats = [one for one in candidates if one != action_format]
    accept = cut_actions == "accept"
    readings = read_again(formats, responses, judge, accept_cut=accept)
    numbers["formats"] = [asdict(one) for one in readings]
    best, options = _simplest(readings, formats, total), {}
    if not accept:
        cuts = read_again(formats, responses, judge, accept_cut=True)
        if cuts[0].useful > best.useful + BETTER * total:
            best, options = _simplest(cuts, formats, total), {"cut_actions": "accept"}
    finding = replace(finding, examples=played.without_legal_action())
    if best.useful >= ((share if judge is None else legal) + BETTER) * total:
        options = {"action_format": best.format, **options}
        fix = f"{written(options)} reads {_reading(best)} from the same responses{_example(best)}"
        return replace(finding, fix=fix, options=options)
    fix = (
        "no other format reads more from the same responses: a warm start (gym-trl warm-start), or an example of a "
        "response in --system-prompt"
    )
    return replace(finding, fix=fix, warm_start=True)


def _legal_actions(responses: Sequence[Response], judge: Judge | None) -> list[str]:
    if judge is None or not responses:
        return []
    tasks = list({one.task.to_json(): one.task for one in responses}.values())
    return sample_actions(judge.env(tasks[0].env_id), [task for task in tasks if task.env_id == tasks[0].env_id])


def _simplest(readings: Sequence[Reading], formats: Sequence[str], total: int) -> Reading:
    """Return the first of ``formats`` that reads about as much as the best, which is the first of ``readings``."""
    enough = readings[0].useful - BETTER / 2 * total
    return min((one for one in readings if one.useful >= enough), key=lambda one: formats.index(one.format))


def _reading(one: Reading) -> str:
    return counted(one.readable, "action") if one.legal is None else counted(one.legal, "legal action")


def _example(one: Reading) -> str:
    return "" if one.example is None else f", such as {one.example[1]!r} from {shortened(one.example[0])!r}"


def group_spread(
    played: Played, *, best: float | None, group_size: int, readable: Verdict, credit: str | Estimator = "episode"
) -> Finding:
    """Report the share of groups that are not dead: in the others all advantages of the training are 0.

    Args:
        played: The episodes.
        best: Best possible return, if it is known.
        group_size: Number of episodes in a group, for the suggestion.
        readable: Verdict on the readable actions; without these, returns cannot differ.
        credit: Estimator of the advantages; with the default, those are dead whose returns are all the same.
    """
    groups, mixed = played.groups, played.mixed
    members = [Member.of(number, one) for number, group in enumerate(groups) for one in group]
    dead = dead_groups(members, find_estimator(credit))
    flat = [groups[number][0].episode_return or 0.0 for number in dead]
    spread = len(groups) - len(dead)
    differ = "different returns" if credit == "episode" else f"turns with an advantage (credit={credit!r})"
    rate = share_of(spread / max(1, len(groups)), len(groups))
    got = f"{spread} of {counted(len(groups), 'group')} of {group_size} have {differ}: {rate}"
    if flat:
        got += f"; all members of the others have {', '.join(f'{value:g}' for value in sorted(set(flat))[:4])}"
    if spread and mixed is not None:
        got += f"; in {mixed} of them some succeed and some do not"
    share = spread / max(1, len(groups))
    numbers = {"groups": len(groups), "spread": share, "flat_returns": sorted(set(flat)), "mixed": mixed or 0}
    finding = Finding("groups with spread", graded(share, SPREAD), got, numbers=numbers)
    if finding.verdict is OK:
        if mixed != 0:
            return finding
        fix = (
            "only penalties or partial rewards differ, so a training first learns to act legally; take an easier "
            "variant of the environment, a curriculum or a warm start if success stays as it is"
        )
        return replace(finding, verdict=WARNING, fix=fix, warm_start=True)
    if readable is PROBLEM:
        return replace(finding, fix="follows from the unreadable actions: change these first")
    if best is not None and best > 0 and sum(value >= _SOLVED * best for value in flat) > len(flat) / 2:
        fix = "most groups are solved: take a harder variant of the environment (gym-trl info shows its arguments)"
        return replace(finding, fix=fix)
    fix = (
        "take an easier variant of the environment or a curriculum, a warm start, or larger groups "
        f"(--num-generations {2 * group_size})"
    )
    return replace(finding, fix=fix, warm_start=True)


def ends_of_turns(played: Played, *, ends: Mapping[int, str], cut_actions: str, max_tokens: int) -> Finding:
    """Report the share of responses that the model itself ended, and the lengths of responses.

    Args:
        played: The episodes.
        ends: Token ids that end a response, with their texts.
        cut_actions: Treatment of actions that were cut off.
        max_tokens: Maximum tokens of a response.
    """
    name, lengths = "length of a turn", [one.tokens for one in played.responses]
    own_ends = played.share(one.ended for one in played.responses)
    ended = own_ends.mean or 0.0
    middle, high = percentile(lengths, 50), percentile(lengths, 95)
    got = (
        f"median {middle}, 95th percentile {high} of at most {max_tokens} tokens; the model ended {own_ends} of its "
        f"{counted(len(played.responses), 'turn')}, the others were cut off"
    )
    numbers = {"ended": ended, "median": middle, "p95": high, "limit": max_tokens}
    if 1 - ended <= CUT or cut_actions == "accept":
        return Finding(name, OK, got, numbers=numbers)
    read = played.share(one.turn.action is not None for one in played.responses)
    verdict = PROBLEM if (read.mean or 0.0) < READABLE[0] else WARNING
    if ended < 1 - READABLE[1]:
        shown = " or ".join(f"{text!r} (id {id_})" for id_, text in sorted(ends.items()))
        fix = (
            f"the model almost never ends its turn with {shown}: take its chat (instruct) version, warm-start it, or "
            "read actions from cut responses (--cut-actions accept with a small --max-tokens-per-turn)"
        )
        return Finding(name, verdict, got, fix, warm_start=True, numbers=numbers)
    options = {"max_tokens_per_turn": 2 * max_tokens}
    fix = f"give turns more room ({written(options)}), or ask for brevity in --system-prompt"
    return Finding(name, verdict, got, fix, options=options, numbers=numbers)


def episode_length(played: Played, *, max_completion: int, context: int | None = None) -> Finding:
    """Report the lengths of episodes and the share that the token budget or the context cut off.

    Args:
        played: The episodes.
        max_completion: Token budget of an episode.
        context: Tokens of the model's context; ``None`` if it has no limit.
    """
    name = "length of an episode"
    longest = [max(one.segments, key=lambda segment: len(segment.completion_ids)) for one in played.scored]
    lengths, prompts = [len(one.completion_ids) for one in longest], [len(one.prompt_ids) for one in longest]
    prompt, middle, high = percentile(prompts, 50), percentile(lengths, 50), percentile(lengths, 95)
    cut = share_estimate([[one.stop_reason is StopReason.TOKEN_LIMIT for one in group] for group in played.by_group])
    room = max_completion if context is None else max(0, context - prompt)
    got = (
        f"median {middle}, 95th percentile {high} of at most {min(max_completion, room)} tokens after a prompt of "
        f"{prompt}; of {counted(len(played.results), 'episode')} {cut} were cut off there"
    )
    share = cut.mean or 0.0
    numbers = {
        "median": middle,
        "p95": high,
        "limit": min(max_completion, room),
        "prompt": prompt,
        "token_limit": share,
    }
    if share <= CUT:
        return Finding(name, OK, got, numbers=numbers)
    verdict = PROBLEM if share > READABLE[1] else WARNING
    if room <= max_completion and context is not None:
        fix = (
            "the model's context is too short for these episodes: shorten turns (--max-tokens-per-turn) or "
            "observations, or show the last turns only (--history)"
        )
        return Finding(name, verdict, got, fix, numbers=numbers)
    options = {"max_completion_length": 2 * max_completion}
    fix = f"give episodes more room ({written(options)}), or shorten turns with --max-tokens-per-turn"
    return Finding(name, verdict, got, fix, options=options, numbers=numbers)


def scores(played: Played, known: Mapping[str, float | None]) -> Finding:
    """Report success and return beside those of random play, the blind baseline and perfect play.

    Args:
        played: The episodes.
        known: Scores by name, as ``gym_trl.training.references.references`` returns them.
    """
    declares = any(value is not None for name, value in known.items() if name.startswith("success_"))
    lines, estimates = [], played.score(declares=declares)
    own = {what: estimate.mean for what, estimate in estimates.items()}
    for what, value in own.items():
        others = [
            f"{label} {Estimate(known[f'{what}_{key}'])}{_sample(known.get(f'episodes_{key}'))}"
            for key, label in (("random", "random"), ("blind", "blind baseline"), ("optimum", "optimum"))
            if known.get(f"{what}_{key}") is not None
        ]
        if value is not None:
            lines.append(
                f"{what} {estimates[what]}{_sample(len(played.scored))}" + (f" ({', '.join(others)})" if others else "")
            )
    best, reached = known.get("success_optimum"), own["success"]
    numbers = {**own, **known}
    if best and reached is not None and reached >= _SOLVED * best:
        fix = "there is little left to learn: take a harder variant of the environment"
        return Finding("score", WARNING, "; ".join(lines), fix=fix, numbers=numbers)
    return Finding("score", OK, "; ".join(lines) or "no episode was scored", numbers=numbers)


def _sample(episodes: float | None) -> str:
    return "" if episodes is None else f" of {episodes:,g} episodes"


def graded(share: float, bounds: tuple[float, float]) -> Verdict:
    """Return the verdict on a share that should be high.

    >>> [str(graded(share, (0.1, 0.5))) for share in (0.0, 0.1, 0.5)]
    ['problem', 'warning', 'ok']
    """
    return PROBLEM if share < bounds[0] else WARNING if share < bounds[1] else OK


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

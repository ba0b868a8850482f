"""Specifications, scores, episodes and findings as HTML."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from gym_trl.displays import RenderedText
from gym_trl.envspec import EnvSpec
from gym_trl.evaluation.evaluation import Evaluation
from gym_trl.options import changed, worded
from gym_trl.records.schema import Record, as_record
from gym_trl.report import Finding, Report, Verdict
from gym_trl.text.textify import counted
from gym_trl.types import EpisodeResult
from gym_trl.viewer.notebook.html import Html, card, folded, number, pre, table

if TYPE_CHECKING:
    from gym_trl.grpo.spec import GymSpec

_MARKS: Final = {
    Verdict.OK: "✓ ok",
    Verdict.WARNING: "! warning",
    Verdict.PROBLEM: "✗ problem",
    Verdict.SKIPPED: "- skipped",
}
_MOST_TURNS: Final = 50


def rendered_text(text: RenderedText) -> str:
    """Return the lines of a rendering."""
    return pre(text)


def env_spec(spec: EnvSpec) -> str:
    """Return the environments of a specification, and the options that differ from their defaults."""
    return card(_envs(spec.weights), table((), _options(spec)), more="EnvSpec")


def gym_spec(spec: "GymSpec") -> str:
    """Return the environments, tasks, instructions and options of the specification of a training."""
    options = spec.options
    rows = [
        ("tasks", f"{options.num_tasks:,} for training, {options.num_eval_tasks:,} for evaluations"),
        ("executor", spec.executor),
        *([("parts", ", ".join(part.name or type(part).__name__ for part in spec.parts))] if spec.parts else []),
        *_options(options, without=("num_tasks", "num_eval_tasks")),
    ]
    told = [pre(text, f"Instructions of {env_id}") for env_id, text in spec.instructions.items() if text]
    return card(_envs(spec.weights), table((), rows), *told, more="GymSpec")


def evaluation(scores: Evaluation) -> str:
    """Return a table with the policies of an evaluation."""
    header = ("policy", "environment", "episodes", "success", "return", "turns", "invalid actions", "unscored")
    rows = [
        (
            row.policy,
            row.env_id + "".join(f", {name}={worded(value)}" for name, value in row.env_kwargs.items()),
            f"{row.episodes:,}",
            row.success,
            row.mean_return,
            number(row.turns, 1),
            "-" if row.invalid is None else f"{row.invalid:.1%}",
            row.unscored,
        )
        for row in scores.rows
    ]
    note = "Means with intervals of 95%." + (f" Records: {scores.folder}" if scores.folder else "")
    return card("Evaluation", table(header, rows), more=note)


def episode_result(episode: EpisodeResult) -> str:
    """Return an episode, turn by turn."""
    return record(as_record(episode))


def record(episode: Record) -> str:
    """Return a recorded episode, turn by turn."""
    facts = {
        "return": number(episode["return"]) if episode["return"] is not None else "unscored",
        "success": {True: "yes", False: "no", None: "not declared"}[episode["success"]],
        "ended with": episode["stop_reason"],
        "turns": episode["num_turns"],
        "policy": episode["policy"],
        "error": episode["error"],
    }
    shown = ((name, value) for name, value in facts.items() if value is not None)
    parts = [table((), shown)]
    parts += [
        folded(f"Opening: {one['role']}", pre(one["content"])) for one in episode["opening"] if one["role"] == "system"
    ]
    for place, turn in enumerate(islice(episode["turns"], _MOST_TURNS), start=1):
        parts.append(pre(turn["observation"], f"{place}. Observation"))
        if turn["thinking"]:
            parts.append(folded("Thinking", pre(turn["thinking"])))
        invalid = "" if turn["action_valid"] else ", invalid"
        parts.append(pre(turn["answer"], f"Response (reward {number(turn['reward'])}{invalid})"))
    if (more := len(episode["turns"]) - _MOST_TURNS) > 0:
        parts.append(f"<div>{counted(more, 'more turn')}: gym_trl.show(...) has all of them.</div>")
    if episode["last_observation"] is not None:
        parts.append(pre(episode["last_observation"], "Last observation"))
    return card(episode["task"]["id"], *parts, more="Episode")


def finding(one: Finding) -> str:
    """Return a finding with its fix and its reason."""
    return card(one.name or "Finding", table((), _about(one)), more=_MARKS[one.verdict])


def report(findings: Report) -> str:
    """Return the findings of a report, those with something to change first."""
    urgent = (Verdict.PROBLEM, Verdict.WARNING)
    first = [one for verdict in urgent for one in findings.findings if one.verdict == verdict]
    others = [one for one in findings.findings if one.verdict not in urgent]
    parts = [table((), _lines(first))] if first else []
    if others:
        parts.append(folded(counted(len(others), "other check" if first else "check"), table((), _lines(others))))
    return card(findings.name, *parts, more=findings.summary)


def _lines(findings: Iterable[Finding]) -> Iterable[tuple[object, ...]]:
    for one in findings:
        parts = [pre(value, name) for name, value in _about(one)]
        yield _MARKS[one.verdict], one.name, Html("".join(parts))


def _about(finding: Finding) -> list[tuple[str, str]]:
    rows = [
        ("found", finding.got),
        ("fix", finding.fix),
        ("reason", finding.why),
        *(("example", one) for one in finding.examples),
    ]
    return [(name, value) for name, value in rows if value]


def _envs(weights: Mapping[str, float]) -> str:
    if len(weights) == 1:
        return next(iter(weights))
    return ", ".join(f"{env_id} ({share:.0%})" for env_id, share in weights.items())


def _options(options: Any, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    others = {name: value for name, value in changed(options).items() if name not in ("env", *without)}
    return [(name, worded(value)) for name, value in others.items()]

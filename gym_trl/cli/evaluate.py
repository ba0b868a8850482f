"""``gym-trl eval``."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.cli.environments import format_arguments, named_environments
from gym_trl.cli.flags import with_options
from gym_trl.cli.policies import OF_MODELS, find_policy, read_model, read_policy, trained_kwargs
from gym_trl.cli.terminal import ask, say, say_aside, say_styled, show_columns
from gym_trl.envspec import kwargs_by_id
from gym_trl.errors import ConfigError
from gym_trl.options import NO_FLAG, OF_EVALUATE, PLAYED, TOKENS_PER_TURN, EvalOptions, TrainOptions
from gym_trl.outcome import FailureNotes
from gym_trl.policies.weights import is_run
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import trained

if TYPE_CHECKING:
    from gym_trl.evaluation.scores import Row, Scoreboard
    from gym_trl.records.schema import Record

EXAMPLES = """
gym-trl eval TrlEnv/GuessNumber-v0 --policy solver --policy random --episodes 1000 --out evals/guess
gym-trl eval TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --vllm colocate --episodes 400 --attempts 4 --out evals/wordle
gym-trl eval TrlEnv/Wordle-v0 --base-url http://localhost:8000/v1 --temperature 0 --json
gym-trl eval --model runs/sixteen --fail-under 0.8
gym-trl eval TrlEnv/TicTacToe-v0 --model runs/ttt --against solver
"""


@with_options(EvalOptions, *NO_FLAG)
def evaluate(
    env: tuple[str, ...] = (),
    *,
    json_: bool = False,
    **options: Any,
) -> None:
    """Evaluate models and other policies on held-out tasks.

    Results have 95% intervals. Policies are the environments' own (solver, random),
    package.module:function (which returns the policy of an episode for its environment), and person. Models are paths,
    hub ids (ORG/NAME), or folders of runs, which are prompted as they were trained unless an option says otherwise;
    with --base-url they are models of an OpenAI-compatible server. All play the same tasks, whose seeds do not occur in
    training.

    With --against, each policy plays every seat of a game, the same tasks in each, and that one all other seats.

    With --out, every finished episode is recorded. The same command resumes an interrupted evaluation, and other
    policies are added to the folder.

    Exit status: 0; 1 if a success rate is below --fail_under, or no episode could be scored; 2 for an error; 130 if
    interrupted.

    Args:
        env: Environments, whose names in a run's config.json are then trusted. Default: that of the run.
        json_: Print JSON instead of text.
        options: Options of the evaluation.
    """
    given = {**({"env": env} if env else {}), **options}
    checked = EvalOptions.of({"max_tokens_per_turn": TOKENS_PER_TURN, **given})
    _evaluate(checked, given, as_json=json_)


def _evaluate(options: EvalOptions, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Evaluate with the options that were given; ``options`` has all of them, checked."""
    from rich.console import Console

    from gym_trl.cli.progress import Count
    from gym_trl.evaluation.evaluation import evaluate as run_evaluation
    from gym_trl.training.progress import lasting_console

    played = {name: one for name, one in given.items() if name in PLAYED and name not in OF_MODELS}
    policies = _policies(options, given)
    runs = {name: read_options(Path(name), allowed=options.env) for name in options.model if is_run(Path(name))}
    ids = options.env or _trained_ids(runs)
    success = next((run.success for run in runs.values() if run.env in ids and run.success is not None), None)
    played = ({} if success is None else {"success": success}) | played
    given_kwargs = kwargs_by_id(ids, options.env_kwargs)
    fix = "evaluate one run at a time"
    kwargs = {one: {**trained_kwargs(one, runs.values(), fix), **given_kwargs[one]} for one in ids}
    for name, run in runs.items():
        say_aside(_as_trained(name, run, kwargs, options.env))
    if options.against is not None:
        counts = {name: vars(options)[name] for name in ("episodes", "attempts", "seed")}
        other = find_policy(options.against, allowed=options.env)
        _play_against(kwargs, policies, other, counts | played, as_json=as_json)
        return
    console = Console(quiet=True) if "person" in options.policy else lasting_console(sys.stderr)
    with Count("episode", console, resumes=options.out is not None) as count:

        def on_begin(total: int, before: int) -> None:
            count.begin(total, before)
            if options.model and not options.base_url and before < total:
                count.note(f"Loading {', '.join(options.model)}")

        failures = FailureNotes(count.note)

        def on_episode(record: "Record", board: "Scoreboard") -> None:
            name = record["policy"] or ""
            failures.add(record["stop_reason"], record["error"], scored=record["return"] is not None)
            means = board.means(name)
            of = count.total // len(policies)
            played = min(of, round(means.pop("episodes")))
            count.add(policy=name, played=played, of=of, **{f"env/{key}": value for key, value in means.items()})

        own: Any = {name: vars(options)[name] for name in OF_EVALUATE if name not in PLAYED}
        own |= {**played, "env_kwargs": kwargs}
        result = run_evaluation(ids, policies, on_begin=on_begin, on_episode=on_episode, **own)
    say(to_json(result.as_dict(), indent=2)) if as_json else show_columns(_columns(result.rows))
    _check_scores(result.rows, [one.name for one in policies], kwargs, options.fail_under)


def _play_against(env_kwargs: Mapping[str, Any], policies: Any, other: Any, own: Any, *, as_json: bool) -> None:
    """Print the scores of policies against another one, in each seat and in all."""
    from gym_trl.evaluation.against import play_against

    if len(env_kwargs) > 1:
        raise ConfigError(f"against needs one environment, got {len(env_kwargs)}")
    [(env, kwargs)] = env_kwargs.items()
    rows = [row for one in policies for row in play_against(env, one, other, env_kwargs=kwargs, **own)]
    if as_json:
        say(to_json([{**row, **{key: asdict(row[key]) for key in ("win_rate", "payoff")}} for row in rows], indent=2))
    else:
        show_columns({name: [str("all" if row[name] is None else row[name]) for row in rows] for name in rows[0]})


def _policies(options: EvalOptions, given: Mapping[str, Any]) -> list[Any]:
    """Return the policies; an option that concerns none of them is refused."""
    from gym_trl.policies.functions import person

    of_models = {name: one for name, one in given.items() if name in OF_MODELS}
    policies: list[Any] = [
        person(lambda _: ask(), say_styled) if name == "person" else read_policy(name, allowed=options.env)
        for name in options.policy
    ]
    models: Sequence[str | None] = options.model or ([None] if options.base_url else [])
    policies += [read_model(name, options.base_url, of_models, allowed=options.env) for name in models]
    if not policies:
        raise ConfigError("there is no policy to evaluate: use --policy, --model or --base-url")
    unused = [*(() if models else of_models), *(["tokens"] if not any(one.marks for one in policies) else ())]
    if name := next((name for name in unused if given.get(name) not in (None, {}) and given[name] is not False), None):
        raise ConfigError(f"{name} requires a language model: use --model or --base-url")
    return policies


def _check_scores(
    rows: Sequence["Row"], policies: Sequence[str], env_kwargs: Mapping[str, Mapping[str, Any]], least: float | None
) -> None:
    """Exit with status 1 if nothing was scored, or a policy's success rate is too low or unknown."""
    from gym_trl.evaluation.scores import arguments_key

    # The folder may contain episodes of other policies, environments and arguments, too.
    by_key = {(row.policy, row.env_id, arguments_key(row.env_kwargs)): row for row in rows}
    asked = {
        (policy, env_id): by_key.get((policy, env_id, arguments_key(arguments)))
        for policy, (env_id, arguments) in product(policies, env_kwargs.items())
    }
    if not any(row and row.episodes for row in asked.values()):
        say_aside("No episode could be scored: see what fails with gym-trl validate")
        raise SystemExit(1)
    if least is None:
        return
    reasons = {key: "no episode was played" if row is None else _failure(row, least) for key, row in asked.items()}
    low = {key: why for key, why in reasons.items() if why is not None}
    for (policy, env_id), why in low.items():
        say_aside(f"{policy} on {env_id}: {why}")
    if low:
        raise SystemExit(1)


def _failure(row: "Row", least: float) -> str | None:
    """Return the reason for which a row does not show a success rate of at least ``least``, if there is one."""
    played = row.episodes + row.unscored
    if row.unscored > played / 2:
        return f"only {row.episodes} of {played} episodes could be scored"
    if row.success.mean is None:
        return "success is not declared"
    return f"success {row.success} is below {least:g}" if row.success.mean < least else None


def _trained_ids(runs: Mapping[str, TrainOptions]) -> list[str]:
    """Return the environment that all runs trained on."""
    ids = sorted({run.env for run in runs.values()})
    if not ids:
        raise ConfigError("there is no environment to evaluate on: give an id from gym-trl list")
    if len(ids) > 1:
        raise ConfigError(f"the runs trained on {' and '.join(ids)}: give the id of one of them")
    return ids


def _as_trained(
    name: str, run: TrainOptions, env_kwargs: Mapping[str, Mapping[str, Any]], allowed: Sequence[str]
) -> str:
    """Return the line that lists the settings of a run that an evaluation uses."""
    model = trained(Path(name), allowed=allowed)
    own = {name: model.settings[name] for name in ("max_tokens_per_turn", "max_completion_length", "system_prompt")}
    used = {**(run.env_kwargs if run.env in env_kwargs else {}), **model.options, **own, **model.sampling}
    shown = format_arguments({key: value for key, value in used.items() if value is not None})
    return f"Settings of {name}, unless an option overrides them: {shown}"


def _columns(rows: Sequence["Row"]) -> dict[str, list[str]]:
    """Return the columns of a table of scores, the most important first."""
    most = [k for k in sorted({max(row.pass_at, default=1) for row in rows}) if k > 1]
    cells: dict[str, Callable[[Row], str]] = {
        "policy": lambda row: row.policy,
        "episodes": lambda row: f"{row.episodes} (+{row.unscored} failed)" if row.unscored else f"{row.episodes}",
        "success": lambda row: str(row.success),
        "return": lambda row: str(row.mean_return),
        **{f"pass@{k}": partial(_pass_at, k) for k in most},
        "turns": lambda row: _format(row.turns, ".2f"),
        "tokens": lambda row: _format(row.tokens, ".1f"),
        "invalid": lambda row: _format(row.invalid, ".1%"),
        "model s": lambda row: _format(row.model_seconds, ".3g"),
        "env s": lambda row: _format(row.env_seconds, ".3g"),
        "ended": lambda row: ", ".join(f"{why} {count}" for why, count in row.stop_reasons.items()),
    }
    return {"environment": named_environments(rows), **{head: [*map(cell, rows)] for head, cell in cells.items()}}


def _pass_at(k: int, row: "Row") -> str:
    return _format(row.pass_at.get(k), ".3f")


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else f"{value:{spec}}"

"""``gym-trl eval``."""

import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import format_arguments, make_text_env
from gym_trl.cli.errors import check_finite, clear_errors, option_name
from gym_trl.cli.flags import with_options
from gym_trl.cli.options import (
    ENV_KWARGS_PLACE,
    LARGEST_SEED,
    DebugOption,
    JsonOption,
    TemperatureOption,
    TrustOption,
    read_pairs,
    read_trust,
)
from gym_trl.cli.policies import read_model, read_policy
from gym_trl.cli.terminal import ask, say, say_aside, say_styled, show_columns
from gym_trl.envspec import spec_names
from gym_trl.errors import ConfigError
from gym_trl.files import read_text
from gym_trl.kinds import check_option, option_types
from gym_trl.options import PLAYED, SpecOptions, TrainOptions, VLLMMode, converted
from gym_trl.policies.model import ModelArgs
from gym_trl.policies.weights import is_run
from gym_trl.records.json_lines import to_json
from gym_trl.registration import did_you_mean, is_registered
from gym_trl.text.textify import counted
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import trained
from gym_trl.trust import Named, Trust, env_names, texts_in

if TYPE_CHECKING:
    from gym_trl.evaluation.scores import Row, Scoreboard
    from gym_trl.records.schema import Record

EXAMPLES = """
gym-trl eval TrlEnv/GuessNumber-v0 --policy solver --policy random --episodes 1000 --out evals/guess
gym-trl eval TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --vllm colocate --episodes 400 --attempts 4 --out evals/wordle
gym-trl eval TrlEnv/Wordle-v0 --base-url http://localhost:8000/v1 --temperature 0 --json
gym-trl eval --model runs/sixteen --fail-under 0.8
"""
_IDS_HELP = (
    "Ids of environments, or a file.toml and names in it that are not registered and that you trust. Default: the "
    "environment of the run that --model names."
)
_OPTIONS = ("env_kwargs", *PLAYED)
_USUAL = {"max_tokens_per_turn": "256, or the run's", "end_after_invalid": "3"}


@clear_errors
@with_options(SpecOptions, only=_OPTIONS, presets=_USUAL)
def evaluate(
    context: typer.Context,
    *,
    ids: Annotated[list[str] | None, Argument(metavar="ID...", help=_IDS_HELP, show_default=False)] = None,
    policy: Annotated[list[str] | None, Option(help="Policy to evaluate, see above; repeatable.")] = None,
    model: Annotated[list[str] | None, Option(help="Model to evaluate: path, hub id or run; repeatable.")] = None,
    base_url: Annotated[str | None, Option(help="OpenAI-compatible server, with /v1; key: $OPENAI_API_KEY.")] = None,
    episodes: Annotated[int, Option(min=1, help="Episodes of each policy on each environment.")] = 100,
    attempts: Annotated[int, Option(min=1, help="Episodes per task, for pass@k; must divide --episodes.")] = 1,
    seed: Annotated[int, Option(min=0, max=LARGEST_SEED, help="Seed of the tasks and of the sampling.")] = 0,
    out: Annotated[Path | None, Option(help="Folder to record episodes in. Default: do not record.")] = None,
    retry: Annotated[bool, Option("--retry", help="Play the unscored episodes in --out again.")] = False,
    tokens: Annotated[bool, Option("--tokens", help="Record token ids and logprobs as well.")] = False,
    vllm: Annotated[
        str | None, Option(metavar="colocate", help="Generate with vLLM in this process. Default: with Transformers.")
    ] = None,
    llm: Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="Argument of vllm.LLM; repeatable.")] = None,
    concurrency: Annotated[int | None, Option(min=1, help="Concurrent episodes. Default: 64, 16 on a server.")] = None,
    temperature: TemperatureOption = None,
    max_completion_length: Annotated[
        int | None, Option(min=1, help="Maximum tokens per episode, with observations. Default: the context.")
    ] = None,
    fail_under: Annotated[
        float | None, Option(min=0.0, max=1.0, help="Exit with status 1 if a success rate is lower.")
    ] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Evaluate models and other policies on held-out tasks.

    Results have 95% intervals. Policies are the environments' own (solver, random, constant, garbage, noop),
    package.module:function (which returns the policy of an episode for its environment), and person. Models are paths,
    hub ids (ORG/NAME), or folders of runs, which are prompted as they were trained unless an option says otherwise;
    with --base-url they are models of an OpenAI-compatible server. All play the same tasks, whose seeds do not occur in
    training.

    With --out, every finished episode is recorded. The same command resumes an interrupted evaluation, and other
    policies are added to the folder. Instead of ids, a file.toml can set any of the options by name, but for --trust.

    Exit status: 0; 1 if a success rate is below --fail-under; 2 for an error; 130 if interrupted.
    """
    if ids is not None and any(one.endswith(".toml") for one in ids):
        _evaluate(**_from_toml(context, options, Path(ids[0]), ids[1:]))
        return
    named = (("--policy", policy), ("--model", model))
    words = [word for option, names in named for one in names or () for word in (option, one)]
    command = shlex.join(["gym-trl", "eval", *(ids or ()), *words])
    trusted = read_trust(trust, [ids, policy, model, options], command, _PLACES)
    _evaluate(**_parameters(context) | {"options": options, "trust": trusted})


def _parameters(context: typer.Context) -> dict[str, Any]:
    """Return the command's own parameters."""
    own = {one.name or "": context.params[one.name or ""] for one in context.command.params}
    return {**own, "llm": read_pairs(own["llm"])}


_PLACES = (
    ("env", ""),
    (r"(?:spec\.)?(success|observe|act|state_key|wrappers).*", lambda found: f"{option_name(found[1])} "),
    ENV_KWARGS_PLACE,
)
"""Places in a run's options, and what repeats their names on the command line."""
_LLM = frozenset(
    {
        "dtype",
        "enforce_eager",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "seed",
        "tensor_parallel_size",
    }
)
"""Arguments of ``vllm.LLM`` that a file may set by itself."""


def _toml_names(given: Mapping[str, Any], path: Path) -> Iterator[Named]:
    """Yield what a file names that is not registered, or that would be contacted or written elsewhere."""
    ids, llm = given.get("ids"), given.get("llm")
    yield from env_names(ids, given.get("env_kwargs"), field="id")
    yield from (Named("base_url", one, "a server that would be contacted") for one in texts_in(given.get("base_url")))
    own = Path.cwd(), path.parent.resolve()
    for one in texts_in(given.get("out")):
        if not any(Path(one).resolve().is_relative_to(folder) for folder in own):
            yield Named("out", one, "a folder elsewhere that would be written to")
    for name in llm if isinstance(llm, Mapping) else ():
        if name not in _LLM:
            yield Named(f"llm.{name}", name, "an argument of vllm.LLM, which can load code")
    others = given.keys() - {"ids", "env_kwargs", "base_url", "out", "llm", "model"}
    yield from spec_names({name: given[name] for name in sorted(others)}, ids, field="")


def _from_toml(
    context: typer.Context, options: Mapping[str, Any], path: Path, repeated: Sequence[str]
) -> dict[str, Any]:
    """Return the options of a file, overridden by those of the command line; ``repeated`` are names that it may use."""
    try:
        given = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if any("\0" in text for text in texts_in(given)):
        raise ConfigError(f"{path} has a text with a null character, which no name and no path can contain")
    own, chosen = {**_parameters(context), "ids": None}, dict(options)
    if other := [one for one in repeated if one.endswith(".toml") or is_registered(one)]:  # no names to be trusted
        raise ConfigError(f"expected one file.toml, or ids of environments, got {path} {other[0]}")
    typed = [repeated, own["policy"], own["model"], options]
    command = f"gym-trl eval {shlex.quote(str(path))}"
    trust = read_trust(own.pop("trust"), typed, command, [(".*", "")])
    named = {_RENAMED.get(key, key.replace("-", "_")): (key, value) for key, value in given.items()}
    found = list(_toml_names({name: value for name, (_, value) in named.items()}, path))
    trust.check(path, found)
    for name, (key, value) in named.items():
        source = context.get_parameter_source(name)
        if name in _OPTIONS:
            kind = option_types(SpecOptions)[name]
            check_option(f"{path}: {key}", converted(f"{path}: {key}", value, kind), kind)
            chosen.setdefault(name, value)
        elif name not in own:
            raise ConfigError(f"{path}: there is no option {key}{did_you_mean(name, [*own, *_OPTIONS])}")
        elif name == "ids" or source is None or source.name != "COMMANDLINE":
            own[name] = _read(context, name, value, f"{path}: {key}")
    check_finite(own)
    return {**own, "options": chosen, "trust": replace(trust, names={*trust.names, *(one.name for one in found)})}


_RENAMED = {"json": "as_json", "id": "ids"}
"""Options of the command by their names in a file, where these differ."""


def _read(context: typer.Context, name: str, value: Any, where: str) -> Any:
    """Return the value of an option in a file, converted and checked as on the command line."""
    if name == "llm":
        if not isinstance(value, dict):
            raise ConfigError(f"{where} must be a table, got {value!r}")
        return value
    if name in ("ids", "policy", "model"):
        value = value if isinstance(value, list) else [value]
    if name != "out":  # which is read from text
        check_option(where, value, option_types(evaluate)[name])
    parameter = next(one for one in context.command.params if one.name == name)
    try:
        return parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise ConfigError(f"{where} = {value!r} is invalid: {error.message}") from error


def _evaluate(
    *,
    ids: Sequence[str] | None,
    policy: Sequence[str] | None,
    model: Sequence[str] | None,
    base_url: str | None,
    options: Mapping[str, Any],
    fail_under: float | None,
    as_json: bool,
    episodes: int,
    trust: Trust,
    debug: bool,
    **own: Any,
) -> None:
    from rich.console import Console

    from gym_trl.evaluation.evaluation import evaluate as run_evaluation
    from gym_trl.policies.functions import person
    from gym_trl.training.progress import display_on, lasting_console

    _check(options, own["vllm"], episodes, own["attempts"])
    played = {name: value for name, value in options.items() if name != "env_kwargs"}
    given = {name: own.pop(name) for name in [*own] if name in ModelArgs.__annotations__ or name == "temperature"}
    given |= {
        name: played.pop(name, None) for name in ("max_tokens_per_turn", "system_prompt")
    }  # servers have them, too
    policies: list[Any] = [
        person(lambda _: ask(), say_styled) if name == "person" else read_policy(name, trust=trust)
        for name in policy or ()
    ]
    runs = {name: read_options(Path(name), trust=trust) for name in model or () if is_run(Path(name))}
    named: list[str | None] = [*(model or ())] or ([None] if base_url else [])
    policies += [read_model(name, base_url, given, trust=trust) for name in named]
    if not policies:
        raise ConfigError("there is no policy to evaluate: use --policy, --model or --base-url")
    marked = {"tokens": own["tokens"]}
    _refuse_unused({**({} if named else given), **({} if any(one.marks for one in policies) else marked)})
    ids = ids or _trained_ids(runs)
    success = next((run.success for run in runs.values() if run.env in ids and run.success is not None), None)
    played = ({} if success is None else {"success": success}) | played
    kwargs = {
        env_id: {**_trained_kwargs(env_id, list(runs.values())), **options.get("env_kwargs", {})} for env_id in ids
    }
    for env_id, arguments in kwargs.items():
        make_text_env(env_id, arguments, observe=played.get("observe")).close()
    for name, run in runs.items():
        say_aside(_as_trained(name, run, kwargs, trust))
    console = Console(quiet=True) if "person" in (policy or ()) else lasting_console(sys.stderr)
    display = display_on(console, episodes * len(ids) * len(policies), "episode")
    done = 0

    def on_begin(total: int, before: int) -> None:
        nonlocal done
        done = before
        display.begin(before)
        if model and not base_url and before < total:
            display.note(f"Loading {', '.join(model)}")

    def on_episode(record: "Record", board: "Scoreboard") -> None:
        nonlocal done
        done += 1
        name = record["policy"] or ""
        display.log(done, {"policy": name, **{f"env/{key}": value for key, value in board.means(name).items()}})

    try:
        found = run_evaluation(
            ids,
            policies,
            episodes=episodes,
            env_kwargs=kwargs,
            on_begin=on_begin,
            on_episode=on_episode,
            **own,
            **played,
        )
    except KeyboardInterrupt:
        display.end()
        if own["out"] is not None:
            say(f"Interrupted after {counted(done, 'episode')}; the same command resumes from here.")
        raise typer.Exit(130) from None
    finally:
        display.end()
    say(to_json(found.as_dict(), indent=2)) if as_json else show_columns(_columns(found.rows))
    # The folder may contain episodes of other policies and environments, too.
    names = {one.name for one in policies}
    _check_success([row for row in found.rows if row.policy in names and row.env_id in ids], fail_under)


def _check(options: Mapping[str, Any], vllm: str | None, episodes: int, attempts: int) -> None:
    """Check options together before an environment is made."""
    SpecOptions.of({"env": "TrlEnv/Echo-v0", "max_tokens_per_turn": 256, **options})
    check_option("vllm", vllm, VLLMMode | None)
    if vllm == "server":
        raise ConfigError("vllm must be 'colocate', got 'server': a server is evaluated with --base-url")
    if episodes % attempts:
        raise ConfigError(f"episodes must be a multiple of attempts={attempts}, got {episodes}")


def _refuse_unused(given: Mapping[str, Any]) -> None:
    """Refuse options that are given and of no use without a language model."""
    for name, value in given.items():
        if value is not None and value is not False and value != {}:
            raise ConfigError(f"{option_name(name)} requires a language model: use --model or --base-url")


def _check_success(rows: Sequence["Row"], least: float | None) -> None:
    """Exit with status 1 if a success rate is too low."""
    low = [row for row in rows if least is not None and (row.success.mean is None or row.success.mean < least)]
    for row in low:
        why = "success is not declared" if row.success.mean is None else f"success {row.success} is below {least:g}"
        say_aside(f"{row.policy} on {row.env_id}: {why}")
    if low:
        raise typer.Exit(1)


def _trained_ids(runs: Mapping[str, TrainOptions]) -> list[str]:
    """Return the environment that all runs trained on."""
    found = sorted({run.env for run in runs.values()})
    if not found:
        raise ConfigError("there is no environment to evaluate on: give an id from gym-trl list")
    if len(found) > 1:
        raise ConfigError(f"the runs trained on {' and '.join(found)}: give the id of one of them")
    return found


def _trained_kwargs(env_id: str, runs: Sequence[TrainOptions]) -> dict[str, Any]:
    """Return the arguments that runs made an environment with; empty for one that they did not train on."""
    found = [dict(run.env_kwargs) for run in runs if run.env == env_id]
    if any(one != found[0] for one in found):
        raise ConfigError(f"the runs trained on {env_id} with different arguments: evaluate one run at a time")
    return found[0] if found else {}


def _as_trained(name: str, run: TrainOptions, env_kwargs: Mapping[str, Mapping[str, Any]], trust: Trust) -> str:
    """Return the line that lists the settings of a run that an evaluation uses."""
    model = trained(Path(name), trust=trust)
    own = {name: model.settings[name] for name in ("max_tokens_per_turn", "max_completion_length", "system_prompt")}
    used = {**(run.env_kwargs if run.env in env_kwargs else {}), **model.options, **own, **model.sampling}
    shown = format_arguments({key: value for key, value in used.items() if value is not None})
    return f"Settings of {name}, unless an option overrides them: {shown}"


def _columns(rows: Sequence["Row"]) -> dict[str, list[str]]:
    """Return the columns of a table of scores, the most important first."""
    most = [k for k in sorted({max(row.pass_at, default=1) for row in rows}) if k > 1]
    failed = [f" (+{row.unscored} failed)" if row.unscored else "" for row in rows]
    return {
        "environment": _environments(rows),
        "policy": [row.policy for row in rows],
        "episodes": [f"{row.episodes}{more}" for row, more in zip(rows, failed, strict=True)],
        "success": [str(row.success) for row in rows],
        "return": [str(row.mean_return) for row in rows],
        **{f"pass@{k}": [_format(row.pass_at.get(k), ".3f") for row in rows] for k in most},
        "turns": [_format(row.turns, ".2f") for row in rows],
        "tokens": [_format(row.tokens, ".1f") for row in rows],
        "invalid": [_format(row.invalid, ".1%") for row in rows],
        "model s": [_format(row.model_seconds, ".3g") for row in rows],
        "env s": [_format(row.env_seconds, ".3g") for row in rows],
        "ended by": [", ".join(f"{why} {count}" for why, count in row.stop_reasons.items()) for row in rows],
    }


def _environments(rows: Sequence["Row"]) -> list[str]:
    """Return the rows' environments, with their arguments if one id occurs with different arguments."""
    played = {(row.env_id, to_json(row.env_kwargs)) for row in rows}
    ids = [env_id for env_id, _ in played]
    return [
        f"{row.env_id} {format_arguments(row.env_kwargs)}".strip() if ids.count(row.env_id) > 1 else row.env_id
        for row in rows
    ]


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else f"{value:{spec}}"

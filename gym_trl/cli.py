"""The command line: look at the games, play them, and train a model on one."""

import functools
import inspect
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import gymnasium as gym
import typer

import gym_trl
from gym_trl.envs.text_env import Measured, TextEnv
from gym_trl.errors import ConfigError, GymTRLError, NotTextError
from gym_trl.evaluation import Exchange, optimum, play_task, random_score
from gym_trl.grpo.vllm_check import check_vllm
from gym_trl.options import DEFAULT_ENV, TrainOptions, VLLMMode, read_options
from gym_trl.pool import TextEnvironment, read_instructions, read_step
from gym_trl.seeding import task_seed
from gym_trl.types import Task
from gym_trl.wrappers.as_text import as_text

if TYPE_CHECKING:
    from gym_trl.validation import Game, Validation

_P = ParamSpec("_P")
_RANDOM_EPISODES = 200
_SHOWN_TURNS = 8
_LEAVE = ("quit", "exit")
_POINTED = re.compile(r"-?((0|[1-9][0-9]*)\.|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)  # 1. and .5
_LARGEST_SEED = 2**32 - 1  # NumPy's, which the trainer seeds

app = typer.Typer(
    name="gym-trl",
    help="Text environments as real Gymnasium environments, and any of them a training ground for language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples: [bold]gym-trl list[/] · [bold]gym-trl play TrlEnv/GuessNumber-v0[/] · [bold]gym-trl train[/]",
    rich_markup_mode="rich",
)

EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="An argument of the environment; can be given several times. "
        "Numbers, true, false, none and lists are read as such, and everything else as text; for text that looks like "
        "a number, quote it twice: --env 'word=\"12\"'.",
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


def main() -> None:
    """Run the command that the arguments name."""
    app()


def _clear_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Say what is wrong in one line, and where it comes from only with ``--debug``."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:  # the reader of a pipe has seen enough
            raise
        except (GymTRLError, OSError) as error:
            if kwargs.get("debug"):
                raise
            _fail(_sentence(error))

    return run


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())


def _fail(text: str) -> NoReturn:
    sys.stderr.write(_encodable(f"Error: {text}\n", sys.stderr))
    raise typer.Exit(1)


def _say(text: str = "") -> None:
    """Print what a game said: any text, also what the terminal cannot encode."""
    sys.stdout.write(_encodable(f"{text}\n", sys.stdout))
    sys.stdout.flush()


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _pairs(given: list[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` strings as a dictionary.

    >>> _pairs(["high=8", "rate=1e-3", "strict=true", "word=yes=no", "turns=none"])
    {'high': 8, 'rate': 0.001, 'strict': True, 'word': 'yes=no', 'turns': None}
    >>> _pairs(["alphabet=01", "id=1_000", 'word="12"', "share=.5"])
    {'alphabet': '01', 'id': '1_000', 'word': '12', 'share': 0.5}
    """
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"expected NAME=VALUE, got {text!r}")
        pairs[name.strip()] = _value(value.strip())
    return pairs


def _value(text: str) -> Any:
    """What a value means: JSON, ``true``, ``false`` and ``none`` in any case, or a string as it is."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        # Only these are numbers beside JSON's; Python's own reading makes one of 01 and 1_000 as well.
        return float(text) if _POINTED.fullmatch(text) else text


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


def _make(env_id: str, kwargs: Mapping[str, Any]) -> TextEnvironment:
    """Make an environment, in words.

    Raises:
        ConfigError: there is none of that id, or it cannot be made so.
        NotTextError: its observations or actions have no words.
    """
    if ":" in env_id:  # gymnasium's "module:id" imports the module, which is often beside the user
        sys.path.append(str(Path.cwd()))
    try:
        env = gym.make(env_id, **kwargs)
    except GymTRLError:
        raise
    except gym.error.Error as error:
        raise ConfigError(_unknown(env_id) or f"cannot make {env_id}: {error}") from error
    except Exception as error:  # whatever an environment raises
        raise ConfigError(f"cannot make {env_id}: {type(error).__name__}: {error}") from error
    try:
        spoken = as_text(env)
    except NotTextError:
        env.close()
        raise
    if isinstance(env.unwrapped, TextEnv):
        env.unwrapped.render_mode = None  # in mode "human" it prints what is printed here
    return spoken


def _unknown(env_id: str) -> str | None:
    """That there is no such environment, with those that may be meant; ``None`` if there is one."""
    name = env_id.rpartition(":")[2]
    if name in gym.registry:
        return None
    # The last one of a name stays: the newest version, and before all others this library's own.
    known = {_bare(one): one for one in sorted(gym.registry, key=_is_ours)}
    close = [known[match] for match in get_close_matches(_bare(name), known, n=3, cutoff=0.75)]
    meant = " or ".join(sorted(close, key=_is_ours, reverse=True))
    return f"there is no environment {env_id!r}; " + (f"did you mean {meant}?" if meant else "see gym-trl list")


def _bare(env_id: str) -> str:
    return re.sub(r"-v[0-9]+$", "", env_id.rpartition("/")[2].lower())


def _is_ours(env_id: str) -> bool:
    return env_id.startswith("TrlEnv/")


def _description(env_id: str) -> str:
    """The first sentence of an environment's docstring."""
    entry_point = gym.registry[env_id].entry_point
    creator = gym.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    paragraph = " ".join((inspect.getdoc(creator) or "").split("\n\n")[0].split()).replace("``", "")
    return paragraph.split(". ")[0].rstrip(".") + "." if paragraph else ""


def _arguments(env: TextEnvironment) -> list[tuple[str, str]]:
    """An environment's arguments, each with its default: where presets give them, that of the default one."""
    parameters = inspect.signature(type(env.unwrapped)).parameters
    presets = env.unwrapped.presets if isinstance(env.unwrapped, TextEnv) else {}
    given = presets[parameters["difficulty"].default] if presets else {}
    return [
        (one.name, "(required)" if one.default is one.empty else repr(given.get(one.name, one.default)))
        for one in parameters.values()
        if one.name != "render_mode" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        _say(f"gym-trl {gym_trl.__version__}")
        raise typer.Exit


@app.command("list", epilog="Examples: [bold]gym-trl list[/] · [bold]gym-trl list --all | grep -i maze[/]")
@_clear_errors
def list_(
    everything: Annotated[
        bool, typer.Option("--all", help="List every id that Gymnasium knows, not only this library's.")
    ] = False,
) -> None:
    """List the environments."""
    if everything:
        for env_id in sorted(gym.registry):
            _say(env_id)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("what to do")
    for env_id in sorted(env_id for env_id in gym.registry if _is_ours(env_id)):
        table.add_row(env_id, _description(env_id))
    # In a pipe a line is as long as it is, for grep and cut.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table, markup=False, highlight=False)


@app.command(epilog="Examples: [bold]gym-trl info TrlEnv/GuessNumber-v0 --env high=100 --env turns=7[/]")
@_clear_errors
def info(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="An environment, such as TrlEnv/GuessNumber-v0.")],
    *,
    env: EnvOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the game that is shown.")] = 0,
    debug: DebugOption = False,
) -> None:
    """Describe an environment: its arguments, its instructions, how well it can be played, and a game."""
    kwargs = _pairs(env)
    game = _make(env_id, kwargs)
    if description := _description(env_id.rpartition(":")[2]):
        _say(f"{description}\n")
    for label, text in _facts(env_id, game, kwargs):
        _say(f"{label:<14}{text}")
    if instructions := read_instructions(game):
        _say(f"\nInstructions\n  {_indented(instructions)}")
    player = next((name for name in ("solver", "random_policy") if game.has_wrapper_attr(name)), None)
    if player is not None:
        seeds = [] if player == "solver" else [seed]
        played = play_task(game, Task(env_id, seed), lambda made: made.get_wrapper_attr(player)(*seeds))
        _say(f"\nA game, played by the {player.replace('_', ' ')} (seed {seed})")
        shown = played if len(played) <= _SHOWN_TURNS else [*played[: _SHOWN_TURNS - 1], played[-1]]
        for exchange in shown:
            _show(exchange)
        if len(shown) < len(played):
            _say(f"  ({_turns(len(played))})")
    game.close()


def _facts(env_id: str, game: TextEnvironment, kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    best = optimum(game)
    tasks = [Task(env_id, task_seed(0, "eval", index)) for index in range(_RANDOM_EPISODES)]
    chance = random_score(lambda _: _make(env_id, kwargs), tasks)
    count = game.get_wrapper_attr("num_instances") if game.has_wrapper_attr("num_instances") else None
    arguments = ", ".join(f"{name}={default}" for name, default in _arguments(game))
    return [
        ("id", env_id),
        ("arguments", arguments or "none"),
        *((str(name), _listed(preset)) for name, preset in getattr(game.unwrapped, "presets", {}).items()),
        ("observations", str(game.observation_space)),
        ("actions", str(game.action_space)),
        ("games", "not counted" if count is None else _counted(count)),
        ("perfect play", _level(best.success, best.mean_return)),
        ("random play", _level(chance.success, chance.mean_return) if chance else "unknown"),
    ]


def _listed(preset: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in preset.items())


def _counted(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"about 10^{math.log10(number):.0f}"  # of an integer of any size


def _level(success: float | None, mean_return: float | None) -> str:
    known = [
        f"{label} {value:.3g}" for label, value in (("success", success), ("return", mean_return)) if value is not None
    ]
    return ", ".join(known) or "unknown"


def _show(exchange: Exchange | Exception) -> None:
    if isinstance(exchange, Exception):
        _say(f"  {type(exchange).__name__}: {exchange}")
        return
    reply = exchange.reply
    _say(f"  {_indented(exchange.observation)}\n  > {_indented(exchange.action)}")
    if reply.terminated or reply.truncated:
        _say(f"  {_indented(reply.observation)}\n  (reward {reply.reward:g})")


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


@app.command(epilog="Examples: [bold]gym-trl play TrlEnv/GuessNumber-v0 --env high=8 --seed 3[/]")
@_clear_errors
def play(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="An environment, such as TrlEnv/GuessNumber-v0.")],
    *,
    env: EnvOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the game; a new one each time by default.")] = None,
    debug: DebugOption = False,
) -> None:
    """Play an environment yourself, in the terminal; "quit", Ctrl-C or Ctrl-D leaves."""
    game = _make(env_id, _pairs(env))
    if hasattr(sys.stdin, "reconfigure"):  # bytes that are no text are played as lone surrogates
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        if instructions := read_instructions(game):
            _say(f"{instructions}\n")
        with _one_line("reset", debug=debug):
            observation, _ = game.reset(seed=seed)
        _say(observation)
        total, turns = 0.0, 0
        while (action := _ask()) is not None:
            with _one_line("step", debug=debug):
                reply = read_step(*game.step(action))
            turns, total = turns + 1, total + reply.reward
            _say(reply.observation)
            if reply.reward:
                _say(f"(reward {reply.reward:g})")
            if reply.terminated or reply.truncated:
                solved = reply.info.get("success", reply.reward > 0)
                _say(f"\n{'Solved' if solved else 'Not solved'} in {_turns(turns)}, return {total:g}.")
                return
        _say(f"\nLeft after {_turns(turns)}, return {total:g}.")
    finally:
        game.close()


def _ask() -> str | None:
    """What the player types; ``None`` if the player leaves."""
    try:
        action = input("> ")
    except (EOFError, KeyboardInterrupt):
        return None
    if not sys.stdin.isatty():
        _say(action)
    return None if action.strip().lower() in _LEAVE else action


def _turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number} turns"


@contextmanager
def _one_line(what: str, *, debug: bool) -> Iterator[None]:
    """Say what a game raised, whatever it is, as a sentence."""
    try:
        yield
    except Exception as error:
        if debug:
            raise
        _fail(f"{what} raised {type(error).__name__}: {_sentence(error)}")


@app.command(
    epilog="Examples: [bold]gym-trl validate TrlEnv/GuessNumber-v0[/] · [bold]gym-trl validate --all --full[/]"
)
@_clear_errors
def validate(
    env_id: Annotated[str | None, typer.Argument(metavar="ID", help="An environment.", show_default=False)] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of this library's environments.")] = False,
    difficulty: Annotated[str | None, typer.Option(help="Only this preset; by default every one.")] = None,
    episodes: Annotated[
        int | None, typer.Option(min=2, help="What each policy plays; 100, or 2000 with --full.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Play 2000 episodes: minutes, for small differences.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each game instead.")] = False,
    remeasure: Annotated[
        bool, typer.Option("--measure", help="Write the references (all of them, 2000 episodes) instead of comparing.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Play environments with their solver and their hack policies, and check every promise that training relies on.

    Exit status 1 if a promise is broken, or a number is further from its reference than chance explains.
    """
    from gym_trl import validation

    if everything == (env_id is not None):
        raise ConfigError("give the id of one environment, or --all")
    if env_id is not None:
        _make(env_id, {}).close()
    ids = [env_id] if env_id is not None else sorted(filter(_is_ours, gym.registry))
    chosen = [game for game in validation.games(ids) if difficulty in (None, game.difficulty)]
    if not chosen:
        raise ConfigError(f"there is no preset {difficulty!r}")
    jobs = min(jobs or os.cpu_count() or 1, len(chosen))
    count = episodes or (2000 if full or remeasure else 100)
    if remeasure:
        for game, measured in validation.measure_all(chosen, episodes=count, jobs=jobs):
            validation.write_measurements(validation.MEASURED, [(game, measured)])
            _say(_line(game, measured))
        return
    began, failed = time.monotonic(), 0
    for found in validation.validate_all(chosen, episodes=count, seed=seed, jobs=jobs):
        failed += bool(found.problems)
        _say(json.dumps(found.as_dict()) if as_json else _verdict(found))
    if not as_json:
        seconds = time.monotonic() - began
        _say(f"{len(chosen)} games of {len(ids)} environments, {failed} with problems, in {seconds:.0f} s.")
    if failed:
        raise typer.Exit(1)


def _verdict(found: "Validation") -> str:
    said = "".join(f"\n    {problem}" for problem in found.problems)
    best = "?" if found.optimal_success is None else f"{found.optimal_success:.3f}"
    return f"{'FAIL' if said else 'ok  '} {_line(found.game, found.measured)}  optimum {best}{said}"


def _line(game: "Game", measured: Mapping[str, Measured]) -> str:
    """What policies reached, in columns that are as wide for every game."""
    wins = "  ".join(f"{name} {numbers.success:.3f}" for name, numbers in measured.items())
    return f"{game.env_id:<26} {game.difficulty or '':<7} {wins}  {measured['solver'].turns:.1f} turns"


_TRAIN_HELP = (
    "Train a model on an environment with TRL's GRPOTrainer, and leave a folder with everything about it.\n\n"
    "Without --model it trains a tiny model made on the spot: a tenth of a million random weights that read "
    "characters. It cannot read English, so it gets no instructions, answers with the bare action, and learns a small "
    "game from nothing; GuessNumber is played from 1 to 8 in 4 turns and Echo with 3 of 4 letters, unless --env says "
    "otherwise. With --model it trains a model from a path or from the hub, which gets the environment's instructions "
    "and marks its action with <action>...</action>.\n\n"
    "The folder holds config.json, metrics.jsonl, rollouts.jsonl, curve.png, model, checkpoints and summary.json with "
    "the success on held-out games before and after. Ctrl-C stops after the step that is running and leaves a complete "
    "folder; --resume continues it, also after a crash. Exit status: 0 when the last step was reached, 130 when "
    "interrupted, 1 for an error."
)
_TRAIN_EXAMPLES = """Examples:

gym-trl train

gym-trl train TrlEnv/GuessNumber-v0 --env high=16 --env turns=5 --steps 600 --out runs/sixteen

gym-trl train TrlEnv/Echo-v0 --grpo learning_rate=1e-3 --grpo num_generations=16

gym-trl train TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --episodes 64 --vllm colocate

gym-trl train --model Qwen/Qwen3-0.6B --vllm server --grpo vllm_server_base_url=http://localhost:8000

gym-trl train --resume runs/sixteen
"""


@app.command(help=_TRAIN_HELP, epilog=_TRAIN_EXAMPLES)
@_clear_errors
def train(
    context: typer.Context,
    *,
    env_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="An environment; by default TrlEnv/GuessNumber-v0.", show_default=False),
    ] = None,
    env: EnvOption = None,
    model: Annotated[
        str | None, typer.Option(help="A path or hub id; by default a tiny model from random weights.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="How many; with --resume, the new end.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes in a step, over all processes.")] = None,
    group_size: Annotated[int | None, typer.Option(min=2, help="Episodes that play the same game.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the optimiser.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="What the model may say in a turn.")] = None,
    max_completion: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a whole episode, the environment's included.")
    ] = None,
    action_format: Annotated[
        str | None, typer.Option(help='How the model marks its action: "tag", "boxed", "plain", ...')
    ] = None,
    invalid_penalty: Annotated[float | None, typer.Option(min=0.0, help="What an invalid action costs.")] = None,
    eval_episodes: Annotated[int | None, typer.Option(min=1, help="Held-out episodes, before and after.")] = None,
    records: Annotated[int, typer.Option(min=0, help="Trajectories that a step leaves in rollouts.jsonl.")] = 16,
    seed: Annotated[
        int, typer.Option(min=0, max=_LARGEST_SEED, help="Of the games, of the sampling and of the tiny model.")
    ] = 0,
    vllm: Annotated[
        VLLMMode | None,
        typer.Option(help="Generate with vLLM: in the trainer's process, or on a server of the same --model."),
    ] = None,
    grpo: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any field of TRL's GRPOConfig; can be given several times."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; by default one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to continue.")] = None,
    debug: DebugOption = False,
) -> None:
    """Train a model; the help is ``_TRAIN_HELP``."""
    chosen: dict[str, Any] = {"learning_rate": learning_rate, "max_completion_length": max_completion}
    if vllm is not None:
        chosen |= {"use_vllm": True, "vllm_mode": vllm.value}
    fields = {**_pairs(grpo), **{name: value for name, value in chosen.items() if value is not None}}
    if resume is not None:
        _refuse_other_options(context)
        options = read_options(resume)
    else:
        options = TrainOptions.choose(
            env_id or DEFAULT_ENV,
            model=model,
            env_kwargs=_pairs(env),
            seed=seed,
            records_per_step=records,
            grpo=fields,
            steps=steps,
            episodes=episodes,
            group_size=group_size,
            max_tokens_per_turn=max_tokens,
            action_format=action_format,
            invalid_penalty=invalid_penalty,
            eval_episodes=eval_episodes,
        )
    # Before anything heavy is loaded:
    _make(options.env, options.env_kwargs).close()
    check_vllm(options.grpo)
    if os.environ.get("RANK", "0") == "0":
        _say("Loading PyTorch and TRL")
    from gym_trl import training
    from gym_trl.grpo.processes import leave_process_group

    summary = training.train(options, out=out) if resume is None else training.resume(resume, steps=steps)
    leave_process_group()
    if summary["interrupted"]:
        raise typer.Exit(130)


def _refuse_other_options(context: typer.Context) -> None:
    allowed = {"resume", "steps", "debug"}
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--resume continues with the run's own options and takes --steps only, not {name}")

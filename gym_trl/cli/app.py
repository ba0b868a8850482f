"""Command line: list, describe and play environments, train and evaluate models, and work with records."""

import functools
import inspect
import json
import math
import os
import random
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import gymnasium as gym
import typer

import gym_trl
from gym_trl.envs.text_env import Measured, TextEnv
from gym_trl.errors import ConfigError, GymTRLError, NotTextError
from gym_trl.evaluation.blind import SECONDS as BLIND_SECONDS
from gym_trl.evaluation.blind import STEPS as BLIND_STEPS
from gym_trl.evaluation.blind import describe
from gym_trl.evaluation.play import Exchange, optimum, play_task, random_score
from gym_trl.evaluation.scores import Row, Scoreboard
from gym_trl.executors.make import EXECUTORS
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import read_instructions
from gym_trl.grpo.vllm_check import check_vllm
from gym_trl.policies.functions import person
from gym_trl.policies.model import check_model
from gym_trl.records.json_lines import to_json
from gym_trl.registration import EnvMaker, creator_of, env_maker, find_maker, is_ours, make_env, unknown_id
from gym_trl.seeding import task_seed
from gym_trl.text.textify import counted
from gym_trl.training.options import DEFAULT_ENV, TrainOptions, VLLMMode, read_options
from gym_trl.training.run_folder import is_run, trained
from gym_trl.types import Task
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import declare_success

if TYPE_CHECKING:
    from gym_trl.env_checker.report import Finding, Report
    from gym_trl.env_checker.validation import Game, Validation
    from gym_trl.evaluation.interactive import PlayedGame
    from gym_trl.evaluation.opponents import Opposing, Race
    from gym_trl.training.progress import Display

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
SuccessOption = Annotated[
    str | None,
    typer.Option(
        help="What counts as solved where the environment does not say: a return to reach, info, or module:function."
    ),
]
SpecOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Any other argument of GymSpec, such as turn_limit=8; can be given several times.",
    ),
]
SystemPromptOption = Annotated[str | None, typer.Option(help="Said to models first.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


def main() -> None:
    """Run the command named by the arguments."""
    app()


def _clear_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Print errors as one line; show the traceback with ``--debug`` only."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            _check_finite(kwargs)
            command(*args, **kwargs)
        except BrokenPipeError:  # the reader has closed the pipe
            raise
        except (GymTRLError, OSError) as error:
            if kwargs.get("debug"):
                raise
            _fail(_sentence(error))

    return run


def _check_finite(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{_option(name)} must be a finite number, got {value}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())


def _fail(text: str) -> NoReturn:
    sys.stderr.write(_encodable(f"Error: {text}\n", sys.stderr))
    raise typer.Exit(2)


def _say(text: str = "") -> None:
    """Print text of an environment, escaping characters that the terminal cannot encode."""
    sys.stdout.write(_encodable(f"{text}\n", sys.stdout))
    sys.stdout.flush()


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _pairs(given: list[str] | None) -> dict[str, Any]:
    """Return ``NAME=VALUE`` strings as a dictionary.

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
    """Return the value of a string: JSON, ``true``, ``false`` or ``none`` in any case, or the string itself."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        # The only additions to JSON's numbers; Python would also accept 01 and 1_000.
        return float(text) if _POINTED.fullmatch(text) else text


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


def _make(env_id: str, kwargs: Mapping[str, Any]) -> TextEnvironment:
    """Make an environment with text observations and actions.

    Raises:
        ConfigError: there is no such environment, or it cannot be made with these arguments.
        NotTextError: its observations or actions cannot be converted to text.
    """
    env = declare_success(make_env(env_id, **kwargs))
    try:
        spoken = as_text(env)
    except NotTextError:
        env.close()
        raise
    if isinstance(env.unwrapped, TextEnv):
        env.unwrapped.render_mode = None  # in mode "human" it would print everything twice
    return spoken


def _description(env_id: str) -> str:
    """Return the first sentence of an environment's docstring."""
    creator = creator_of(find_maker(env_id))
    paragraph = " ".join((inspect.getdoc(creator) or "").split("\n\n")[0].split()).replace("``", "")
    return paragraph.split(". ")[0].rstrip(".") + "." if paragraph else ""


def _arguments(env: TextEnvironment) -> list[tuple[str, str]]:
    """Return an environment's arguments with their defaults; with presets, those of the default preset."""
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
    """List the available environments."""
    if everything:
        for env_id in sorted(gym.registry):
            _say(env_id)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("what to do")
    for env_id in sorted(env_id for env_id in gym.registry if is_ours(env_id)):
        table.add_row(env_id, _description(env_id))
    # Lines are not wrapped in a pipe, for grep and cut.
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
    """Show an environment's arguments, instructions, measured scores and an example episode."""
    kwargs = _pairs(env)
    game = _make(env_id, kwargs)
    if description := _description(env_id):
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
            _say(f"  ({counted(len(played), 'turn')})")
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


_ID_HELP = "An id, module:id, package.module:Class, or a file.py with one environment or :Class behind it."
_PLAY_HELP = (
    'Play an environment yourself, in the terminal; "quit", Ctrl-C or Ctrl-D leaves.\n\n'
    '":undo" takes your last action back, ":hint" asks the environment\'s solver, ":history" shows the game so far, '
    '":help" says so, and the arrow keys bring back what you typed. None of them costs a turn.\n\n'
    "With --against somebody plays against you: solver, random or another of the environment's own policies, a model's "
    "path, hub id or run, the address of an OpenAI-compatible server (its key is $OPENAI_API_KEY), or "
    "package.module:function. In games for two it has the other side. In games for one it plays the same game beside "
    "you, a turn for each of yours, and the ends are compared: by the return, and then by the turns."
)
_PLAY_EXAMPLES = """Examples:

gym-trl play TrlEnv/GuessNumber-v0 --env high=8 --seed 3

gym-trl play TrlEnv/TicTacToe-v0 --against solver

gym-trl play TrlEnv/GuessNumber-v0 --against runs/first --env high=8 --env turns=4

gym-trl play TrlEnv/KuhnPoker-v0 --against http://localhost:8000/v1
"""


@app.command(help=_PLAY_HELP, epilog=_PLAY_EXAMPLES)
@_clear_errors
def play(
    env_id: Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP)],
    *,
    env: EnvOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the game; a new one each time by default.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Who plays against you; see above.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Play an environment in the terminal; the help text is ``_PLAY_HELP``."""
    from gym_trl.evaluation.interactive import PlayedGame

    kwargs, chosen = _pairs(env), random.randrange(2**31) if seed is None else seed
    rival = _Rival(None, None) if against is None else _rival(against, env_id, kwargs, chosen)
    game = PlayedGame(functools.partial(_make, env_id, {**kwargs, **rival.arguments}), chosen)
    if hasattr(sys.stdin, "reconfigure"):  # invalid bytes become lone surrogates
        sys.stdin.reconfigure(errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401 -- arrow keys, on systems that have it
    try:
        if instructions := read_instructions(game.env):
            _say(f"{_coloured(instructions, dim=True)}\n")
        with _one_line("reset", debug=debug):
            first = game.start()
        rival.tell(game)
        _say(first)
        while not game.over:
            if (action := _ask()) is None:
                _say(f"\nLeft after {counted(len(game.played), 'turn')}, return {game.total:g}.")
                return
            if (command := action.strip()).startswith(":") and not command.startswith("::"):
                _say(_COMMANDS.get(command, _help)(game))
                rival.forget()
                continue
            if command.startswith("::"):
                action = action.replace("::", ":", 1)
            with _one_line("step", debug=debug):
                reply = game.step(action)
            rival.tell(game)
            _say(reply.observation)
            if reply.reward:
                _say(_coloured(f"(reward {reply.reward:g})", fg="green" if reply.reward > 0 else "red"))
        solved: bool | None = reply.info.get("success")
        verdict = _coloured(_SOLVED[solved], fg={True: "green", False: "red", None: None}[solved], bold=True)
        _say(f"\n{verdict} in {counted(len(game.played), 'turn')}, return {game.total:g}.")
        rival.compare(game, solved=solved)
    finally:
        rival.close()
        game.close()


_SOLVED = {True: "Solved", False: "Not solved", None: "Over"}
"""Labels by ``info["success"]``, which an environment need not declare."""


class _Rival:
    """Display of the person's opponent or competitor, if there is one."""

    def __init__(self, opposing: "Opposing | None", race: "Race | None", name: str = "") -> None:
        self.opposing, self.race, self.name = opposing, race, name

    @property
    def arguments(self) -> dict[str, Any]:
        return self.opposing.arguments if self.opposing else {}

    def tell(self, game: "PlayedGame") -> None:
        """Print its turns since the last call."""
        if self.opposing:
            for said in self.opposing.spoken:
                read = "" if said.action == said.answer else f" (read as {said.action!r})"
                unread = " (no action in it: a random one is played)" if said.action is None else read
                _say(_coloured(f"{self.name}: {said.answer}{unread}", fg="magenta"))
            self.forget()
        if self.race and game.played:
            was, stopped = self.race.turns, self.race.stopped
            self.race.play(len(game.played))
            if self.race.turns > was or self.race.stopped != stopped or len(game.played) == was:
                _say(_coloured(f"({self._standing()})", dim=True))

    def forget(self) -> None:
        """Discard its turns in the replay of a hint or an undo, which are not shown."""
        if self.opposing:
            self.opposing.spoken.clear()

    def compare(self, game: "PlayedGame", *, solved: bool | None) -> None:
        """Print the winner, if both played the same task."""
        from gym_trl.evaluation.opponents import winner

        if not self.race:
            return
        other = self.race.play()
        _say(f"\n{self.name}, the same game:")
        for exchange in other.played:
            _say(f"{_coloured(f'> {exchange.action}', fg='magenta')}\n{exchange.reply.observation}")
        _say(f"\n{self._standing()}.")
        if other.stopped is None:
            better = winner((game.total, solved, len(game.played)), (other.total, other.solved, other.turns))
            _say(_coloured({1: "You win.", 0: "Nobody wins.", -1: f"{self.name} wins."}[better], bold=True))

    def close(self) -> None:
        if self.race:
            self.race.close()

    def _standing(self) -> str:
        assert self.race is not None
        turns = counted(self.race.turns, "turn")
        if self.race.stopped is not None:
            return f"{self.name} could not play on after {turns}: {self.race.stopped}"
        if not self.race.over:
            return f"{self.name} has played {turns}"
        return f"{self.name}: {_SOLVED[self.race.solved].lower()} in {turns}, return {self.race.total:g}"


def _rival(against: str, env_id: str, kwargs: Mapping[str, Any], seed: int) -> _Rival:
    from gym_trl.evaluation.opponents import Challenger, Opposing, Race, check_against, is_for_two
    from gym_trl.evaluation.play import as_player
    from gym_trl.policies.model import Model
    from gym_trl.policies.server import server

    if against == "person":
        raise ConfigError(
            "the person is you; --against is solver, random, a model, a server or package.module:function"
        )
    env = _make(env_id, kwargs)
    check_against(env, kwargs)
    for_two = is_for_two(env)
    env.close()
    if against.startswith(("http://", "https://")):
        player: Any = server(against, api_key=os.environ.get("OPENAI_API_KEY"))
    elif is_run(Path(against)):
        player = trained(Path(against))
    else:
        player = as_player(against)
    if isinstance(player, Model):
        _say_aside(f"Loading {player.name}")
    challenger = Challenger(player)
    if for_two:
        return _Rival(Opposing(challenger, lambda **more: _make(env_id, {**kwargs, **more}), seed), None, player.name)
    return _Rival(None, Race(challenger, lambda: _make(env_id, kwargs), seed), player.name)


def _undo(game: "PlayedGame") -> str:
    return game.undo() if game.played else _coloured("There is nothing to undo.", dim=True)


def _hint(game: "PlayedGame") -> str:
    hint = game.hint()
    if not game.env.has_wrapper_attr("solver"):
        return _coloured("This environment has no solver to ask.", dim=True)
    if hint is None:
        return _coloured("There is no solver that can play on from here.", dim=True)
    leads = f"wins in {counted(hint.turns, 'turn')}" if hint.wins else "does not win, as far as the solver sees"
    return f"{_coloured(hint.action, fg='cyan', bold=True)} {_coloured(f'({leads})', dim=True)}"


def _history(game: "PlayedGame") -> str:
    lines = [game.first]
    for exchange in game.played:
        lines += [_coloured(f"> {exchange.action}", fg="cyan"), exchange.reply.observation]
        if exchange.reply.reward:
            lines.append(_coloured(f"(reward {exchange.reply.reward:g})", dim=True))
    return "\n".join(lines)


def _help(game: "PlayedGame") -> str:
    return _coloured(
        ":undo takes your last action back, :hint asks the solver, :history shows the game so far, quit leaves; "
        "none of them costs a turn. An action that begins with a colon is given with two.",
        dim=True,
    )


_COMMANDS: dict[str, Callable[["PlayedGame"], str]] = {
    ":undo": _undo,
    ":hint": _hint,
    ":history": _history,
    ":help": _help,
}


def _coloured(text: str, **style: Any) -> str:
    """Return text with terminal styles, or unchanged for files, pipes and ``NO_COLOR``."""
    return typer.style(text, **style) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def _ask() -> str | None:
    """Return the action that the player types; ``None`` if the player leaves."""
    try:
        action = input("> ")
    except (EOFError, KeyboardInterrupt):
        return None
    if not sys.stdin.isatty():
        _say(action)
    return None if action.strip().lower() in _LEAVE else action


@contextmanager
def _one_line(what: str, *, debug: bool) -> Iterator[None]:
    """Print any exception of the environment as one line."""
    try:
        yield
    except Exception as error:
        if debug:
            raise
        _fail(f"{what} raised {type(error).__name__}: {_sentence(error)}")


_VALIDATE_HELP = (
    "Check every promise that training relies on, of the library's games or of environments of your own.\n\n"
    "The library's games are played with their solver and their baselines, and compared with what was measured "
    "before. Of any other environment (text or other spaces; a registered id, module:id, package.module:Class, or a "
    "file.py with a class in it) the report has a line for each promise: what was seen, whether that is ok, a warning "
    "(training works and is the worse for it) or a problem, and what to change. It is played in a process of its own, "
    "so that what hangs or crashes is a line, too.\n\n"
    "Of every environment the blind baseline is searched for: the best sequence of actions that observes nothing, "
    "measured on held-out episodes. What a model scores says something about reading only above it.\n\n"
    "Exit status: 0; 1 if a promise is broken, or a number is further from its reference than chance explains; 2 for "
    "an error."
)
_VALIDATE_EXAMPLES = """Examples:

gym-trl validate my_game.py

gym-trl validate my_games.chess:Chess --env size=5 --episodes 50

gym-trl validate my_games:Mine/Chess-v0 --json

gym-trl validate TrlEnv/Hangman-v0 FrozenLake-v1 --blind-steps 1000000 --blind-seconds 120

gym-trl validate --all --full
"""


@app.command(help=_VALIDATE_HELP, epilog=_VALIDATE_EXAMPLES)
@_clear_errors
def validate(
    env_ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help=_ID_HELP, show_default=False)] = None,
    *,
    env: EnvOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All of this library's environments.")] = False,
    difficulty: Annotated[
        str | None, typer.Option(help="Only this preset of the library's games; by default every one.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=2, help="What each policy plays: 100, or 2000 with --full; 20 for a report.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Play 2000 episodes: minutes, for small differences.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes and of the search for a blind policy.")] = 0,
    blind_steps: Annotated[
        int, typer.Option(min=0, help="Environment steps in which a blind policy is searched for; 0 for no search.")
    ] = BLIND_STEPS,
    blind_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="After so many seconds the search is cut off, for each environment or preset."),
    ] = BLIND_SECONDS,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead: a line for each environment.")] = False,
    remeasure: Annotated[
        bool,
        typer.Option("--measure", help="Write the references and blind baselines (2000 episodes), compare nothing."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Validate environments; the help text is ``_VALIDATE_HELP``."""
    ids = sorted(gym_trl.GAMES) if everything else list(dict.fromkeys(env_ids or ()))
    if everything == bool(env_ids):
        raise ConfigError("give the id of an environment, or several, or --all")
    if env and len(ids) > 1:
        raise ConfigError("--env is for one environment, not for several or --all")
    own = [env_id for env_id in ids if env_id in gym_trl.GAMES and not env]
    others = [env_id for env_id in ids if env_id not in own]
    for option, given in (("--difficulty", difficulty), ("--full", full), ("--measure", remeasure)):
        if given and others:
            raise ConfigError(f"{option} is for the library's own games and their presets, not for {others[0]}")
    makers = {env_id: _unchecked_maker(env_id) for env_id in others}  # before anything is played
    if remeasure:
        _measure(own, difficulty, episodes or 2000, blind_steps, jobs)
        return
    broken = 0
    if own:
        chosen = _presets(own, difficulty)
        count = episodes or (2000 if full else 100)
        broken += _validate_games(
            chosen, count, seed, _jobs(jobs, chosen), (blind_steps, blind_seconds), as_json=as_json
        )
    for env_id, maker in makers.items():
        search = {"seed": seed, "blind_steps": blind_steps, "blind_seconds": blind_seconds}
        broken += _inspect(
            env_id, functools.partial(maker, **_pairs(env)), search, episodes=episodes or 20, as_json=as_json
        )
    if broken:
        raise typer.Exit(1)


def _unchecked_maker(env_id: str) -> EnvMaker:
    """Return the maker of an environment without Gymnasium's own checks, which would hide errors."""
    if (maker := env_maker(env_id)) is None:
        raise ConfigError(unknown_id(env_id))
    return maker


def _presets(ids: list[str], difficulty: str | None) -> list["Game"]:
    from gym_trl.env_checker import validation

    every = validation.games(ids)
    if chosen := [game for game in every if difficulty in (None, game.difficulty)]:
        return chosen
    presets = dict.fromkeys(game.difficulty for game in every if game.difficulty is not None)
    raise ConfigError(f"there is no preset {difficulty!r}; there is {', '.join(presets) or 'none'}")


def _jobs(jobs: int | None, chosen: list["Game"]) -> int:
    return min(jobs or os.cpu_count() or 1, len(chosen))


def _measure(ids: list[str], difficulty: str | None, episodes: int, blind_steps: int, jobs: int | None) -> None:
    """Measure the reference values for the library's own environments, and write them to a file."""
    from gym_trl.env_checker import validation

    chosen = _presets(ids, difficulty)
    jobs = _jobs(jobs, chosen)
    for game, measured in validation.measure_all(chosen, episodes=episodes, jobs=jobs):
        validation.write_measurements(validation.MEASURED, [(game, measured)])
        _say(_line(game, measured))
    if not blind_steps:
        return
    for game, found in validation.measure_all_blind(chosen, episodes=episodes, steps=blind_steps, jobs=jobs):
        validation.write_blind(validation.MEASURED_BLIND, [(game, found)])
        for one in found.values():
            _say(f"{game.env_id:<26} {game.difficulty or '':<7} a blind policy {describe(one)}")


def _validate_games(
    chosen: list["Game"], episodes: int, seed: int, jobs: int, search: tuple[int, float], *, as_json: bool
) -> int:
    """Print a line for each game, and return how many have problems."""
    from gym_trl.env_checker import validation

    began, failed = time.monotonic(), 0
    steps, seconds = search
    every = validation.validate_all(
        chosen, episodes=episodes, seed=seed, jobs=jobs, blind_steps=steps, blind_seconds=seconds
    )
    for found in every:
        failed += bool(found.problems)
        _say(json.dumps(found.as_dict()) if as_json else _verdict(found))
    if not as_json:
        took, ids = time.monotonic() - began, {game.env_id for game in chosen}
        _say(f"{len(chosen)} games of {len(ids)} environments, {failed} with problems, in {took:.0f} s.")
    return failed


def _inspect(env_id: str, make: Callable[[], Any], search: Mapping[str, Any], *, episodes: int, as_json: bool) -> int:
    """Print the report on an environment, and return how many problems it has."""
    from rich.console import Console

    from gym_trl.env_checker.checks import PROMISES
    from gym_trl.env_checker.inspection import inspect_env
    from gym_trl.env_checker.report import PROBLEM

    promises = list(PROMISES)
    with Console(stderr=True).status(promises[0]) as status:

        def next_one(found: "Finding") -> None:
            done = promises.index(found.promise) + 1
            status.update(f"{done} of {len(promises)}: {found.promise} {found.verdict}")

        report = inspect_env(make, name=env_id, episodes=episodes, on_finding=next_one, **search)
    if as_json:
        _say(json.dumps(report.as_dict()))
    else:
        _show_report(report)
    return report.count(PROBLEM)


_MARKS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "problem": ("PROBLEM", "red"),
    "skipped": ("-", "dim"),
}


def _show_report(report: "Report") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("", "promise", "what was seen, and what to change"):
        table.add_column(name, no_wrap=name == "promise")
    for found in report.findings:
        mark, style = _MARKS[found.verdict]
        told = Text(found.got)
        if found.fix:
            told.append(f"\n{found.why}", style="dim")
            told.append(f"\n-> {found.fix}", style="bold")
        table.add_row(Text(mark, style=style), Text(found.promise), told)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(Text(report.name, style="bold"))
    console.print(table, markup=False, highlight=False)
    counts = [f"{report.count(name)} {name}" for name in _MARKS if report.count(name)]
    console.print(Text(", ".join(counts)))


def _verdict(found: "Validation") -> str:
    said = "".join(f"\n    {problem}" for problem in found.problems)
    best = "?" if found.optimal_success is None else f"{found.optimal_success:.3f}"
    blind = ""
    if found.blind is not None:
        near = "; that is near the optimum: most of a score needs no reading" if found.near_optimum else ""
        blind = f"\n    a blind policy {describe(found.blind)}{near}"
    return f"{'FAIL' if said else 'ok  '} {_line(found.game, found.measured)}  optimum {best}{blind}{said}"


def _line(game: "Game", measured: Mapping[str, Measured]) -> str:
    """Return the results of policies in columns of fixed width."""
    wins = "  ".join(f"{name} {numbers.success:.3f}" for name, numbers in measured.items())
    return f"{game.env_id:<26} {game.difficulty or '':<7} {wins}  {measured['solver'].turns:.1f} turns"


@app.command(epilog="Examples: [bold]gym-trl view runs/first[/] · [bold]gym-trl view runs/first --live[/]")
@_clear_errors
def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or a file of its episodes.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="The page; by default view.html in the run's folder.", show_default=False)
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on this machine's loopback while the run goes on.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --live; any free one by default.")] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A folder with the tokenizer of the ids; by default the run's own.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Write a run as one offline HTML page with its curves and its episodes down to the token."""
    if live and out is not None:
        raise ConfigError("--live serves the page and writes none: leave out --out")
    if port and not live:
        raise ConfigError(f"--port {port} is for --live")
    if live:
        from gym_trl.viewer.live import LiveServer

        try:
            server = LiveServer(run, port=port, tokenizer=tokenizer)
        except OSError as error:
            raise ConfigError(f"cannot listen at 127.0.0.1:{port}: {_sentence(error)}; give another --port") from error
        with suppress(KeyboardInterrupt):
            _say(f"{server.url} shows {run} as it goes on; Ctrl-C ends it.")
            server.serve()
        return
    from gym_trl.viewer.page import write_page

    page = out or (run / "view.html" if run.is_dir() else run.with_suffix(".html"))
    counts = write_page(run, page, tokenizer=tokenizer)
    if counts["broken"]:
        sys.stderr.write(f"{counted(counts['broken'], 'line')} that are no records were left out.\n")
    _say(f"{page} shows {counted(counts['episodes'], 'episode')} in {counts['bytes'] / 1e6:.1f} MB.")


@app.command(
    epilog="Examples: [bold]gym-trl serve TrlEnv/GuessNumber-v0 --port 8000[/] · "
    "[bold]gym-trl serve CartPole-v1 --port 0 --sessions 256[/]"
)
@_clear_errors
def serve(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="An environment, such as TrlEnv/GuessNumber-v0.")],
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where to listen; 0 takes a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="By default only this machine can connect. Any other address asks for a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GYM_TRL_TOKEN",
            help="What clients must send as Authorization: Bearer TOKEN; for other addresses one is made by default.",
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="How many can play at once.")] = 64,
    env: EnvOption = None,
    debug: DebugOption = False,
) -> None:
    """Serve an environment to OpenEnv clients, with a separate instance for each.

    gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000") is such a client. An action is {"message": TEXT};
    reset takes a seed and the environment's own options. Messages over one megabyte are rejected.
    """
    kwargs = _pairs(env)
    _make(env_id, kwargs).close()
    from gym_trl.integrations.openenv.server import serve as serve_openenv

    serve_openenv(env_id, env_kwargs=kwargs, host=host, port=port, sessions=sessions, token=token, say=_say)


_EVAL_HELP = (
    "Play held-out games with models and other policies, and say how well each did, with 95% intervals.\n\n"
    "Policies are the environments' own (solver, random, constant, garbage, noop), package.module:function (which "
    "makes an episode's policy from its environment), and person. Models are paths, hub ids (ORG/NAME), or folders of "
    "runs, which play as they were trained where no option says otherwise; with "
    "--base-url they are those of an OpenAI-compatible server. All play the same games, of seeds that training never "
    "sees.\n\n"
    "With --out every episode is written down when it is over, and the same command goes on where a killed one "
    "stopped; other policies add to the folder. Instead of ids, a file.toml can give any of the options, by name. "
    "Exit status: 0; 1 if a success is below --fail-under; 2 for an error; 130 when interrupted."
)
_EVAL_EXAMPLES = """Examples:

gym-trl eval TrlEnv/GuessNumber-v0 --policy solver --policy random --episodes 1000 --out evals/guess

gym-trl eval TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --vllm --episodes 400 --attempts 4 --out evals/wordle

gym-trl eval TrlEnv/Wordle-v0 --base-url http://localhost:8000/v1 --temperature 0 --json

gym-trl eval --model runs/sixteen --fail-under 0.8
"""
_GAMES = "Ids of environments, or a file.toml; by default that of the run that --model names."


@app.command("eval", help=_EVAL_HELP, epilog=_EVAL_EXAMPLES)
@_clear_errors
def eval_(
    context: typer.Context,
    *,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help=_GAMES, show_default=False)] = None,
    env: EnvOption = None,
    policy: Annotated[list[str] | None, typer.Option(help="Can be given several times; see above.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="A path, hub id or run; can be given several times.")] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Of an OpenAI-compatible server, with its /v1; its key is $OPENAI_API_KEY.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="What each policy plays on each environment.")] = 100,
    attempts: Annotated[int, typer.Option(min=1, help="How many of them play the same game, for pass@k.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="Of the games and of the sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder of the episodes.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Play again what could not be scored.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Write token ids and logprobs as well.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="Generate with vLLM instead of Transformers.")] = False,
    llm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any argument of vllm.LLM; can be given several times."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes that a model plays at once.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 takes the likeliest token.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="What a model may say in a turn; 256.")] = None,
    max_completion: Annotated[int | None, typer.Option(min=1, help="Tokens of a whole episode.")] = None,
    action_format: Annotated[
        str | None, typer.Option(help='How models mark their actions: "tag" (the default), "boxed", "plain", ...')
    ] = None,
    spec: SpecOption = None,
    system_prompt: SystemPromptOption = None,
    success: SuccessOption = None,
    fail_under: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Exit status 1 if a policy's success is below.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate policies; the help text is ``_EVAL_HELP``."""
    if ids is not None and any(one.endswith(".toml") for one in ids):
        if len(ids) > 1:
            raise ConfigError("give one file.toml, or ids")
        _evaluate(**_from_toml(context, Path(ids[0])))
        return
    _evaluate(**_parameters(context))


_PAIRS = ("env", "spec", "llm")
"""Options of ``gym-trl eval`` that are given as NAME=VALUE."""


def _parameters(context: typer.Context) -> dict[str, Any]:
    """Return the command's options as arguments of its function."""
    return {name: _pairs(value) if name in _PAIRS else value for name, value in context.params.items()}


def _from_toml(context: typer.Context, path: Path) -> dict[str, Any]:
    """Return the options of a file, overridden by those of the command line."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    options = {**_parameters(context), "ids": None}
    for key, value in given.items():
        name = {"json": "as_json", "id": "ids"}.get(key, key.replace("-", "_"))
        if name not in options:
            close = get_close_matches(name, options, n=1)
            raise ConfigError(
                f"{path}: there is no option {key!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        source = context.get_parameter_source(name)
        if name == "ids" or source is None or source.name != "COMMANDLINE":
            options[name] = _read(context, name, value, f"{path}: {key}")
    _check_finite(options)
    return options


def _read(context: typer.Context, name: str, value: Any, where: str) -> Any:
    """Return what an option of a file means, read as on the command line."""
    if name in _PAIRS:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} must be a table of names and values, got {value!r}")
        return value
    if name in ("ids", "policy", "model"):
        value = value if isinstance(value, list) else [value]
    parameter = next(one for one in context.command.params if one.name == name)
    try:
        return parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise ConfigError(f"{where} = {value!r} does not work: {error.message}") from error


def _evaluate(
    *,
    ids: Sequence[str] | None,
    env: Mapping[str, Any],
    policy: Sequence[str] | None,
    model: Sequence[str] | None,
    base_url: str | None,
    spec: Mapping[str, Any],
    action_format: str | None,
    success: str | float | None,
    fail_under: float | None,
    as_json: bool,
    episodes: int,
    debug: bool,
    **options: Any,
) -> None:
    from rich.console import Console

    from gym_trl.evaluation.evaluation import evaluate
    from gym_trl.training.progress import display_on, lasting_console

    given = {name: options.pop(name) for name in _OF_MODELS}
    players: list[Any] = [
        person(lambda _: _ask(), _say) if name == "person" else _policy(name) for name in policy or ()
    ]
    runs = {name: read_options(Path(name)) for name in model or () if is_run(Path(name))}
    named: list[str | None] = [*(model or ())] or ([None] if base_url else [])
    players += [_model(name, base_url, given) for name in named]
    if not players:
        raise ConfigError("say who plays: --policy solver, --policy random, --model PATH, or --base-url URL")
    marked = any(getattr(player, "marks", False) for player in players)
    _refuse_unread(
        {} if named else given,
        {} if marked else {"tokens": options["tokens"], "action_format": action_format, "spec": spec},
    )
    spec = {**spec, **({} if action_format is None else {"action_format": action_format})}
    if runs:
        ids = ids or [_only_env(list(runs.values()))]
        success = next((run.success for run in runs.values() if success is None and run.env in ids), success)
    if not ids:
        raise ConfigError("say what is played: the id of an environment, as gym-trl list names them")
    kwargs = {env_id: {**_trained_kwargs(env_id, list(runs.values())), **env} for env_id in ids}
    for env_id, arguments in kwargs.items():
        _make(env_id, arguments).close()
    for name, run in runs.items():
        _say_aside(_as_trained(name, run, kwargs))
    console = Console(quiet=True) if "person" in (policy or ()) else lasting_console(sys.stderr)
    shown = _Shown(display_on(console, episodes * len(ids) * len(players), "episode"), [] if base_url else model or [])
    try:
        found = evaluate(
            ids,
            players,
            episodes=episodes,
            env_kwargs=kwargs,
            success=_declared(success),
            spec=spec,
            on_begin=shown.begin,
            on_episode=shown.played,
            **options,
        )
    except KeyboardInterrupt:
        shown.display.end()
        if options["out"] is not None:
            _say(f"Interrupted after {counted(shown.done, 'episode')}; the same command goes on from here.")
        raise typer.Exit(130) from None
    finally:
        shown.display.end()
    if as_json:
        _say(to_json(found.as_dict(), indent=2))
    else:
        _show_columns(_columns(found.rows))
    # The folder may contain episodes of other policies and environments, too.
    mine = {player if isinstance(player, str) else player.name for player in players}
    asked = [row for row in found.rows if row.policy in mine and row.env_id in ids]
    low = [row for row in asked if not _reaches(row.success.mean, fail_under)]
    for row in low:
        why = "no success is declared" if row.success.mean is None else f"success {row.success} is below {fail_under:g}"
        _say_aside(f"{row.policy} on {row.env_id}: {why}")
    if low:
        raise typer.Exit(1)


class _Shown:
    """Progress display of an evaluation."""

    def __init__(self, display: "Display", loaded: Sequence[str]) -> None:
        self.display = display
        self.done = 0
        self._loaded = loaded

    def begin(self, total: int, before: int) -> None:
        self.done = before
        self.display.begin(before)
        if self._loaded and before < total:
            self.display.note(f"Loading {', '.join(self._loaded)}")

    def played(self, record: object, board: Scoreboard) -> None:
        self.done += 1
        self.display.log(self.done, {f"env/{name}": value for name, value in board.means().items()})


_OF_MODELS = ("vllm", "llm", "concurrency", "temperature", "max_tokens", "max_completion", "system_prompt")


def _refuse_unread(*unread: Mapping[str, Any]) -> None:
    """Refuse options of language models that none of the players reads."""
    for name, value in ((name, value) for options in unread for name, value in options.items()):
        if value is not None and value is not False and value != {}:
            raise ConfigError(f"{_option(name)} is for language models: name one with --model or --base-url")


def _reaches(success: float | None, least: float | None) -> bool:
    return least is None or (success is not None and success >= least)


def _declared(success: str | float | None) -> str | float | None:
    """Return the value of ``--success``; a number is a return."""
    if isinstance(success, str):
        with suppress(ValueError):
            return float(success)
    return success


def _only_env(runs: Sequence[TrainOptions]) -> str:
    """Return the environment that all runs trained on."""
    if len(found := {run.env for run in runs}) > 1:
        raise ConfigError(f"the runs trained on {' and '.join(sorted(found))}: say which is played")
    return found.pop()


def _trained_kwargs(env_id: str, runs: Sequence[TrainOptions]) -> dict[str, Any]:
    """Return the arguments that runs made an environment with; empty for one that they did not train on."""
    found = [dict(run.env_kwargs) for run in runs if run.env == env_id]
    if any(one != found[0] for one in found):
        raise ConfigError(f"the runs trained on different games of {env_id}: evaluate one at a time")
    return found[0] if found else {}


def _as_trained(name: str, run: TrainOptions, env_kwargs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the line that lists the settings of a run that an evaluation uses."""
    model = trained(Path(name))
    own = {"max_tokens": model.max_tokens, "max_completion": model.max_completion, "system_prompt": model.system_prompt}
    taken = {**model.spec, **own, **model.sampling}
    if run.env in env_kwargs and run.env_kwargs:
        taken = {**run.env_kwargs, **taken}
    said = ", ".join(f"{key}={value!r}" for key, value in taken.items() if value is not None)
    return f"From {name}, where no option says otherwise: {said}"


def _policy(name: str) -> Any:
    """Return a policy of the command line; a run's model keeps its training settings, and hub models are refused."""
    from gym_trl.evaluation.play import as_player
    from gym_trl.policies.model import Model

    if is_run(Path(name)):
        return trained(Path(name))
    player = as_player(name)
    if isinstance(player, Model) and not Path(name).exists():
        raise ConfigError(f"there is no policy {name!r}; a model of the hub is given as --model {name}")
    return player


def _model(name: str | None, base_url: str | None, given: Mapping[str, Any]) -> Any:
    """Return the model or server that the command line's options describe."""
    from gym_trl.policies.model import Model
    from gym_trl.policies.server import server

    options = {name: given[name] for name in ("concurrency", "max_tokens", "system_prompt") if given[name] is not None}
    options["sampling"] = {} if given["temperature"] is None else {"temperature": given["temperature"]}
    if base_url is not None:
        if given["vllm"] or given["llm"] or given["max_completion"] is not None:
            raise ConfigError(
                "--vllm, --llm and --max-completion are for models of this process, and --base-url is for others"
            )
        return server(base_url, model=name, api_key=os.environ.get("OPENAI_API_KEY"), **options)
    assert name is not None
    if given["llm"] and not given["vllm"]:
        raise ConfigError("--llm is for models on vLLM: add --vllm")
    options |= {"vllm": given["vllm"], "llm": given["llm"]}
    if given["max_completion"] is not None:
        options["max_completion"] = given["max_completion"]
    return trained(Path(name), **options) if is_run(Path(name)) else Model(name, **options)


def _show_columns(columns: Mapping[str, Sequence[str]]) -> None:
    """Print a table, without its last columns if the terminal is narrow."""
    from rich.console import Console
    from rich.table import Table

    # Lines are not wrapped in a pipe, for grep and cut.
    console = Console() if sys.stdout.isatty() else Console(width=400)
    names = list(columns)
    while True:
        table = Table(box=None, pad_edge=False)
        for name in names:
            table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=True)
        for values in zip(*(columns[name] for name in names), strict=True):
            table.add_row(*values)
        wanted = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        if wanted <= console.width or len(names) == _ALWAYS:
            break
        names.pop()
    console.print(table, markup=False, highlight=False)
    if missing := [name for name in columns if name not in names]:
        _say(f"A wider terminal, or --json, has {', '.join(missing)} as well.")


_WORDS = ("environment", "policy", "A", "B", "ended by")
_ALWAYS = 4  # number of columns that are always shown


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of a table of scores, the most important first."""
    most = [k for k in sorted({max(row.pass_at, default=1) for row in rows}) if k > 1]
    failed = [f" (+{row.unscored} failed)" if row.unscored else "" for row in rows]
    return {
        "environment": _environments(rows),
        "policy": [row.policy for row in rows],
        "episodes": [f"{row.episodes}{more}" for row, more in zip(rows, failed, strict=True)],
        "success": [str(row.success) for row in rows],
        "return": [str(row.mean_return) for row in rows],
        **{f"pass@{k}": [_form(row.pass_at.get(k), ".3f") for row in rows] for k in most},
        "turns": [_form(row.turns, ".2f") for row in rows],
        "tokens": [_form(row.tokens, ".1f") for row in rows],
        "invalid": [_form(row.invalid, ".1%") for row in rows],
        "model s": [_form(row.model_seconds, ".3g") for row in rows],
        "env s": [_form(row.env_seconds, ".3g") for row in rows],
        "ended by": [", ".join(f"{why} {count}" for why, count in row.stop_reasons.items()) for row in rows],
    }


def _environments(rows: Sequence[Row]) -> list[str]:
    """Return the rows' environments, with their arguments where one id was played with different ones."""
    played = {(row.env_id, to_json(row.env_kwargs)) for row in rows}
    ids = [env_id for env_id, _ in played]
    return [
        f"{row.env_id} {_listed(row.env_kwargs)}".strip() if ids.count(row.env_id) > 1 else row.env_id for row in rows
    ]


def _form(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _say_aside(text: str) -> None:
    sys.stderr.write(_encodable(f"{text}\n", sys.stderr))


@app.command(
    "compare",
    epilog="Examples: [bold]gym-trl compare evals/before evals/after --fail-if-worse[/] · "
    "[bold]gym-trl compare evals/all[/]",
)
@_clear_errors
def compare_(
    first: Annotated[Path, typer.Argument(metavar="A", help="A folder or file of records.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="B", help="Another one; without, A's policies are compared.")
    ] = None,
    *,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse",
            help="Exit status 1 if success (or the return, where none is declared) is lower in B, beyond chance.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: DebugOption = False,
) -> None:
    """Compare two evaluations on the games that both played: what B does better than A, with 95% intervals."""
    from gym_trl.evaluation.scores import compare
    from gym_trl.records.files import read_records

    found = compare(read_records(first), None if second is None else read_records(second))
    if as_json:
        _say(to_json({"version": 1, "rows": [one.as_dict() for one in found]}, indent=2))
    else:
        _show_columns(
            {
                "environment": [one.env_id for one in found],
                "A": [one.policies[0] for one in found],
                "B": [one.policies[1] for one in found],
                "success B-A": [str(one.success) for one in found],
                "games": [str(one.tasks) for one in found],
                "return B-A": [str(one.mean_return) for one in found],
                "better": [str(one.better) for one in found],
                "worse": [str(one.worse) for one in found],
            }
        )
    highs = [(one.mean_return if one.success.mean is None else one.success).high for one in found]
    if fail_if_worse and any(high is not None and high < 0 for high in highs):
        raise typer.Exit(1)


@app.command(
    epilog="Examples: [bold]gym-trl replay evals/guess[/] · [bold]gym-trl replay runs/first --env reward=efficient[/]"
)
@_clear_errors
def replay(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A folder or file of records.")],
    *,
    env: EnvOption = None,
    reward: Annotated[
        str | None, typer.Option(help="package.module:function, which says what a record is worth.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the records with the new rewards, as JSON Lines.")] = None,
    debug: DebugOption = False,
) -> None:
    """Replay recorded actions and report differences; with --env or --reward, score them with other rewards.

    Exit status 1 if an observation, a reward or an end differs from the record.
    """
    from gym_trl.evaluation.replay import replay as play_again
    from gym_trl.records.files import read_records
    from gym_trl.records.json_lines import write_json_lines
    from gym_trl.wrappers.inner import load_function

    if reward is not None and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    paid = None if reward is None else load_function(reward)
    different = count = 0
    before, after = Scoreboard(), Scoreboard()

    def again() -> Iterator[Any]:
        nonlocal different, count
        for number, found in enumerate(play_again(kept(), env_kwargs=_pairs(env), reward=paid), start=1):
            count = number
            after.add(found.record)
            different += bool(found.differences)
            for difference in found.differences:
                _say(f"episode {number} ({found.record['task']['id']}) {difference}")
            yield found.record

    def kept() -> Iterator[Any]:
        for record in read_records(path):
            before.add(record)
            yield record

    if out is not None:
        write_json_lines(again(), out)
    else:
        for _ in again():
            pass
    _say(f"{counted(count, 'episode')} played again, {different} with differences.")
    if env or reward:
        for then, now in zip(before.rows(), after.rows(), strict=True):
            _say(
                f"{then.policy} on {then.env_id}: return {then.mean_return} was recorded, {now.mean_return} is paid now"
            )
    if different:
        raise typer.Exit(1)


class ExportFormat(StrEnum):
    """Output formats of ``gym-trl export``."""

    SFT = "sft"
    PREFERENCES = "preferences"
    PARQUET = "parquet"


@app.command(
    epilog="Examples: [bold]gym-trl export runs/first --to sft --min-return 1 --out sft.jsonl[/] · "
    "[bold]gym-trl export evals/guess --to parquet --out guess.parquet[/]"
)
@_clear_errors
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A folder or file of records.")],
    *,
    to: Annotated[
        ExportFormat, typer.Option(help="Chats for SFTTrainer, pairs for DPOTrainer, or all records as a table.")
    ],
    out: Annotated[Path, typer.Option(help="The file; one that is there is replaced.")],
    min_return: Annotated[float | None, typer.Option(help="sft: leave episodes with a lower return out.")] = None,
    successes: Annotated[bool, typer.Option("--successes", help="sft: leave what was not solved out.")] = False,
    min_gap: Annotated[
        float, typer.Option(min=0.0, help="preferences: by how much more than this the returns must differ.")
    ] = 0.0,
    thinking: Annotated[bool, typer.Option("--thinking", help="Put thinking before answers, in <think>.")] = False,
    debug: DebugOption = False,
) -> None:
    """Convert records to a data set: conversations for SFT, preference pairs, or a table."""
    from gym_trl.records.export import preference_rows, sft_rows
    from gym_trl.records.files import read_records
    from gym_trl.records.json_lines import write_json_lines
    from gym_trl.records.parquet import write_parquet

    if to is not ExportFormat.SFT and (min_return is not None or successes):
        raise ConfigError(f"--min-return and --successes are for --to sft, not for {to.value}")
    if (min_gap and to is not ExportFormat.PREFERENCES) or (thinking and to is ExportFormat.PARQUET):
        raise ConfigError(f"{'--min-gap' if min_gap else '--thinking'} is not for --to {to.value}")
    records = read_records(path)
    if to is ExportFormat.PARQUET:
        count = write_parquet(records, out)
    elif to is ExportFormat.SFT:
        rows = sft_rows(records, min_return=min_return, successes=successes, thinking=thinking)
        count = write_json_lines(rows, out)
    else:
        count = write_json_lines(preference_rows(records, min_gap=min_gap, thinking=thinking), out)
    _say(f"{counted(count, 'row')} written to {out}")


_TRAIN_HELP = (
    "Train a model on an environment with TRL's GRPOTrainer, and leave a folder with everything about it.\n\n"
    "Without --model it trains a tiny model made on the spot: a tenth of a million random weights that read "
    "characters. It cannot read English, so it gets no instructions, answers with the bare action, and learns a small "
    "game from nothing; GuessNumber is played from 1 to 8 in 4 turns and Echo with 3 of 4 letters, unless --env says "
    "otherwise. With --model it trains a model from a path or from the hub, which gets the environment's instructions "
    "and marks its action with <action>...</action>.\n\n"
    "The folder holds config.json, metrics.jsonl, rollouts.jsonl, curve.png, tokenizer, model, checkpoints and "
    "summary.json with the success on evaluation games before and after; gym-trl view shows all of it, also while the "
    "run goes on. Ctrl-C stops after the step that is running and leaves a complete folder; --resume continues it, "
    "also after a crash. Exit status: 0 when the last step was reached, 130 when interrupted, 2 for an error; a start "
    "that fails before its first step leaves nothing behind."
)
_TRAIN_EXAMPLES = """Examples:

gym-trl train

gym-trl train TrlEnv/GuessNumber-v0 --env high=16 --env turns=5 --steps 600 --out runs/sixteen

gym-trl train TrlEnv/Echo-v0 --grpo learning_rate=1e-3 --grpo num_generations=16

gym-trl train TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --episodes 64 --vllm colocate

gym-trl train --model Qwen/Qwen3-0.6B --vllm server --grpo vllm_server_base_url=http://localhost:8000

gym-trl train TrlEnv/CodeAgent-v0 --executor process --workers 8 --step-timeout 30 --reset-timeout 60

RAY_ADDRESS=10.0.0.1:6379 gym-trl train TrlEnv/CodeAgent-v0 --executor ray --workers 256

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
    success: SuccessOption = None,
    system_prompt: SystemPromptOption = None,
    spec: SpecOption = None,
    eval_episodes: Annotated[int | None, typer.Option(min=1, help="Evaluation episodes, before and after.")] = None,
    records: Annotated[int, typer.Option(min=0, help="Trajectories that a step leaves in rollouts.jsonl.")] = 16,
    seed: Annotated[
        int, typer.Option(min=0, max=_LARGEST_SEED, help="Of the games, of the sampling and of the tiny model.")
    ] = 0,
    executor: Annotated[
        str | None,
        typer.Option(
            autocompletion=lambda: list(EXECUTORS),
            help=f"Where environments are stepped: {', '.join(EXECUTORS)}. Default: the environment's own choice, or "
            "the result of a short measurement.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many threads, or processes here or on the Ray cluster.")
    ] = None,
    step_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="An episode whose step takes longer is not scored.")
    ] = None,
    reset_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The same for making and resetting an environment.")
    ] = None,
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
    """Train a model; the help text is ``_TRAIN_HELP``."""
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
            success=_declared(success),
            system_prompt=system_prompt,
            spec=_pairs(spec),
            eval_episodes=eval_episodes,
            executor=executor,
            workers=workers,
            reset_timeout=reset_timeout,
            step_timeout=step_timeout,
        )
    # Checked before slow imports:
    _make(options.env, options.env_kwargs).close()
    if options.model is not None and resume is None:
        check_model(options.model)
    check_vllm(options.grpo)
    if os.environ.get("RANK", "0") == "0":
        _say("Loading PyTorch and TRL")
    from gym_trl.grpo.processes import leave_process_group
    from gym_trl.training import run as training

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

"""``gym-trl play``."""

import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors, fail, one_line
from gym_trl.cli.options import ID_HELP, DebugOption, EnvOption, read_pairs
from gym_trl.cli.terminal import ask, coloured, say, say_aside
from gym_trl.errors import ConfigError
from gym_trl.executors.step import read_instructions
from gym_trl.text.textify import counted
from gym_trl.training.run_folder import is_run, trained

if TYPE_CHECKING:
    from gym_trl.evaluation.interactive import PlayedGame
    from gym_trl.evaluation.opponents import Opposing, Race

EXAMPLES = """
gym-trl play TrlEnv/GuessNumber-v0 --env high=8 --seed 3
gym-trl play TrlEnv/TicTacToe-v0 --against solver
gym-trl play TrlEnv/GuessNumber-v0 --against runs/first --env high=8 --env turns=4
gym-trl play TrlEnv/KuhnPoker-v0 --against http://localhost:8000/v1
"""
_SOLVED = {True: "Solved", False: "Not solved", None: "Over"}
"""Labels by ``info["success"]``, which an environment need not declare."""


@clear_errors
def play(
    env_id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP)],
    *,
    env: EnvOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episode. Default: a random one.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Opponent; see above. Default: none.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Play an environment in the terminal; "quit", Ctrl-C or Ctrl-D ends the session.

    ":undo" takes back your last action, ":hint" asks the environment's solver, ":history" shows the episode so far, and
    ":help" lists these commands. None of them costs a turn. Arrow keys recall earlier input.

    --against POLICY adds an opponent: solver, random or another of the environment's own policies; the path, hub id or
    run of a model; the address of an OpenAI-compatible server (with the key $OPENAI_API_KEY); or
    package.module:function. In a game for two it takes the other side. In any other environment it plays the same task
    beside you, one turn for each of yours; the higher return wins, then the lower number of turns.
    """
    from gym_trl.evaluation.interactive import PlayedGame

    kwargs, chosen = read_pairs(env), random.randrange(2**31) if seed is None else seed
    rival = _Rival(None, None) if against is None else _rival(against, env_id, kwargs, chosen)
    game = PlayedGame(functools.partial(make_text_env, env_id, {**kwargs, **rival.arguments}), chosen)
    if hasattr(sys.stdin, "reconfigure"):  # invalid bytes become lone surrogates
        sys.stdin.reconfigure(errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401 -- arrow keys, on systems that have it
    try:
        if instructions := read_instructions(game.env):
            say(f"{coloured(instructions, dim=True)}\n")
        with _fail_if_raised("reset", debug=debug):
            first = game.start()
        rival.tell(game)
        say(first)
        while not game.over:
            if (action := ask()) is None:
                say(f"\nLeft after {counted(len(game.played), 'turn')}, return {game.total:g}.")
                return
            if (command := action.strip()).startswith(":") and not command.startswith("::"):
                say(_COMMANDS.get(command, _help)(game))
                rival.forget()
                continue
            if command.startswith("::"):
                action = action.replace("::", ":", 1)
            with _fail_if_raised("step", debug=debug):
                reply = game.step(action)
            rival.tell(game)
            say(reply.observation)
            if reply.reward:
                say(coloured(f"(reward {reply.reward:g})", fg="green" if reply.reward > 0 else "red"))
        solved: bool | None = reply.info.get("success")
        verdict = coloured(_SOLVED[solved], fg={True: "green", False: "red", None: None}[solved], bold=True)
        say(f"\n{verdict} in {counted(len(game.played), 'turn')}, return {game.total:g}.")
        rival.compare(game, solved=solved)
    finally:
        rival.close()
        game.close()


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
                say(coloured(f"{self.name}: {said.answer}{unread}", fg="magenta"))
            self.forget()
        if self.race and game.played:
            was, stopped = self.race.turns, self.race.stopped
            self.race.play(len(game.played))
            if self.race.turns > was or self.race.stopped != stopped or len(game.played) == was:
                say(coloured(f"({self._standing()})", dim=True))

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
        say(f"\n{self.name}, the same game:")
        for turn in other.played:
            say(f"{coloured(f'> {turn.action}', fg='magenta')}\n{turn.result.observation}")
        say(f"\n{self._standing()}.")
        if other.stopped is None:
            better = winner((game.total, solved, len(game.played)), (other.total, other.solved, other.turns))
            say(coloured({1: "You win.", 0: "Nobody wins.", -1: f"{self.name} wins."}[better], bold=True))

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
    from gym_trl.policies.functions import as_policy
    from gym_trl.policies.model import Model
    from gym_trl.policies.server import server

    if against == "person":
        raise ConfigError(
            "the person is you; --against is solver, random, a model, a server or package.module:function"
        )
    env = make_text_env(env_id, kwargs)
    check_against(env, kwargs)
    for_two = is_for_two(env)
    env.close()
    if against.startswith(("http://", "https://")):
        player: Any = server(against, api_key=os.environ.get("OPENAI_API_KEY"))
    elif is_run(Path(against)):
        player = trained(Path(against))
    else:
        player = as_policy(against)
    if isinstance(player, Model):
        say_aside(f"Loading {player.name}")
    challenger = Challenger(player)
    if for_two:
        opposing = Opposing(challenger, lambda **more: make_text_env(env_id, {**kwargs, **more}), seed)
        return _Rival(opposing, None, player.name)
    return _Rival(None, Race(challenger, lambda: make_text_env(env_id, kwargs), seed), player.name)


def _undo(game: "PlayedGame") -> str:
    return game.undo() if game.played else coloured("There is nothing to undo.", dim=True)


def _hint(game: "PlayedGame") -> str:
    hint = game.hint()
    if not game.env.has_wrapper_attr("solver"):
        return coloured("This environment has no solver to ask.", dim=True)
    if hint is None:
        return coloured("There is no solver that can play on from here.", dim=True)
    leads = f"wins in {counted(hint.turns, 'turn')}" if hint.wins else "does not win, as far as the solver sees"
    return f"{coloured(hint.action, fg='cyan', bold=True)} {coloured(f'({leads})', dim=True)}"


def _history(game: "PlayedGame") -> str:
    lines = [game.first]
    for turn in game.played:
        lines += [coloured(f"> {turn.action}", fg="cyan"), turn.result.observation]
        if turn.result.reward:
            lines.append(coloured(f"(reward {turn.result.reward:g})", dim=True))
    return "\n".join(lines)


def _help(game: "PlayedGame") -> str:
    return coloured(
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


@contextmanager
def _fail_if_raised(what: str, *, debug: bool) -> Iterator[None]:
    """Print any exception of the environment as one line."""
    try:
        yield
    except Exception as error:
        if debug:
            raise
        fail(f"{what} raised {type(error).__name__}: {one_line(error)}")

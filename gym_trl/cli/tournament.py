"""``gym-trl tournament``."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options
from gym_trl.cli.options import ID_HELP, DebugOption, JsonOption
from gym_trl.cli.policies import OF_MODELS, read_players, trained_kwargs
from gym_trl.cli.terminal import say, say_aside, show_columns
from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.files import is_unwritable, replace_text
from gym_trl.options import OF_TOURNAMENT, TOKENS_PER_TURN, TournamentOptions
from gym_trl.records.json_lines import to_json
from gym_trl.text.textify import counted
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import run_of

if TYPE_CHECKING:
    from gym_trl.evaluation.ratings import Standings
    from gym_trl.evaluation.tournament import Tournament

EXAMPLES = """
gym-trl tournament TrlEnv/TicTacToe-v0 solver random my_players:corner --games 200
gym-trl tournament TrlEnv/KuhnPoker-v0 runs/kuhn random solver --out tournaments/kuhn --anchor random
gym-trl tournament TrlEnv/Nim-v0 runs/nim/checkpoint-100 runs/nim/checkpoint-200 --picture nim.svg
gym-trl tournament TrlEnv/ConnectFour-v0 http://localhost:8000/v1#before http://localhost:8000/v1#after --json
"""
_MOST_ACROSS = 12
"""Number of players up to which the results of all pairs are printed."""
_OF_OPPONENTS = ("opponent", "epsilon", "seat")
"""Arguments of our games that say against whom a run trained."""


def _usual() -> dict[str, str]:
    return {"max_tokens_per_turn": f"{TOKENS_PER_TURN}, or the run's", "action_format": "tag, or the run's"}


@clear_errors
@with_options(TournamentOptions, presets=_usual)
def tournament(
    env_id: Annotated[str, Argument(metavar="ID", help=ID_HELP)],
    players: Annotated[list[str], Argument(metavar="PLAYER...", help="Players, see above.", show_default=False)],
    *,
    as_json: JsonOption = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Rate players by a round robin on a game of several seats.

    Ratings are on the Elo scale, with 95% intervals.

    Players are the environment's own policies (solver, random, constant, ...), package.module:function (which returns
    the policy of a seat for its environment), folders of models and LoRA adapters, hub ids (ORG/NAME), checkpoints
    (runs/x/checkpoint-100), all checkpoints of a run (runs/x), and OpenAI-compatible servers (with /v1, key
    $OPENAI_API_KEY; #NAME chooses one of their models). Models of runs are prompted as they were trained.

    Every pair plays the same deals, each with the seats swapped, so that the luck of the deal and of the first move is
    the same for all. In games of more than two seats, the players rotate. The games for two of this library are made
    with opponent=self. A player without a readable or valid action three times in a row forfeits the game.

    With --out, every finished game is recorded. The same command resumes an interrupted tournament, and other players
    or more games are added to the folder.

    Exit status: 0; 2 for an error; 130 if interrupted.
    """
    from gym_trl.cli.progress import Count
    from gym_trl.evaluation.tournament import tournament as play_tournament
    from gym_trl.evaluation.tournament_picture import check_picture, draw_standings
    from gym_trl.training.progress import lasting_console

    chosen = TournamentOptions.of({"env": env_id, **options})
    own: Any = {name: vars(chosen)[name] for name in OF_TOURNAMENT}
    out, picture = chosen.out, chosen.picture
    if picture is not None:
        check_picture(picture)
    policies = _policies(players, {name: one for name, one in options.items() if name in OF_MODELS}, [env_id])
    own["env_kwargs"] = {**_trained_kwargs(env_id, policies, [env_id]), **chosen.env_kwargs}
    with Count("game", lasting_console(sys.stderr), resumes=out is not None) as count:
        result = play_tournament(
            env_id,
            policies,
            on_begin=count.begin,
            on_game=lambda record: count.add(),
            note=count.note,
            **own,
        )
    as_json_text = to_json(result.as_dict(), indent=2)
    say(as_json_text) if as_json else _show(result)
    where = picture or (None if out is None else out / "tournament.png")
    try:
        if out is not None:
            replace_text(out / "standings.json", as_json_text)
        if where is not None:
            say_aside(f"Picture: {draw_standings(result.standings, where, title=env_id)}")
    except MissingDependencyError as error:
        say_aside(f"No picture: {error}")
    except OSError as error:
        if result.played or picture is not None or not is_unwritable(error):
            raise
        say_aside(f"{out} is read-only: its standings.json and its picture are as they were")


def _policies(players: Sequence[str], options: Mapping[str, Any], allowed: Collection[str]) -> list[Any]:
    """Return the policies of all players, of which the language models have these options."""
    policies = [one for name in players for one in read_players(name, options, allowed=allowed)]
    if options and not any(one.marks for one in policies):
        raise ConfigError(f"{next(iter(options))} requires a language model among the players: leave it out")
    return policies


def _trained_kwargs(env_id: str, policies: Sequence[Any], allowed: Collection[str]) -> dict[str, Any]:
    """Return the arguments with which the runs of players made the environment, without those of the opponent."""
    from gym_trl.policies.model import Model

    folders = {run_of(Path(one.path)) for one in policies if isinstance(one, Model)} - {None}
    runs = [read_options(Path(folder), allowed=allowed) for folder in sorted(map(str, folders))]
    return trained_kwargs(env_id, runs, "they cannot meet in one tournament", without=_OF_OPPONENTS)


def _show(result: "Tournament") -> None:
    """Print the standings, the results of all pairs, and the advantage of the seats."""
    standings = result.standings
    show_columns(_columns(standings))
    if 2 < len(standings.rows) <= _MOST_ACROSS:
        say()
        show_columns(_across(standings))
    say()
    if standings.anchor is not None:
        say(f"The rating of {standings.anchor} is 0.")
    if len(standings.seats) == 2:
        say(f"The first seat is worth {standings.seats[0]} points.")
    else:
        for number, seat in enumerate(standings.seats, start=1):
            say(f"Seat {number} is worth {seat} points.")
    if result.unscored:
        say(f"{counted(result.unscored, 'game')} failed and count for nobody: {_first_error(result)}")
    if result.stakes:
        say("Ratings count won games at any stake; the mean payoff is in the column payoff.")
    for one, other in result.repeated:
        say(f"{one} and {other} repeated their games: the intervals take them for different ones.")


def _columns(standings: "Standings") -> Mapping[str, list[str]]:
    rows = standings.rows
    return {
        "": [str(number) for number in range(1, len(rows) + 1)],
        "player": [row.player for row in rows],
        "rating": [str(row.rating) for row in rows],
        "score": ["-" if row.tally.score is None else f"{row.tally.score:.3f}" for row in rows],
        "win/draw/loss": [f"{row.tally.wins}/{row.tally.draws}/{row.tally.losses}" for row in rows],
        "games": [str(row.games) for row in rows],
        "forfeits": [str(row.forfeits) for row in rows],
        "payoff": ["-" if row.payoff is None else f"{row.payoff:+.3f}" for row in rows],
    }


def _across(standings: "Standings") -> Mapping[str, list[str]]:
    """Return the results of all pairs: wins, draws and losses of the row against the column."""
    names = [row.player for row in standings.rows]
    table = {"player": [f"{number} {name}" for number, name in enumerate(names, start=1)]}
    for number, other in enumerate(names, start=1):
        tallies = [standings.pairs.get((one, other)) for one in names]
        table[f"against {number}"] = ["-" if one is None else f"{one.wins}/{one.draws}/{one.losses}" for one in tallies]
    return table


def _first_error(result: "Tournament") -> str:
    return next((one.error for one in result.games if one.payoffs is None and one.error), "no reason is known")

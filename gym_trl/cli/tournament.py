"""``gym-trl tournament``."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import (
    ENV_KWARGS_PLACE,
    ID_HELP,
    LARGEST_SEED,
    DebugOption,
    EnvKwargsOption,
    JsonOption,
    PolicyTokensOption,
    TemperatureOption,
    TrustOption,
    read_pairs,
    read_trust,
)
from gym_trl.cli.policies import read_players
from gym_trl.cli.terminal import say, say_aside, show_columns
from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.files import is_unwritable, replace_text
from gym_trl.records.json_lines import to_json
from gym_trl.text.textify import counted
from gym_trl.training.options import read_options
from gym_trl.training.run_folder import run_of
from gym_trl.trust import Trust

if TYPE_CHECKING:
    from gym_trl.evaluation.ratings import Standings
    from gym_trl.evaluation.tournament import GameRecord, Tournament

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


@clear_errors
def tournament(
    env_id: Annotated[str, Argument(metavar="ID", help=ID_HELP)],
    players: Annotated[list[str], Argument(metavar="PLAYER...", help="Players, see above.", show_default=False)],
    *,
    games: Annotated[int, Option(min=1, help="Games of each pairing; a multiple of the seats.")] = 100,
    env_kwargs: EnvKwargsOption = None,
    seed: Annotated[int, Option(min=0, max=LARGEST_SEED, help="Seed of the deals and of the sampling.")] = 0,
    anchor: Annotated[
        str | None, Option(metavar="PLAYER", help="Player whose rating is 0. Default: the mean is 0.")
    ] = None,
    out: Annotated[Path | None, Option(help="Folder to record games in. Default: do not record.")] = None,
    picture: Annotated[
        Path | None,
        Option(help="File to draw to: .png, .svg or .pdf. Default: tournament.png in --out.", show_default=False),
    ] = None,
    retry: Annotated[bool, Option("--retry", help="Play the unscored games in --out again.")] = False,
    concurrency: Annotated[int | None, Option(min=1, help="Concurrent games. Default: 64, 16 on a server.")] = None,
    temperature: TemperatureOption = None,
    max_tokens_per_turn: PolicyTokensOption = None,
    action_format: Annotated[
        str, Option(help='Format of the actions of models and servers: "tag", "boxed", "plain", ... Runs keep theirs.')
    ] = "tag",
    trust: TrustOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
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
    from gym_trl.evaluation.tournament import tournament as play_tournament
    from gym_trl.evaluation.tournament_picture import check_picture, draw_standings
    from gym_trl.training.progress import display_on, lasting_console

    if picture is not None:
        check_picture(picture)
    given = {"concurrency": concurrency, "temperature": temperature, "max_tokens_per_turn": max_tokens_per_turn}
    given_env = read_pairs(env_kwargs)
    command = shlex.join(["gym-trl", "tournament", env_id, *players])
    trusted = read_trust(trust, [env_id, players, given_env], command, [ENV_KWARGS_PLACE])
    policies = [one for name in players for one in read_players(name, given, trust=trusted)]
    used_env = {**_trained_kwargs(env_id, policies, trusted), **given_env}
    done, display = 0, None

    def on_begin(total: int, before: int) -> None:
        nonlocal done, display
        done, display = before, display_on(lasting_console(sys.stderr), total, "game")
        display.begin(before)

    def on_game(record: "GameRecord") -> None:
        nonlocal done
        done += 1
        if display is not None:
            display.log(done, {})

    try:
        found = play_tournament(
            env_id,
            policies,
            games=games,
            seed=seed,
            env_kwargs=used_env,
            action_format=action_format,
            anchor=anchor,
            out=out,
            retry=retry,
            on_begin=on_begin,
            on_game=on_game,
            note=lambda text: display.note(text) if display is not None else None,
        )
    except KeyboardInterrupt:
        if display is not None:
            display.end()
        if out is not None:
            say(f"Interrupted after {counted(done, 'game')}; the same command resumes from here.")
        raise typer.Exit(130) from None
    finally:
        if display is not None:
            display.end()
    told = to_json(found.as_dict(), indent=2)
    say(told) if as_json else _show(found)
    where = picture or (None if out is None else out / "tournament.png")
    try:
        if out is not None:
            replace_text(out / "standings.json", told)
        if where is not None:
            say_aside(f"Picture: {draw_standings(found.standings, where, title=env_id)}")
    except MissingDependencyError as error:
        say_aside(f"No picture: {error}")
    except OSError as error:
        if found.played or picture is not None or not is_unwritable(error):
            raise
        say_aside(f"{out} is read-only: its standings.json and its picture are as they were")


def _trained_kwargs(env_id: str, policies: Sequence[Any], trust: Trust) -> dict[str, Any]:
    """Return the arguments with which the runs of players made the environment, without those of the opponent."""
    runs = {run_of(Path(getattr(one, "path", ""))) for one in policies} - {None}
    found = []
    for run in sorted(map(str, runs)):
        options = read_options(Path(run), trust=trust)
        if options.env == env_id:
            found.append({name: value for name, value in options.env_kwargs.items() if name not in _OF_OPPONENTS})
    if any(one != found[0] for one in found):
        raise ConfigError(f"the runs trained on {env_id} with different arguments: they cannot meet in one tournament")
    return found[0] if found else {}


def _show(found: "Tournament") -> None:
    """Print the standings, the results of all pairs, and the advantage of the seats."""
    standings = found.standings
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
    if found.unscored:
        say(f"{counted(found.unscored, 'game')} failed and count for nobody: {_first_error(found)}")
    if found.stakes:
        say("Ratings count won games at any stake; the mean payoff is in the column payoff.")
    for one, other in found.repeated:
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


def _first_error(found: "Tournament") -> str:
    return next((one.error for one in found.games if one.payoffs is None and one.error), "no reason is known")

"""Tournament: a round robin between policies on a game of several seats, and the ratings of its players."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from random import Random
from typing import Any, Unpack

from gym_trl.envspec import SELF_PLAY, EnvSpec
from gym_trl.errors import ConfigError, check_counts
from gym_trl.evaluation.output_folder import OutputFolder
from gym_trl.evaluation.ratings import PlayedGame, Standings, rate
from gym_trl.evaluation.seated import GameRecord, Seating, play_seated
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.option_args import TournamentArgs
from gym_trl.options import OF_TOURNAMENT, TournamentOptions, chosen
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.policies.weights import free_memory, weights_size
from gym_trl.records.fields import Fields
from gym_trl.records.json_lines import JsonLinesWriter, keep_json_lines, numbered, to_json
from gym_trl.registration import EnvSource, env_name
from gym_trl.rollout.loop import GameResult
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.text.textify import counted
from gym_trl.types import Policy
from gym_trl.wrappers.traits import traits

GAMES = "games.jsonl"
"""File of a tournament's folder with a line for each game."""
_AT_A_TIME = 2  # models that play each other


_LINE = Fields(GameRecord, {})


def read_game(line: dict[str, Any], where: str) -> GameRecord:
    """Return the game in a line of JSON.

    Raises:
        ConfigError: it is no game; the message begins with ``where`` and names the field.
    """
    line = _LINE.completed(line)
    if problem := _LINE.problem(line):
        raise ConfigError(f"{where} is not a game of a tournament: {problem[1]}")
    players, payoffs, forfeit = tuple(line["players"]), line["payoffs"], line["forfeit"]
    if any([type(one) for one in move] != [int, str] for move in line["moves"]):
        raise ConfigError(f"{where} is not a game of a tournament: moves must be pairs of a seat and a response")
    if payoffs is not None and (len(payoffs) != len(players) or None in payoffs):
        raise ConfigError(f"{where} is not a game of a tournament: payoffs must be a number for each player")
    if forfeit is not None and not 0 <= forfeit < len(players):
        raise ConfigError(f"{where} is not a game of a tournament: forfeit must be a seat, got {forfeit}")
    return GameRecord(
        players,
        line["seed"],
        None if payoffs is None else tuple(payoffs),
        forfeit,
        tuple(line["stop_reasons"]),
        tuple((seat, response) for seat, response in line["moves"]),
        line["error"],
    )


@dataclass(frozen=True, slots=True)
class Tournament:
    """Result of a tournament."""

    env_id: str
    standings: Standings
    games: tuple[GameRecord, ...]
    """Scored and unscored games, in the order of the plan."""
    played: int
    """Number of games played by this call, not by earlier ones."""
    folder: Path | None

    @property
    def unscored(self) -> int:
        """Number of games that failed, and count for nobody."""
        return sum(game.payoffs is None for game in self.games)

    @property
    def repeated(self) -> list[tuple[str, str]]:
        """Pairs of players whose games were all the same in each seating, so that more games of them say nothing."""
        by_pair: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for game in self.games:
            if game.payoffs is not None:
                by_pair[tuple(sorted(set(game.players)))].append((game.players, game.moves, game.payoffs))
        same = (
            names for names, games in by_pair.items() if len(games) > len({one[0] for one in games}) == len(set(games))
        )
        return [(names[0], names[1]) for names in same if len(names) == 2]

    @property
    def stakes(self) -> bool:
        """Games were won and lost at different stakes, which ratings do not count."""
        return len({abs(paid) for game in self.games if game.payoffs for paid in game.payoffs if paid}) > 1

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values, without the games."""
        return {
            "version": 1,
            "env_id": self.env_id,
            **self.standings.as_dict(),
            "games": len(self.games),
            "unscored": self.unscored,
            "folder": None if self.folder is None else str(self.folder),
        }


def seatings_of(players: Sequence[str], seats: int) -> list[tuple[str, ...]]:
    """Return the seatings in which each of some players has each seat equally often.

    >>> seatings_of(["ann", "bob"], 2)
    [('ann', 'bob'), ('bob', 'ann')]
    >>> seatings_of("abc", 3), seatings_of("ab", 3)[:3]
    ([('a', 'b', 'c'), ('b', 'c', 'a'), ('c', 'a', 'b')], [('a', 'b', 'a'), ('b', 'a', 'a'), ('a', 'a', 'b')])

    Where there are more seats than players, players have several.
    """
    count = len(players)
    rotated = (
        tuple(players[((seat + turned) % seats + moved) % count] for seat in range(seats))
        for moved in range(count)
        for turned in range(seats)
    )
    return list(dict.fromkeys(rotated))


def plan_games(players: Sequence[str], seats: int, *, games: int, seed: int) -> list[list[Seating]]:
    """Return the games of a round robin, by pairing: every combination of as many players as there are seats.

    >>> [pairing] = plan_games(["ann", "bob"], 2, games=4, seed=0)
    >>> [game.players for game in pairing]
    [('ann', 'bob'), ('bob', 'ann'), ('ann', 'bob'), ('bob', 'ann')]
    >>> [game.seed == pairing[0].seed for game in pairing]
    [True, True, False, False]

    Each deal is played once in every seating of a pairing, and all pairings play the same deals, so that the luck of a
    deal and of a seat are the same for all. In games of more than two seats, the order in which the players of a
    pairing sit is another one in each deal.

    Args:
        players: Their names.
        seats: Number of seats.
        games: Number of games of each pairing, a multiple of its number of seatings.
        seed: Seed of the deals.

    Raises:
        ConfigError: There are fewer than two players, two of one name, or ``games`` is not such a multiple.
    """
    if len(players) < 2:
        raise ConfigError(f"a tournament needs two players or more, got {', '.join(players) or 'none'}")
    if len(set(players)) < len(players):
        twice = next(name for name in players if list(players).count(name) > 1)
        raise ConfigError(f"players must have different names, got {twice} twice")
    check_counts(games=games)
    pairings = []
    for pairing in combinations(players, min(seats, len(players))):
        count = len(seatings_of(pairing, seats))
        if games % count:
            raise ConfigError(
                f"games must be a multiple of {count}, the seatings of {counted(seats, 'seat')}, got {games}"
            )
        planned = []
        for deal in range(games // count):
            order = list(pairing)
            if len(order) > 2:
                Random(derive_seed(seed, "order", deal)).shuffle(order)
            planned += [Seating(seating, task_seed(seed, "eval", deal)) for seating in seatings_of(order, seats)]
        pairings.append(planned)
    return pairings


def tournament(
    env: EnvSource,
    players: Sequence[str | Callable[[TextEnvironment], Policy] | NamedPolicy],
    *,
    on_begin: Callable[[int, int], None] | None = None,
    on_game: Callable[[GameRecord], None] | None = None,
    note: Callable[[str], None] | None = None,
    **options: Unpack[TournamentArgs],
) -> Tournament:
    """Play a round robin between policies on an environment of several seats, and return the ratings.

    >>> found = tournament("TrlEnv/TicTacToe-v0", ["solver", "random"], games=20)
    >>> [(row.player, row.tally.score) for row in found.standings.rows]
    [('solver', 1.0), ('random', 0.0)]

    Every pair of players meets (in games of more than two seats: every combination of as many players) on the same
    deals, each of which is played with the seats swapped; see ``plan_games``. The deals have the seeds of the
    ``"eval"`` split (``task_seed``), which training never uses. Forfeits are explained in
    ``gym_trl.evaluation.seated.play_seated``, ratings in ``gym_trl.evaluation.ratings.rate``.

    With ``out``, each game is written to the folder as soon as it is finished, and the same call resumes an interrupted
    tournament: no game is lost, and none is played twice. More games or other players are added to the folder.

    Args:
        env: An id, ``"my_game.py:MyGame"``, a class, or a function that makes an environment (see ``GymSpec``), with
            two seats or more. The games for two of this library are made with ``opponent="self"``.
        players: Policies as ``evaluate`` accepts them.
        on_begin: Called with the number of games, and the number of those that were played before.
        on_game: Called with every game that is played now.
        note: Called with a line on models that are loaded.
        options: Options of a tournament (``TournamentOptions``): ``games`` of each pairing, ``seed``, ``env_kwargs``,
            ``action_format`` of models that have none of their own, ``anchor``, ``out`` and ``retry``.

    Raises:
        ConfigError: an invalid argument, an environment of one seat, or a folder of another tournament.
        EngineError: a server rejects requests, or generation failed for every game.
        OSError: the folder cannot be written, and something is left to play.
    """
    own = TournamentOptions.of(
        {"env": env, **chosen(options, by="tournament", of=TournamentOptions, names=OF_TOURNAMENT)}
    )
    policies = [as_policy(one) for one in players]
    by_name = {policy.name: policy for policy in policies}
    spec, seats = _spec_of(env, own.env_kwargs, policies)
    [env_id] = spec.weights
    plan = plan_games([policy.name for policy in policies], seats, games=own.games, seed=own.seed)
    if own.anchor is not None:
        rate([], players=list(by_name), anchor=own.anchor)  # reports a name that is none of theirs now, not at the end
    with _Folder(own.out) as folder:
        settings = {"seed": own.seed, "env_id": env_id, "env_kwargs": dict(own.env_kwargs)}
        folder.agree(settings, {name: _settings(policy, own.action_format) for name, policy in by_name.items()})
        if own.retry:
            folder.forget_failures(by_name)
        played = {record.seating: record for record in folder.records()}
        wanted = list(chain.from_iterable(plan))
        missing = sum(seating not in played for seating in wanted)
        folder.begin(missing, lambda path: JsonLinesWriter(path / GAMES))
        if on_begin:
            on_begin(len(wanted), len(wanted) - missing)

        def write(record: GameRecord, _: GameResult) -> None:
            played[record.seating] = record
            folder.write(record._asdict())
            if on_game:
                on_game(record)

        todo = _todo(plan, played)
        models = _Models(by_name, todo, note)
        for pairing in todo:
            marks: dict[str, Any] = {"seed": own.seed, "action_format": own.action_format, "on_game": write}
            play_seated(spec, pairing, by_name, loaded=models.of(_names(pairing)), **marks)
    records = tuple(map(played.__getitem__, wanted))
    scored = (PlayedGame(one.players, one.payoffs, one.forfeit) for one in records if one.payoffs is not None)
    standings = rate(scored, players=list(by_name), anchor=own.anchor)
    return Tournament(env_id, standings, records, missing, folder.path)


def _spec_of(env: EnvSource, env_kwargs: Mapping[str, Any], policies: Sequence[NamedPolicy]) -> tuple[EnvSpec, int]:
    """Return the environment in which policies play all seats, and the number of these."""
    if (opponent := env_kwargs.get("opponent", SELF_PLAY)) != SELF_PLAY:
        raise ConfigError(f"the players of a tournament have all seats: leave out the argument opponent={opponent!r}")
    spec = EnvSpec(env, env_kwargs=env_kwargs, action_format=None, seats=SELF_PLAY)
    with spec.checked(env_name(env)) as made:
        for policy in policies:
            if isinstance(policy, TextPolicy):
                policy.check(made)
        return spec, traits(made).num_seats


def _todo(plan: Iterable[Sequence[Seating]], played: Collection[Seating]) -> list[list[Seating]]:
    """Return the games of each pairing that were not played, without pairings that have none left."""
    left = ([seating for seating in pairing if seating not in played] for pairing in plan)
    return [pairing for pairing in left if pairing]


def _names(pairing: Iterable[Seating]) -> set[str]:
    return {name for seating in pairing for name in seating.players}


def _settings(policy: NamedPolicy, action_format: str | None) -> dict[str, Any]:
    """Return the settings that a player's games must share to be counted together."""
    spec = {"action_format": action_format, **(policy.options if isinstance(policy, Model) else {})}
    return {**policy.settings, "spec": spec} if policy.marks else dict(policy.settings)


class _Models:
    """Models of a tournament, loaded when they are needed, and kept in memory as far as they fit."""

    def __init__(
        self, players: Mapping[str, NamedPolicy], todo: Iterable[Sequence[Seating]], note: Callable[[str], None] | None
    ) -> None:
        self._models = models = {name: one for name, one in players.items() if isinstance(one, Model)}
        self._loaded: dict[str, LoadedModel] = {}  # the least recently used first
        self._note = note or (lambda text: None)
        needed = _names(chain.from_iterable(todo)) & models.keys()
        self._most = len(needed)
        if len(needed) > _AT_A_TIME:
            sizes, free = [weights_size(models[name].path) for name in needed], free_memory()
            fit = int(free / 2 // max(size for size in sizes if size)) if all(sizes) else 0
            if any(models[name].vllm for name in needed):  # each takes a share of the memory that it is told
                fit = 0
            self._most = max(_AT_A_TIME, min(len(needed), fit))
            shown = f", at most {free / 2**21:,.0f} MiB" if fit else ""
            self._note(f"Keeping {self._most} of {counted(len(needed), 'model')} in memory{shown}")

    def of(self, names: Collection[str]) -> dict[str, LoadedModel]:
        """Return the models among some players, loaded."""
        wanted = sorted(name for name in names if name in self._models)
        most = max(self._most, len(wanted))
        for name in [name for name in self._loaded if name not in wanted]:
            if len({*self._loaded, *wanted}) > most:
                del self._loaded[name]
        for name in wanted:
            model = self._loaded.pop(name, None)
            if model is None:
                self._note(f"Loading {name}")
                model = self._models[name].load()
            self._loaded[name] = model
        return {name: self._loaded[name] for name in wanted}


class _Folder(OutputFolder):
    """Folder of a tournament's games."""

    noun, key, unit, doing = "a tournament", "tournament", "games", "playing a tournament into"

    def agree(self, settings: Mapping[str, Any], players: Mapping[str, Any]) -> None:
        """Check that the games in the folder were played with the same settings, and save these.

        Raises:
            ConfigError: they were not.
        """
        if self.path is None:
            return
        now, before = json.loads(to_json(settings)), self.read_settings()
        joined, then = self.joined(before, "players", players), now if before is None else before
        if not then.keys() >= now.keys():
            raise self.not_ours()
        for name, value in now.items():
            if value != then[name]:
                ours = f"{name}={then[name]!r:.200}, not {value!r:.200}"
                raise ConfigError(f"the folder {self.path} is a tournament with {ours}")
        self.save_settings({**now, "players": joined}, before)

    def forget_failures(self, players: Collection[str]) -> None:
        """Drop the unscored games between these players."""
        if self.path is None or not (self.path / GAMES).exists():
            return

        def lasts(line: dict[str, Any]) -> bool:
            game = read_game(line, f"a line of {path}")
            return game.payoffs is not None or not {*players} >= {*game.players}

        path = self.path / GAMES
        keep_json_lines(path, lasts)

    def records(self) -> Iterator[GameRecord]:
        """Return the games so far."""
        if self.path is None or not (self.path / GAMES).exists():
            return iter(())
        path = self.path / GAMES
        return (read_game(line, f"line {number} of {path}") for number, line in numbered(path))

"""Tournament: a round robin between policies on a game of several seats, and the ratings of its players."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self, TypedDict

from gym_trl.envspec import SELF_PLAY, EnvSpec
from gym_trl.errors import ConfigError, check_counts
from gym_trl.evaluation.output_folder import OutputFolder
from gym_trl.evaluation.ratings import PlayedGame, Standings, rate
from gym_trl.evaluation.seated import SeatedGame, Seating, play_seated
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.options import Text
from gym_trl.policies.functions import NamedPolicy, as_policy
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.policies.weights import free_memory, weights_size
from gym_trl.records.fields import Fields
from gym_trl.records.json_lines import JsonLinesWriter, keep_json_lines, numbered, to_json
from gym_trl.registration import EnvSource, env_name
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.text.textify import counted
from gym_trl.types import Policy
from gym_trl.wrappers.inner import attribute_of

GAMES = "games.jsonl"
"""File of a tournament's folder with a line for each game."""
_AT_A_TIME = 2  # models that play each other


class _Line(TypedDict):
    players: list[str]
    seed: int
    payoffs: list[float] | None
    forfeit: int | None
    stop_reasons: list[str]
    moves: list[list[int | str]]
    error: str | None


_LINE = Fields(_Line, {})


class GameRecord(NamedTuple):
    """One game of a tournament, as it is stored."""

    players: tuple[str, ...]
    """Player of each seat."""
    seed: int
    """Seed of the deal, the same for all seatings and pairings."""
    payoffs: tuple[float, ...] | None
    """Payoff of each seat; ``None`` for an unscored game, which counts for nobody."""
    forfeit: int | None
    """Seat that could not play on, and has lost."""
    stop_reasons: tuple[str, ...]
    moves: tuple[tuple[int, str], ...]
    """Seats and their responses, in order."""
    error: str | None = None

    @classmethod
    def of(cls, game: SeatedGame) -> Self:
        """Return the record of a game."""
        reasons, moves = game.stop_reasons, game.moves
        return cls(*game.seating, game.payoffs, game.forfeit, reasons, moves, game.error)

    @classmethod
    def read(cls, line: dict[str, Any], where: str) -> Self:
        """Return the record in a line of JSON.

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
        return cls(
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
        found: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for game in self.games:
            if game.payoffs is not None:
                found[tuple(sorted(set(game.players)))].append((game.players, game.moves))
        same = (
            names for names, games in found.items() if len(games) > len({one[0] for one in games}) == len(set(games))
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
    found = []
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
        found.append(planned)
    return found


def tournament(
    env: EnvSource,
    players: Sequence[str | Callable[[TextEnvironment], Policy] | NamedPolicy],
    *,
    games: int = 100,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    action_format: str | None = "tag",
    anchor: str | None = None,
    out: Path | str | None = None,
    retry: bool = False,
    on_begin: Callable[[int, int], None] | None = None,
    on_game: Callable[[GameRecord], None] | None = None,
    note: Callable[[str], None] | None = None,
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
        games: Number of games of each pairing.
        seed: Seed of the deals and of random policies.
        env_kwargs: Arguments for ``gym.make``.
        action_format: Format in which language models mark their actions; a trained model keeps its own.
        anchor: Player whose rating is 0. Default: the mean rating is 0.
        out: Folder for the games.
        retry: Play the unscored games of earlier calls again.
        on_begin: Called with the number of games, and the number of those that were played before.
        on_game: Called with every game that is played now.
        note: Called with a line on models that are loaded.

    Raises:
        ConfigError: an invalid argument, an environment of one seat, or a folder of another tournament.
        EngineError: a server rejects requests, or generation failed for every game.
        OSError: the folder cannot be written, and something is left to play.
    """
    Text(action_format=action_format)  # which checks it
    policies = [as_policy(one) for one in players]
    by_name = {policy.name: policy for policy in policies}
    env_id = env_name(env)
    if (opponent := (env_kwargs or {}).get("opponent", SELF_PLAY)) != SELF_PLAY:
        raise ConfigError(f"the players of a tournament have all seats: leave out the argument opponent={opponent!r}")
    spec = EnvSpec(env, env_kwargs=env_kwargs or {}, action_format=None, seats=SELF_PLAY)
    with spec.checked(env_id) as made:
        seats = int(attribute_of(made, "num_seats"))
        for policy in policies:
            if isinstance(policy, TextPolicy):
                policy.check(made)
    plan = plan_games([policy.name for policy in policies], seats, games=games, seed=seed)
    if anchor is not None:
        rate([], players=list(by_name), anchor=anchor)  # reports a name that is none of theirs now, not at the end
    found: dict[Seating, GameRecord] = {}
    with _Folder(None if out is None else Path(out)) as folder:
        settings = {"seed": seed, "env_id": env_id, "env_kwargs": dict(env_kwargs or {})}
        folder.agree(settings, {name: _settings(policy, action_format) for name, policy in by_name.items()})
        if retry:
            folder.forget_failures(by_name)
        for record in folder.records():
            found[Seating(record.players, record.seed)] = record
        wanted = [seating for pairing in plan for seating in pairing]
        before = sum(seating in found for seating in wanted)
        folder.begin(len(wanted) - before)
        if on_begin:
            on_begin(len(wanted), before)

        def write(game: SeatedGame) -> None:
            record = GameRecord.of(game)
            folder.write(record)
            found[game.seating] = record
            if on_game:
                on_game(record)

        todo = [left for pairing in plan if (left := [one for one in pairing if one not in found])]
        models = _Models({name: one for name, one in by_name.items() if isinstance(one, Model)}, todo, note)
        for pairing in todo:
            names = {name for seating in pairing for name in seating.players}
            options: dict[str, Any] = {"seed": seed, "action_format": action_format, "on_game": write}
            play_seated(spec, pairing, by_name, loaded=models.of(names), **options)
    records = tuple(found[seating] for seating in wanted)
    scored = (PlayedGame(one.players, one.payoffs, one.forfeit) for one in records if one.payoffs is not None)
    standings = rate(scored, players=list(by_name), anchor=anchor)
    return Tournament(env_id, standings, records, len(wanted) - before, folder.path)


def _settings(policy: NamedPolicy, action_format: str | None) -> dict[str, Any]:
    """Return the settings that a player's games must share to be counted together."""
    spec = {"action_format": action_format, **(policy.options if isinstance(policy, Model) else {})}
    settings = {**policy.settings, "spec": spec} if policy.marks else dict(policy.settings)
    read: dict[str, Any] = json.loads(to_json(settings))
    return read


class _Models:
    """Models of a tournament, loaded when they are needed, and kept in memory as far as they fit."""

    def __init__(
        self, models: Mapping[str, Model], todo: Iterable[Sequence[Seating]], note: Callable[[str], None] | None
    ) -> None:
        self._models = models
        self._loaded: dict[str, LoadedModel] = {}  # the least recently used first
        self._note = note or (lambda text: None)
        needed = {name for pairing in todo for seating in pairing for name in seating.players} & models.keys()
        self._most = len(needed)
        if len(needed) > _AT_A_TIME:
            sizes, free = [weights_size(models[name].path) for name in needed], free_memory()
            known = [size for size in sizes if size]
            fit = int(free / 2 // max(known)) if len(known) == len(sizes) else 0
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

    noun, key, doing = "a tournament", "tournament", "playing a tournament into"

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._writer: JsonLinesWriter | None = None

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        super().close()

    def agree(self, settings: Mapping[str, Any], players: Mapping[str, Any]) -> None:
        """Check that the games in the folder were played with the same settings, and save these.

        Raises:
            ConfigError: they were not.
        """
        if self.path is None:
            return
        now, before = json.loads(to_json(settings)), self.read_settings()
        known, then = self.settings_of(before, "players"), now if before is None else before
        if not then.keys() >= now.keys():
            raise self.not_ours()
        for name, value in now.items():
            if value != then[name]:
                raise ConfigError(f"{self.path} is a tournament with {name}={then[name]!r:.200}, not {value!r:.200}")
        for name in players.keys() & known.keys():
            if changed := [
                key for key in {**players[name], **known[name]} if players[name].get(key) != known[name].get(key)
            ]:
                was, is_ = known[name].get(changed[0]), players[name].get(changed[0])
                differs = f"{changed[0]:.40}={was!r:.200}, not {is_!r:.200}"
                raise ConfigError(f"{self.path} has games of {name!r} with {differs}")
        self.save_settings({**now, "players": {**known, **players}}, before)

    def begin(self, missing: int) -> None:
        """Prepare for so many games, before the first is played.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.path is not None and missing:
            self.check_writable()
            self._writer = JsonLinesWriter(self.path / GAMES)

    def forget_failures(self, players: Collection[str]) -> None:
        """Drop the unscored games between these players."""
        if self.path is None or not (self.path / GAMES).exists():
            return

        def lasts(line: dict[str, Any]) -> bool:
            game = GameRecord.read(line, f"a line of {path}")
            return game.payoffs is not None or not {*players} >= {*game.players}

        path = self.path / GAMES
        keep_json_lines(path, lasts)

    def records(self) -> Iterator[GameRecord]:
        """Return the games so far."""
        if self.path is None or not (self.path / GAMES).exists():
            return iter(())
        path = self.path / GAMES
        return (GameRecord.read(line, f"line {number} of {path}") for number, line in numbered(path))

    def write(self, record: GameRecord) -> None:
        """Append a game."""
        if self._writer:
            self._writer.write(record._asdict())

"""Games in which the model plays all seats, each a row of the group."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import Call, Part, Play
from gym_trl.grpo.planned_rows import GameSeat, Planned
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.game import Game, run_games
from gym_trl.rollout.text_player import InThread, SeatPolicy
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult


class Games(Part):
    """Part for ``seats``: neighbouring rows of a group are the seats of one game."""

    name = "seats"
    in_evaluations = True

    def begin(self, call: Call) -> None:
        """Check that groups have whole games.

        Raises:
            ConfigError: They do not.
        """
        name = "num_generations" if call.training else "num_generations_eval"
        for env_id, seats in call.seats.items():
            if call.group_size % seats:
                raise ConfigError(f"{name} must be a multiple of the {seats} seats of {env_id}, got {call.group_size}")

    def opponent(self, row: Planned, call: Call) -> str:
        """Return the name of the opponent in a row's group; empty if the model plays all seats of its games."""
        return ""

    def against(self, opponent: str, row: Planned, seed: int, call: Call) -> Episode | SeatPolicy | InThread:
        """Return the player of an opponent's seat."""
        raise NotImplementedError

    def note(self, opponent: str, mine: EpisodeResult, others: Sequence[EpisodeResult]) -> None:
        """Note a game against an opponent."""

    def play(self, rows: Sequence[Planned], play: Play, call: Call) -> list[EpisodeResult]:
        """Return the episodes of the seats of rows."""
        matches: list[_Match] = []
        for row in rows:
            seats = call.seats[row.task.env_id]
            seat = GameSeat.of(row.member, seats).seat
            opponent = self.opponent(row, call)
            if opponent or seat == 0:  # otherwise the game of the slot's first row has all of its seats
                matches.append(_Match([row.seat(number, seats) for number in range(seats)], seat, opponent))
        games = [Game([self._player(match, row, call) for row in match.rows]) for match in matches]
        played: dict[int, EpisodeResult] = {}
        for match, result in zip(matches, run_games(games, **call.run), strict=True):
            mine, others = match.sides(result)
            played |= {match.number(one): one for one in mine}
            if match.opponent:
                self.note(match.opponent, mine[0], others)
        if call.trainer.accelerator.num_processes > 1 and any(call.rows % seats for seats in call.seats.values()):
            played |= _exchanged(played, {row.number for row in rows})
        return [played[row.number] for row in rows]

    def _player(self, match: "_Match", row: Planned, call: Call) -> Episode | SeatPolicy | InThread:
        if not match.is_against(row):
            return call.episode(row)
        seed = derive_seed(row.sampling_seed(call.seed, call.place), "opponent", match.seat)
        return self.against(match.opponent, row, seed, call)


class _Match(NamedTuple):
    """Game of a slot of rows, one for each seat: of the model with itself, or of one row against an opponent."""

    rows: Sequence[Planned]
    """Rows of the slot, by seat; in a game against an opponent only the one at ``seat`` is of this game."""
    seat: int
    opponent: str
    """Name of the opponent; empty if the model plays all seats."""

    def is_against(self, row: Planned) -> bool:
        """Return whether the opponent plays the seat of a row."""
        return bool(self.opponent) and row.number != self.rows[self.seat].number

    def sides(self, episodes: Sequence[EpisodeResult]) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
        """Return the episodes of the model's seats and of the opponent's."""
        mine, others = list[EpisodeResult](), list[EpisodeResult]()
        for row, episode in zip(self.rows, episodes, strict=True):
            (others if self.is_against(row) else mine).append(episode)
        return [one.against(self.opponent, others) if others else one for one in mine], others

    def number(self, episode: EpisodeResult) -> int:
        """Return the number of the row of a seat's episode."""
        return self.rows[episode.seat or 0].number


def _exchanged(played: Mapping[int, EpisodeResult], mine: Collection[int]) -> dict[int, EpisodeResult]:
    """Return what other processes have played for rows of this one; every process must call it."""
    from accelerate.utils import gather_object

    sent: list[tuple[int, EpisodeResult]] = gather_object([pair for pair in played.items() if pair[0] not in mine])
    return dict(sent)

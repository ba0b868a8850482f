"""Games in which the model plays all seats, each a row of the group."""

from collections.abc import Collection, Mapping, Sequence

from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import Call, Part, Play
from gym_trl.grpo.planned_rows import GameSeat, Planned
from gym_trl.rollout.game import Game, run_games
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

    def play(self, rows: Sequence[Planned], play: Play, call: Call) -> list[EpisodeResult]:
        """Return the episodes of the seats of rows."""
        matches: list[list[Planned]] = []  # each with a row for each seat
        for row in rows:
            seats = call.seats[row.task.env_id]
            if GameSeat.of(row.member, seats).seat == 0:
                matches.append([row.seat(number, seats) for number in range(seats)])
        games = [Game([call.episode(row) for row in match]) for match in matches]
        played: dict[int, EpisodeResult] = {}
        for match, episodes in zip(matches, run_games(games, **call.run), strict=True):
            played |= {row.number: episode for row, episode in zip(match, episodes, strict=True)}
        if call.trainer.accelerator.num_processes > 1 and any(call.rows % seats for seats in call.seats.values()):
            played |= _exchanged(played, {row.number for row in rows})
        return [played[row.number] for row in rows]


def _exchanged(played: Mapping[int, EpisodeResult], mine: Collection[int]) -> dict[int, EpisodeResult]:
    """Return what other processes have played for rows of this one; every process must call it."""
    from accelerate.utils import gather_object

    sent: list[tuple[int, EpisodeResult]] = gather_object([pair for pair in played.items() if pair[0] not in mine])
    return dict(sent)

"""Sokoban, in rooms that are made by playing backwards."""

import heapq
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count, permutations
from typing import Any, ClassVar, NamedTuple

from gym_trl.envs.text_env import Difficulty, Outcome, Steady, TextEnv, check_integers
from gym_trl.errors import ConfigError
from gym_trl.textify import counted
from gym_trl.types import Policy

_LEAST_SIDE, _MOST_SIDE, _MOST_BOXES = 5, 12, 4
_SQUARES_PER_BOX = 4
_LEVELS = 2**32
_MOST_POSITIONS = 20_000
"""With how many positions playing backwards stops, in one room, after the moves that it is at."""
_MOST_ROOMS = 8
"""After how many rooms without a start that is far enough from the end any start will do."""
_DIRECTIONS = ("up", "right", "down", "left")
_BOX_ON = {"-": "$", ".": "*"}
_PLAYER_ON = {"-": "@", ".": "+", "$": "@", "*": "+"}
_LEFT_BEHIND = {"@": "-", "+": "."}
_ROW = re.compile(r"^#[-#@$.*+]+#$", re.MULTILINE)


class Sokoban(TextEnv):
    """Push all boxes onto goals; they can be pushed and never pulled.

    >>> env = Sokoban(width=5, height=5, boxes=1, depth=4, turns=9)
    >>> print(env.reset(options={"instance": 0})[0])
    #####
    #-#-#
    #-$.#
    #@-##
    #####
    9 turns left.
    >>> print(env.step("left")[0])
    That move is not possible.
    #####
    #-#-#
    #-$.#
    #@-##
    #####
    8 turns left.
    >>> observation, *_ = env.step("up")
    >>> observation, reward, terminated, *_ = env.step("right")
    >>> print(observation)
    #####
    #-#-#
    #-@*#
    #--##
    #####
    6 turns left.
    >>> reward, terminated
    (1.0, True)

    A room is ``width`` times ``height`` squares with the outer walls. It is made from the number of the instance:
    walls, goals and boxes on them, and then play backwards, pulling, over everything that can be reached in ``depth``
    moves or until 20,000 positions are known. So each room can be solved, and the fewest moves are known:
    ``info["optimal_actions"]``. The start is one of the positions at least half as far from the end in which no box is
    on a goal, all as likely; a room without one is made again, and of the eighth the farthest position will do.

    A move into a wall, or of a box that does not give way, costs a turn and changes nothing, as does what is no move.
    With ``moves_per_answer`` an answer can be several moves, each of which is a turn; an answer that cannot be played
    to the end of it is not begun and costs one turn. A game in which no box can be saved ends when the turns are used
    up.

    Args:
        difficulty: ``"easy"`` is 6 by 6 with one box at most 8 moves from the end, in 20 turns; ``"medium"`` is 6 by 6
            with two boxes, as it is often played by language models, at most 20 and in 40; ``"hard"`` is 8 by 8 with
            three boxes, at most 30 and in 60.
        width: Squares from left to right, 5 to 12.
        height: Squares from top to bottom, 5 to 12.
        boxes: 1 to 4, and no more than a fourth of the squares inside the walls.
        depth: Most moves that the shortest solution has; never more than ``turns``.
        turns: Moves after which the game is lost.
        moves_per_answer: Most moves in one answer.
        reward: ``"efficient"`` pays the moves of a shortest solution over the turns taken; the potential of
            ``"shaped"`` is the share of boxes on goals.
        render_mode: ``"ansi"`` or ``"human"``.

    The solver plays a shortest solution (A*), so it wins every game; the tests compare it with the number that playing
    backwards gives, and both with a breadth-first search of their own. Of the first 1,000 games (hard: 100):

    ======================= ======= ======= =======
    ..                      easy    medium  hard
    ======================= ======= ======= =======
    fewest moves, mean      5.4     11.8    17.5
    fewest moves, range     4-8     3-20    10-30
    random moves win        0.115   0.009   0.000
    ======================= ======= ======= =======

    Raises:
        ConfigError: an argument is no integer or out of its range.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"width": 6, "height": 6, "boxes": 1, "depth": 8, "turns": 20, "moves_per_answer": 1},
        "medium": {"width": 6, "height": 6, "boxes": 2, "depth": 20, "turns": 40, "moves_per_answer": 1},
        "hard": {"width": 8, "height": 8, "boxes": 3, "depth": 30, "turns": 60, "moves_per_answer": 1},
    }
    reward_modes = ("success", "efficient", "shaped")
    garbage = "push"

    def __init__(
        self,
        *,
        difficulty: Difficulty = "medium",
        width: int | None = None,
        height: int | None = None,
        boxes: int | None = None,
        depth: int | None = None,
        turns: int | None = None,
        moves_per_answer: int | None = None,
        reward: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(difficulty=difficulty, reward=reward, render_mode=render_mode)
        chosen = self._choose(
            width=width, height=height, boxes=boxes, depth=depth, turns=turns, moves_per_answer=moves_per_answer
        )
        self.width: int = chosen["width"]
        self.height: int = chosen["height"]
        self.boxes: int = chosen["boxes"]
        self.depth: int = chosen["depth"]
        self.turns: int = chosen["turns"]
        self.moves_per_answer: int = chosen["moves_per_answer"]
        self._check_arguments()
        row = self.width + 1
        self._steps = dict(zip(_DIRECTIONS, (-row, 1, row, -1), strict=True))
        self._squares: list[str] = []
        self._player = 0
        self._known = {"optimal_actions": 0}
        self._turns_left = self.turns

    def _check_arguments(self) -> None:
        check_integers(width=self.width, height=self.height, at_least=_LEAST_SIDE)
        check_integers(
            boxes=self.boxes, depth=self.depth, turns=self.turns, moves_per_answer=self.moves_per_answer, at_least=1
        )
        for name, side in (("width", self.width), ("height", self.height)):
            if side > _MOST_SIDE:
                raise ConfigError(f"{name} must be at most {_MOST_SIDE}, got {side}")
        most = min(_MOST_BOXES, (self.width - 2) * (self.height - 2) // _SQUARES_PER_BOX)
        if self.boxes > most:
            raise ConfigError(
                f"boxes must be at most {most} in a room of {self.width} by {self.height}, got {self.boxes}"
            )

    @property
    def instructions(self) -> str:
        """The rules and how to answer."""
        if self.moves_per_answer == 1:
            answer = "one move: up, down, left or right"
        else:
            answer = (
                f"one to {self.moves_per_answer} moves out of up, down, left and right, separated by spaces; each is "
                "a turn. If one of them is not possible, none is made"
            )
        return (
            f"Sokoban: push every box onto a goal within {self.turns} turns. The map shows walls (#), floor (-), "
            "goals (.), boxes ($), boxes on goals (*) and you (@, on a goal +). Walk into a box to push it one square; "
            "that needs a free square behind it, and boxes cannot be pulled. A move that is not possible costs a turn, "
            f"and so does anything else. Answer with {answer}."
        )

    @property
    def num_instances(self) -> int:
        """Rooms are made from their number."""
        return _LEVELS

    @property
    def optimal_success(self) -> float:
        """Every room can be solved in the turns there are."""
        return 1.0

    @property
    def optimal_return(self) -> float | None:
        """A shortest solution is worth 1 also when moves count."""
        return None if self.reward == "shaped" else 1.0

    @property
    def constant_action(self) -> str:
        """The first move that is possible, which depends on the room."""
        return self._possible_moves()[0] if self._last is not None else "up"

    def admissible_actions(self) -> list[str] | None:
        """One to four moves, or ``None`` where an answer can be several."""
        return self._possible_moves() if self.moves_per_answer == 1 else None

    def solver(self) -> Policy:
        """Plays a shortest solution."""
        return Steady(_Solver(), _ROW.search)

    def random_policy(self, seed: int) -> Policy:
        """Plays single moves that are possible, whether or not more would be allowed."""
        rng = random.Random(seed)
        return lambda observation: rng.choice(self._possible_moves())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game: a random one, or number ``options["instance"]`` of ``num_instances``."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**self._known, **info}

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        depth = min(self.depth, self.turns)
        room, fewest = _make_room(self.width, self.height, self.boxes, depth, instance or 0)
        self._squares = list(room)
        self._player = _find_player(room)
        self._known = {"optimal_actions": fewest}
        self._turns_left = self.turns
        return self._end_turn("").observation

    def _act(self, action: str) -> Outcome:
        step = self._steps.get(action)
        steps = [step] if step is not None else self._read(action)
        if not steps:
            return self._reject("Answer up, down, left or right.")
        if len(steps) > self.moves_per_answer:
            return self._reject(f"At most {counted(self.moves_per_answer, 'move')} in one answer.")
        if len(steps) > 1:
            return self._play_all(steps)
        if not _can_move(self._squares, self._player, steps[0]):
            return self._reject("That move is not possible.")
        self._player = _move(self._squares, self._player, steps[0])
        self._turns_left -= 1
        return self._end_turn("")

    def _play_all(self, steps: list[int]) -> Outcome:
        """Until all are made, or the room is solved, or there are no more turns."""
        squares, player, turns = self._squares.copy(), self._player, 0
        while turns < min(len(steps), self._turns_left) and "$" in squares:
            if not _can_move(squares, player, steps[turns]):
                return self._reject(f"Move {turns + 1} is not possible.")
            player = _move(squares, player, steps[turns])
            turns += 1
        self._squares, self._player = squares, player
        self._turns_left -= turns
        self._actions += turns - 1  # each move counts
        return self._end_turn("")

    def _read(self, action: str) -> list[int]:
        """The moves of an answer, or none if it is anything else."""
        if not action.isascii():
            return []
        steps = [self._steps.get(word) for word in action.lower().split()]
        return [] if None in steps else [step for step in steps if step is not None]

    def _reject(self, reason: str) -> Outcome:
        self._turns_left -= 1
        return self._end_turn(f"{reason}\n", valid=False)

    def _end_turn(self, said: str, *, valid: bool = True) -> Outcome:
        left, room = self._turns_left, "".join(self._squares)
        solved = "$" not in room
        shown = f"{said}{room}{counted(left, 'turn')} left."
        return Outcome(shown, done=solved or left == 0, success=solved, valid=valid, info=self._known)

    def _possible_moves(self) -> list[str]:
        squares, player = self._squares, self._player
        return [
            name
            for name, step in self._steps.items()
            if squares[player + step] in "-." or (squares[player + step] in "$*" and squares[player + 2 * step] in "-.")
        ]

    def _fewest_actions(self) -> float:
        """The moves of a shortest solution."""
        return self._known["optimal_actions"]

    def _potential(self) -> float:
        """The share of boxes on goals."""
        return self._squares.count("*") / self.boxes


def _can_move(squares: list[str], player: int, step: int) -> bool:
    ahead = squares[player + step]
    return ahead in "-." or (ahead != "#" and squares[player + 2 * step] in "-.")


def _move(squares: list[str], player: int, step: int) -> int:
    """Make a move that is possible; where the player is then."""
    there = player + step
    ahead = squares[there]
    if ahead in "$*":
        squares[there + step] = _BOX_ON[squares[there + step]]
    squares[there] = _PLAYER_ON[ahead]
    squares[player] = _LEFT_BEHIND[squares[player]]
    return there


def _find_player(room: str) -> int:
    return max(room.find("@"), room.find("+"))


class _Room(NamedTuple):
    """Floor squares by number, each with the squares beside it or -1; sets of squares are bits of an integer."""

    places: list[int]
    beside: list[tuple[int, int, int, int]]
    """In the order of ``_DIRECTIONS``: opposite directions differ by 2."""
    goals: int

    @classmethod
    def of(cls, places: list[int], goals: set[int], row: int) -> "_Room":
        number = {place: i for i, place in enumerate(places)}
        beside = [
            (
                number.get(place - row, -1),
                number.get(place + 1, -1),
                number.get(place + row, -1),
                number.get(place - 1, -1),
            )
            for place in places
        ]
        return cls(places, beside, sum(1 << number[goal] for goal in goals))

    def numbers(self, squares: int) -> list[int]:
        return [i for i in range(len(self.places)) if squares >> i & 1]


# ---------------------------------------------------------------------------------------------------------------------
# Making rooms
# ---------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _make_room(width: int, height: int, boxes: int, depth: int, number: int) -> tuple[str, int]:
    """A room as text and the moves of its shortest solution."""
    rng = random.Random(number)
    for attempt in count(1):
        floor = _grow_floor(width, height, boxes, rng)
        goals = set(rng.sample(floor, boxes))
        room = _Room.of(floor, goals, width + 1)
        starts = _play_backwards(room, depth)
        far = starts[-1][2] if len(starts) >= _MOST_POSITIONS else depth
        wanted = [start for start in starts if not start[0] & room.goals and 2 * start[2] >= far]
        if wanted or (starts and attempt >= _MOST_ROOMS):
            squares, player, fewest = rng.choice(wanted or starts[-1:])
            return _draw(width, height, room, squares, player), fewest
    raise AssertionError("there is always another room")


def _grow_floor(width: int, height: int, boxes: int, rng: random.Random) -> list[int]:
    """Connected squares, from a half to all of those inside the walls."""
    row, inside = width + 1, (width - 2) * (height - 2)
    wanted = rng.randint(max(inside // 2, 3 * boxes), inside)
    floor = [rng.randint(1, height - 2) * row + rng.randint(1, width - 2)]
    while len(floor) < wanted:
        place = rng.choice(floor) + rng.choice((-row, 1, row, -1))
        if 1 <= place // row <= height - 2 and 1 <= place % row <= width - 2 and place not in floor:
            floor.append(place)
    return sorted(floor)


def _play_backwards(room: _Room, depth: int) -> list[tuple[int, int, int]]:
    """Positions with how many moves they are from the end, breadth first: boxes, player, moves."""
    layer = [(room.goals, player) for player in range(len(room.places)) if not room.goals >> player & 1]
    known = set(layer)
    found: list[tuple[int, int, int]] = []
    for moves in range(1, depth + 1):
        layer = _one_move_back(room, layer, known)
        found += [(boxes, player, moves) for boxes, player in layer]
        if len(found) >= _MOST_POSITIONS or not layer:
            break
    return found


def _one_move_back(room: _Room, layer: list[tuple[int, int]], known: set[tuple[int, int]]) -> list[tuple[int, int]]:
    beside, before = room.beside, []
    for boxes, player in layer:
        near = beside[player]
        for direction in range(4):
            there, behind = near[direction], near[direction - 2]
            if there < 0 or boxes >> there & 1:
                continue
            walked = (boxes, there)
            if walked not in known:
                known.add(walked)
                before.append(walked)
            if behind >= 0 and boxes >> behind & 1:
                pulled = (boxes ^ 1 << behind ^ 1 << player, there)
                if pulled not in known:
                    known.add(pulled)
                    before.append(pulled)
    return before


def _draw(width: int, height: int, room: _Room, boxes: int, player: int) -> str:
    squares = list(("#" * width + "\n") * height)
    for number, place in enumerate(room.places):
        goal = room.goals >> number & 1
        mark = "." if goal else "-"
        if boxes >> number & 1:
            mark = _BOX_ON[mark]
        squares[place] = _PLAYER_ON[mark] if number == player else mark
    return "".join(squares)


# ---------------------------------------------------------------------------------------------------------------------
# Solving them
# ---------------------------------------------------------------------------------------------------------------------


class _Solver:
    """Follows a shortest solution of the first observation, and makes a new one where it was not followed."""

    def __init__(self) -> None:
        self._plan: list[str] = []
        self._expected = ""

    def __call__(self, observation: str) -> str:
        room = "".join(f"{row}\n" for row in _ROW.findall(observation))
        if not self._plan or room != self._expected:
            self._plan = _shortest_solution(room)[::-1]
        squares, row = list(room), room.index("\n") + 1
        move = self._plan.pop() if self._plan else "up"
        step = dict(zip(_DIRECTIONS, (-row, 1, row, -1), strict=True))[move]
        if _can_move(squares, _find_player(room), step):
            _move(squares, _find_player(room), step)
        self._expected = "".join(squares)
        return move


def _shortest_solution(text: str) -> list[str]:
    """By A*; no moves where there is no solution."""
    room, boxes, player = _read_room(text)
    pushes_left = _PushesLeft(room)
    start = (boxes, player)
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    cost, order, done = {start: 0}, count(), set()
    waiting = [(pushes_left.of(boxes), 0, start)]
    while waiting:
        _, _, position = heapq.heappop(waiting)
        if position in done:
            continue
        if position[0] == room.goals:
            return _way(came_from, position)
        done.add(position)
        for after, direction in _after(room, position):
            left = pushes_left.of(after[0])
            moves = cost[position] + 1
            if left < _NEVER and moves < cost.get(after, _NEVER):
                cost[after] = moves
                came_from[after] = (position, direction)
                # Of positions that promise the same the last found is looked at first.
                heapq.heappush(waiting, (moves + left, -next(order), after))
    return []


def _way(came_from: dict[tuple[int, int], tuple[tuple[int, int], int]], position: tuple[int, int]) -> list[str]:
    moves = []
    while position in came_from:
        position, direction = came_from[position]
        moves.append(_DIRECTIONS[direction])
    return moves[::-1]


def _after(room: _Room, position: tuple[int, int]) -> list[tuple[tuple[int, int], int]]:
    """All positions one move later."""
    boxes, player = position
    found = []
    for direction, there in enumerate(room.beside[player]):
        if there < 0:
            continue
        if not boxes >> there & 1:
            found.append(((boxes, there), direction))
            continue
        beyond = room.beside[there][direction]
        if beyond >= 0 and not boxes >> beyond & 1:
            found.append(((boxes ^ 1 << there ^ 1 << beyond, there), direction))
    return found


_NEVER = 10**9


class _PushesLeft:
    """The fewest pushes that bring each box to a goal of its own, if no box were in the way of another."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._from_goal = [_pushes_to(room, goal) for goal in room.numbers(room.goals)]
        self._known: dict[int, int] = {}

    def of(self, boxes: int) -> int:
        if boxes not in self._known:
            places = self._room.numbers(boxes)
            self._known[boxes] = min(
                sum(pushes.get(place, _NEVER) for pushes, place in zip(self._from_goal, order, strict=True))
                for order in permutations(places)
            )
        return self._known[boxes]


def _pushes_to(room: _Room, goal: int) -> dict[int, int]:
    """From every square from which a box can come to this goal."""
    found, layer = {goal: 0}, [goal]
    while layer:
        box = layer.pop(0)
        for direction in range(4):
            before = room.beside[box][direction]
            if before >= 0 and before not in found and room.beside[before][direction] >= 0:
                found[before] = found[box] + 1
                layer.append(before)
    return found


def _read_room(text: str) -> tuple[_Room, int, int]:
    places = [place for place, mark in enumerate(text) if mark not in "#\n"]
    room = _Room.of(places, {place for place in places if text[place] in ".*+"}, text.index("\n") + 1)
    boxes = sum(1 << number for number, place in enumerate(places) if text[place] in "$*")
    return room, boxes, places.index(_find_player(text))

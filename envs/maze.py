"""Mazes, seen from above or from inside."""

import random
import re
from collections.abc import Container
from typing import Any, ClassVar

from gym_trl.envs.puzzle import Puzzle, offsets, plain
from gym_trl.envs.search import distances
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

_DIRECTIONS = ("north", "east", "south", "west")
_ROW = re.compile(r"^#[#.GP]*#$", re.MULTILINE)
_PLACE = re.compile(r"^Row ([0-9]+), column ([0-9]+)\.$", re.MULTILINE)
_OPEN = re.compile(r"(north|east|south|west) ([0-9]+)[,.]")
_GOAL = re.compile(r"^The goal is ([0-9]+) squares? (north|east|south|west)\.$", re.MULTILINE)


class Maze(Puzzle):
    """Walk through a maze to the goal, seeing all of it or only the squares straight ahead.

    >>> env = Maze(size=2)
    >>> print(env.reset(options={"instance": 7})[0])
    #####
    #G..#
    #.#.#
    #.#P#
    #####
    30 turns left.
    >>> print(env.step("west")[0])
    A wall is west of you.
    #####
    #G..#
    #.#.#
    #.#P#
    #####
    29 turns left.
    >>> env = Maze(size=2, view="local")
    >>> print(env.reset(options={"instance": 7})[0])
    Row 3, column 3.
    Open squares: north 2, east 0, south 0, west 0.
    30 turns left.
    >>> for _ in range(2):
    ...     observation, *_ = env.step("north")
    >>> print(observation)
    Row 1, column 3.
    Open squares: north 0, east 0, south 2, west 2.
    The goal is 2 squares west.
    28 turns left.

    A maze has ``size`` times ``size`` rooms, on odd rows and columns, and one square between two rooms that are
    connected. Start and goal are a uniformly random pair of rooms. A move goes one square.

    Args:
        size: Rooms per side.
        loops: Probability that a wall is missing whose removal creates a second way between two rooms. With 0 there is
            exactly one way between any two rooms.
        view: ``"full"`` shows the whole maze, ``"local"`` the position, the number of open squares in each of the four
            directions before a wall, and the goal if it is one of them.
        turns: Moves in an episode. Start and goal are drawn again until the goal is near enough.

    With the full view the solver takes a shortest way. With the local one it explores depth first the rooms that have
    unseen neighbours, and of the rooms beside an unseen one only the nearest. That takes at most ``4 * (size**2 - 1)``
    moves, so from that many turns on it always wins. This is optimal for 2 by 2 rooms; the optimum of larger mazes is
    unknown:

    =========================== ======= ======= =======
    moves in the mean           2 by 2  4 by 4  5 by 5
    =========================== ======= ======= =======
    shortest way                3.333   10.26   14.20
    solver, local view          3.667   16.89   27.12
    uniformly random            20      301.9   687.0
    =========================== ======= ======= =======

    With ``loops=0`` and no effective limit of turns: exact for 2 by 2, otherwise over the first 1,000 mazes, with the
    random walk computed exactly for each. The tests compute all of this.
    """

    presets: ClassVar = {
        "easy": {"size": 2, "loops": 0.0, "view": "full", "turns": 12},
        "medium": {"size": 4, "loops": 0.0, "view": "full", "turns": 30},
        "hard": {"size": 5, "loops": 0.0, "view": "local", "turns": 96},
    }
    ranges: ClassVar = {"size": (2, 15), "loops": (0, 1), "view": ("full", "local"), "turns": (2, None)}
    reward_modes = ("success", "efficient", "shaped")
    garbage = "up"
    num_instances = 2**32

    size: int
    loops: float
    view: str

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._row = 2 * self.size + 2
        self._steps = offsets(_DIRECTIONS, self._row)
        odd = range(1, 2 * self.size, 2)
        self._rooms = [row * self._row + column for row in odd for column in odd]

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        if self.view == "full":
            shown = "The map shows walls (#), open squares (.), you (P) and the goal (G). North is up."
        else:
            shown = (
                f"It has rooms on odd rows and columns up to {2 * self.size - 1}, and one square between rooms "
                "that are connected; rows count from north to south, columns from west to east. You are told how many "
                "squares are open in each direction before a wall, and where the goal is if it lies on one of them."
            )
        return (
            f"Walk through the maze to the goal within {self.turns} turns. {shown} A turn moves one square; a wall "
            "stops you and costs the turn, and so does anything else. Answer with one word: north, east, south or west."
        )

    @property
    def optimal_success(self) -> float | None:
        """1.0 for the full view, and with turns enough to explore every room; otherwise ``None``."""
        return 1.0 if self.view == "full" or self.turns >= 4 * (self.size**2 - 1) else None

    @property
    def optimum_is_shortest(self) -> bool:
        """True with the full view, which shows the shortest way."""
        return self.view == "full"

    @property
    def constant_action(self) -> str:
        """First open direction, which depends on the maze."""
        return self.admissible_actions()[0] if self._last is not None else "north"

    def admissible_actions(self) -> list[str]:
        """Return the one to four open directions."""
        maze, at = self._maze, self._at
        return [direction for direction, step in self._steps.items() if maze[at + step] != "#"]

    def solver(self) -> Policy:
        """Return a policy that takes a shortest way, or explores: see the class."""
        return (
            Steady(_shortest_way, _ROW.search) if self.view == "full" else Steady(_Explorer(self.size), _PLACE.search)
        )

    def _deal(self, instance: int | None) -> None:
        rng, rooms = random.Random(instance), self._rooms
        self._maze = _carve(self.size, self.loops, rooms, rng)
        self._goal = rng.choice(rooms)
        maze, steps = self._maze, (-self._row, 1, self._row, -1)
        self._away = away = distances(self._goal, lambda at: [near for step in steps if maze[near := at + step] != "#"])
        turns = self.turns
        self._at = rng.choice([room for room in rooms if 0 < away[room] <= turns])
        self._maze = f"{self._maze[: self._goal]}G{self._maze[self._goal + 1 :]}"
        self._fewest = self._away[self._at]
        self._visited = {self._at}

    def _act(self, action: str) -> Outcome:
        direction = action if action in self._steps else plain(action)
        if direction not in self._steps:
            return self._reject("Answer north, east, south or west.")
        if self._maze[self._at + self._steps[direction]] == "#":
            return self._reject(f"A wall is {direction} of you.")
        self._at += self._steps[direction]
        self._visited.add(self._at)
        return self._end_turn("You reached the goal." if self._at == self._goal else "")

    def _snapshot(self) -> tuple[int, ...]:
        return (self._at,) if self.view == "full" else (self._at, *sorted(self._visited))

    def _is_solved(self) -> bool:
        return self._at == self._goal

    def _board(self) -> str:
        maze, at = self._maze, self._at
        if self.view == "full":
            return f"{maze[:at]}P{maze[at + 1 :]}"
        return f"Row {at // self._row}, column {at % self._row}.\n{self._look_around()}"

    def _look_around(self) -> str:
        seen, goal = [], ""
        for direction, step in self._steps.items():
            square, count = self._at + step, 0
            while self._maze[square] != "#":
                count += 1
                if square == self._goal:
                    goal = f"The goal is {counted(count, 'square')} {direction}.\n"
                square += step
            seen.append(f"{direction} {count}")
        return f"Open squares: {', '.join(seen)}.\n{goal}"

    def _fewest_actions(self) -> float:
        """Return the length of the shortest way, also where it cannot be seen."""
        return self._fewest

    def _potential(self) -> float:
        """Return 1 minus the shortest distance to the goal as a share of the longest possible in this size."""
        return 1.0 - self._away[self._at] / (2 * (self.size**2 - 1))


def _carve(size: int, loops: float, rooms: list[int], rng: random.Random) -> str:
    """Return a random maze, depth first, as rows of text."""
    row = 2 * size + 2
    squares = list(("#" * (row - 1) + "\n") * (row - 1))
    way = [rng.choice(rooms)]
    squares[way[0]] = "."
    left, steps = set(rooms) - set(way), (-row, 1, row, -1)
    while way:
        here = way[-1]
        ahead = [step for step in steps if here + step + step in left]
        if not ahead:
            way.pop()
            continue
        step = rng.choice(ahead)
        room = here + step + step
        squares[here + step] = squares[room] = "."
        left.remove(room)
        way.append(room)
    for room in rooms if loops else ():
        for step in (1, row):
            if room + 2 * step in rooms and squares[room + step] == "#" and rng.random() < loops:
                squares[room + step] = "."
    return "".join(squares)


def _shortest_way(observation: str) -> str:
    rows = _ROW.findall(observation)
    maze = "".join(f"{row}\n" for row in rows)
    open_ = {at for at, square in enumerate(maze) if square not in "#\n"}
    return _first_step(maze.index("P"), maze.index("G"), open_, offsets(_DIRECTIONS, len(rows[0]) + 1))


def _first_step(start: int, goal: int, open_: Container[int], steps: dict[str, int]) -> str:
    """Return the first step of a shortest way."""
    away = _ways(goal, open_, steps)
    return min(steps, key=lambda direction: away.get(start + steps[direction], len(away)))


def _ways(start: int, open_: Container[int], steps: dict[str, int]) -> dict[int, int]:
    """Return the distance of each square that can be reached."""
    return distances(start, lambda at: [at + step for step in steps.values() if at + step in open_])


class _Explorer:
    """Policy that searches depth first, with a tree of all squares that it has seen.

    It enters no room whose neighbours have all been seen, since none of them is the goal. It leaves a subtree only when
    no room in it is left to visit, so it walks no edge more than twice.
    """

    def __init__(self, size: int) -> None:
        self._row = 2 * size + 2
        self._steps = offsets(_DIRECTIONS, self._row)
        self._rooms = {row * self._row + column for row in range(1, 2 * size, 2) for column in range(1, 2 * size, 2)}
        self._parent: dict[int, int | None] = {}
        self._visited: set[int] = set()

    def __call__(self, observation: str) -> str:
        place = _PLACE.search(observation)
        assert place is not None, "the solver reads observations of the local view"
        here = int(place[1]) * self._row + int(place[2])
        self._visited.add(here)
        self._parent.setdefault(here, None)
        for direction, count in _OPEN.findall(observation):
            step = self._steps[direction]
            for far in range(1, int(count) + 1):
                self._parent.setdefault(here + far * step, here + (far - 1) * step)
        goal = _GOAL.search(observation)
        target = here + int(goal[1]) * self._steps[goal[2]] if goal else self._next_room(here)
        return _first_step(here, target, self._parent, self._steps)

    def _next_room(self, here: int) -> int:
        away = _ways(here, self._parent, self._steps)
        worth = {place: unseen for place in self._parent if (unseen := self._unseen_beside(place))}
        top: int | None = here
        while top is not None:
            if inside := [room for room in worth if self._is_under(room, top)]:
                return min(inside, key=lambda room: (away[room] / worth[room], room))
            top = self._parent[top]
        raise AssertionError("every room is seen, and the goal is in none of them")

    def _unseen_beside(self, place: int) -> int:
        """Return the number of rooms that would be seen for the first time from ``place``, 0 if not to visit."""
        if place in self._visited or place not in self._rooms:
            return 0
        near = [place + 2 * step for step in self._steps.values()]
        return sum(room in self._rooms and room not in self._parent for room in near)

    def _is_under(self, place: int, top: int) -> bool:
        at: int | None = place
        while at is not None and at != top:
            at = self._parent[at]
        return at == top

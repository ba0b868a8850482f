"""Solver of the text adventure: shortest plans in a known house, and exploration of an unknown one."""

import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from gym_trl.envs.adventure_house import BACK, EATEN, HELD, KITCHEN, STEPS, Goal, House, State, key_of, preposition
from gym_trl.envs.search import distances, path, rings


class _Deed(NamedTuple):
    """Command that every plan has exactly once."""

    command: str
    rooms: tuple[str, ...]
    """Rooms where it can be given; any room if empty."""
    after: set[int]
    """Deeds that must come before it."""


def shortest_plan(house: House, state: State, room: str) -> list[str] | None:
    """Return the fewest commands that reach the goals, or ``None`` if the known part of the house does not suffice.

    Dropping, closing or taking a thing that no goal and no lock needs never shortens a plan. So a plan consists of the
    unavoidable deeds, each once, the doors opened for a shorter way, and the walks between them. An unavoidable deed is
    done as soon as the player is in its room, which leaves a breadth-first search over the walks.
    """
    needs = _Needs(house, state, room)
    if not needs.complete:
        return None
    walks, goal = _Walks(house, state, needs), (1 << len(needs.deeds)) - 1
    came_from: dict[_Place, tuple[_Place, str]] = {}
    reached = (at for ring in rings((room, 0), walks.moves, came_from) for at in ring if at[1] & goal == goal)
    end = next(reached, None)
    return None if end is None else path(came_from, end)


_Place: TypeAlias = tuple[str, int]
"""Room, and a number with a bit for each deed that is done and each shortcut that is open."""


class _Walks:
    """Commands that lead from one place to the next."""

    def __init__(self, house: House, state: State, needs: "_Needs") -> None:
        deeds = list(enumerate(needs.deeds))
        self._exits, self._closed, self._deeds = house.exits, state.closed, needs.deeds
        self._after = [sum(1 << i for i in deed.after) for deed in needs.deeds]
        self._here = {name: [i for i, deed in deeds if not deed.rooms or name in deed.rooms] for name in house.exits}
        self._optional = {door: 1 << (len(deeds) + i) for i, door in enumerate(needs.shortcuts)}
        self._opened = {deed.command.removeprefix("open "): 1 << i for i, deed in deeds} | self._optional

    def moves(self, at: _Place) -> Iterator[tuple[str, _Place]]:
        room, done = at
        ready = next((i for i in self._here[room] if not done >> i & 1 and self._after[i] & ~done == 0), None)
        if ready is not None:
            yield self._deeds[ready].command, (room, done | 1 << ready)
            return
        for way, (there, door) in self._exits[room].items():
            if door not in self._closed or done & self._opened.get(door, 0):
                yield f"go {way}", (there, done)
            elif door in self._optional:
                yield f"open {door}", (room, done | self._optional[door])


class _Needs:
    """Deeds that the goals need, found backwards from the goals."""

    def __init__(self, house: House, state: State, room: str) -> None:
        self._house, self._state = house, state
        self._index: dict[str, int] = {}
        self.deeds: list[_Deed] = []
        self.shortcuts: list[str] = []
        """Closed doors that can be bypassed."""
        self.complete = True
        for goal in house.goals:
            self._reach(goal)
        self._open_doors(room)
        self._put_keys_last()

    def _add(self, command: str, rooms: tuple[str, ...], after: set[int]) -> set[int]:
        if command not in self._index:
            self._index[command] = len(self.deeds)
            self.deeds.append(_Deed(command, rooms, after))
        return {self._index[command]}

    def _reach(self, goal: Goal) -> None:
        thing, kind = goal.thing, goal.kind
        if kind == "put":
            if self._state.where.get(thing) != goal.target:
                self._put(goal)
            return
        if self._state.where.get(thing) == EATEN:
            return
        after = self._take(thing)
        if kind == "cook" and thing not in self._state.cooked:
            self.complete &= KITCHEN in self._house.exits
            after = self._add(f"cook {thing}", (KITCHEN,), after)
        if kind in ("eat", "cook"):
            self._add(f"eat {thing}", (), after)

    def _put(self, goal: Goal) -> None:
        home = self._house.home.get(goal.target)
        if home is None:
            self.complete = False
            return
        after = self._take(goal.thing) | self._open(goal.target, (home,))
        self._add(f"put {goal.thing} {preposition(goal.target)} {goal.target}", (home,), after)

    def _take(self, thing: str) -> set[int]:
        place = self._state.where.get(thing)
        if place == HELD:
            return set()
        if place is None:
            self.complete = False
            return set()
        home = self._house.home.get(place, place)
        return self._add(f"take {thing}", (home,), self._open(place, (home,)))

    def _open(self, name: str, rooms: tuple[str, ...]) -> set[int]:
        if name not in self._state.closed:
            return set()
        after: set[int] = set()
        if name in self._state.locked:
            after = self._add(f"unlock {name}", rooms, self._take(key_of(name)))
        return self._add(f"open {name}", rooms, after)

    def _open_doors(self, start: str) -> None:
        """Add the doors with something needed behind them, which may be the key of another door."""
        closed_doors = {
            door: (room, there)
            for room, ways in self._house.exits.items()
            for there, door in ways.values()
            if door in self._state.closed
        }
        behind = {door: self._behind(door, start) for door in closed_doors}
        self.shortcuts = [door for door in closed_doors if not behind[door] and door not in self._state.locked]
        while True:
            needed = {deed.rooms[0] for deed in self.deeds if len(deed.rooms) == 1}
            needed_doors = [door for door in closed_doors if behind[door] & needed]
            if not needed_doors:
                return
            for door in needed_doors:
                self._open(door, closed_doors.pop(door))

    def _behind(self, door: str, start: str) -> set[str]:
        """Return the rooms that cannot be reached without a door."""
        exits = self._house.exits
        return exits.keys() - distances(
            start, lambda room: [to for to, between in exits[room].values() if between != door]
        )

    def _put_keys_last(self) -> None:
        """Order the placing of a key that is itself a goal after all its unlocking."""
        for goal in self._house.goals:
            uses = {
                i
                for i, deed in enumerate(self.deeds)
                if deed.command.startswith("unlock ") and key_of(deed.command.removeprefix("unlock ")) == goal.thing
            }
            if goal.kind == "put" and uses:
                self._put(goal)
                for deed in self.deeds:
                    if deed.command.startswith(f"put {goal.thing} "):
                        deed.after.update(uses)


_SEEN_GOAL = re.compile(r"^Goal: (.*)\.$", re.MULTILINE)
SEEN_ROOM = re.compile(r"^You are in the ([a-z]+)\.(.*) Exits: (.*)\. [0-9]+ turns? left\.$", re.MULTILINE)
_SEEN_SHUT = re.compile(r"The ([a-z ]+) is (closed|locked)\.")
_SEEN_THINGS = re.compile(r"(On|In) the ([a-z ]+): ([^.]*)\.")
_SEEN_EXIT = re.compile(r"(north|east|south|west)(?: \(([a-z ]+), (open|closed|locked)\))?")
_WANTED = re.compile(r"(hold|put|eat) the ([a-z ]+?)(?:( cooked)| (?:on|in) the ([a-z ]+))?")


class Explorer:
    """Policy that draws a map from its observations and plans on it."""

    def __init__(self) -> None:
        self._house = House({}, {}, {}, ())
        self._state = State({}, set(), set(), set())
        self._ways: dict[str, dict[str, str]] = {}
        """Doors by room and direction."""
        self._cells: dict[str, tuple[int, int]] = {}
        self._room = ""
        self._command = ""
        self._planned: list[str] = []

    def __call__(self, observation: str) -> str:
        """Return the next command."""
        if wanted := _SEEN_GOAL.search(observation):
            self._house = self._house._replace(goals=tuple(map(_read_goal, wanted[1].split("; "))))
        seen = SEEN_ROOM.search(observation)
        assert seen is not None, "a game that is not over shows the room"
        self._note_command(observation)
        self._note_room(*seen.groups())
        if not self._planned:
            self._planned = (shortest_plan(self._house, self._state, self._room) or [self._explore()])[::-1]
        self._command = self._planned.pop()
        return self._command

    def _note_command(self, observation: str) -> None:
        """Record the effect of a carried-out command that the room's description does not show."""
        verb, _, thing = self._command.partition(" ")
        if not observation.startswith(f"You {verb} "):
            self._command, self._planned = "", []
            return
        if verb in ("take", "eat"):
            self._state.where[thing] = HELD if verb == "take" else EATEN
        elif verb == "cook":
            self._state.cooked.add(thing)

    def _note_room(self, room: str, inside: str, exits: str) -> None:
        verb, _, way = self._command.partition(" ")
        x, y = self._cells.get(self._room, (0, 0))
        dx, dy = STEPS[way] if verb == "go" else (0, 0)
        self._cells[room] = (x + dx, y + dy)
        self._room = room
        house, state = self._house, self._state
        pieces = []
        for piece, condition in _SEEN_SHUT.findall(inside):
            pieces.append(piece)
            self._note_condition(piece, condition)
        for where, place, things in _SEEN_THINGS.findall(inside):
            if place != "floor":
                pieces.append(place)
            if where == "In":
                self._note_condition(place, "open")
            for thing in things.split(", ") if things != "nothing" else []:
                state.where[thing.removesuffix(" (cooked)")] = room if place == "floor" else place
        house.furniture[room] = pieces
        house.home.update(dict.fromkeys(pieces, room))
        self._ways[room] = {}
        for way, door, condition in _SEEN_EXIT.findall(exits):
            self._ways[room][way] = door
            if door:
                self._note_condition(door, condition)
        self._join_rooms(room)

    def _note_condition(self, name: str, condition: str) -> None:
        for marked, conditions in ((self._state.closed, ("closed", "locked")), (self._state.locked, ("locked",))):
            (marked.add if condition in conditions else marked.discard)(name)

    def _join_rooms(self, room: str) -> None:
        """Connect an exit to a known neighbouring room, since rooms lie on a grid."""
        at = {cell: name for name, cell in self._cells.items()}
        x, y = self._cells[room]
        self._house.exits.setdefault(room, {})
        for way, door in self._ways[room].items():
            there = at.get((x + STEPS[way][0], y + STEPS[way][1]))
            if there is not None:
                self._house.exits[room][way] = (there, door)
                self._house.exits.setdefault(there, {})[BACK[way]] = (room, door)

    def _explore(self) -> str:
        """Return a useful command here, or the first one on the way to the nearest unknown place."""
        if useful := self._do_here():
            return useful
        first: dict[str, str] = {self._room: ""}
        rooms = [self._room]
        for room in rooms:
            if command := self._uncover(room):
                return first[room] or command
            for way, (there, door) in self._house.exits[room].items():
                if there not in first and door not in self._state.locked:
                    go = f"open {door}" if door in self._state.closed else f"go {way}"
                    first[there] = first[room] or go
                    rooms.append(there)
        raise AssertionError("a house in which everything is known can be solved")

    def _do_here(self) -> str | None:
        """Take keys and things that the goals need, and reach goals on the way."""
        state, house = self._state, self._house
        wanted = {goal.thing for goal in house.goals if state.where.get(goal.thing) != goal.target}
        here = {self._room, *(piece for piece in house.furniture[self._room] if piece not in state.closed)}
        for thing, where in state.where.items():
            if where in here and (thing in wanted or (thing.endswith(" key") and not self._is_home(thing))):
                return f"take {thing}"
        for kind, thing, target in house.goals:
            if state.where.get(thing) != HELD or kind == "take":
                continue
            if kind == "cook" and thing not in state.cooked:
                if self._room == KITCHEN:
                    return f"cook {thing}"
            elif kind != "put":
                return f"eat {thing}"
            elif target in here and not thing.endswith(" key"):
                return f"put {thing} {preposition(target)} {target}"
        return None

    def _is_home(self, thing: str) -> bool:
        return any(goal.thing == thing and goal.target == self._state.where[thing] for goal in self._house.goals)

    def _uncover(self, room: str) -> str | None:
        """Return a command that reveals something new in a room."""
        for piece in self._house.furniture.get(room, []):
            if piece in self._state.closed and (command := self._unshut(piece)):
                return command
        for way, door in self._ways.get(room, {}).items():
            if way in self._house.exits[room]:
                continue
            if door not in self._state.closed:
                return f"go {way}"
            if command := self._unshut(door):
                return command
        return None

    def _unshut(self, name: str) -> str | None:
        if name not in self._state.locked:
            return f"open {name}"
        return f"unlock {name}" if self._state.where.get(key_of(name)) == HELD else None


def _read_goal(text: str) -> Goal:
    read = _WANTED.fullmatch(text)
    assert read is not None, "goals are written as they are read"
    verb, thing, cooked, target = read.groups()
    if verb == "put":
        return Goal("put", thing, target)
    return Goal("take" if verb == "hold" else "cook" if cooked else "eat", thing)

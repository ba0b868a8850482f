"""Houses of the text adventure: rooms, doors, furniture, things and goals, generated from a number."""

import random
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from gym_trl.envs.puzzle import each
from gym_trl.envs.search import distances

STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
KITCHEN = "kitchen"
_ROOMS = each(
    "attic balcony bathroom bedroom cellar chapel conservatory corridor garage garden hall laundry library lounge "
    "nursery pantry parlour porch studio study vault workshop"
)
_SUPPORTERS = each("bench bookcase counter desk dresser mantelpiece pedestal rack shelf stool table workbench")
_CONTAINERS = each("barrel basket box cabinet chest crate cupboard drawer hamper safe trunk wardrobe")
_THINGS = each(
    "anchor bell book bottle brush candle coin compass cup dice doll feather flute globe hammer kettle lamp ladder "
    "mask mirror needle pillow plate ribbon rope scarf spoon statue umbrella vase whistle"
)
_FOODS = each("apple carrot egg fish mushroom onion pepper potato sausage tomato turnip")
_MATERIALS = each("brass bronze copper glass golden iron ivory silver steel wooden")
_COLOURS = each("black blue green grey orange purple red white yellow")
FOOD = frozenset(_FOODS)
HELD = "you"
EATEN = ""
_KINDS: tuple[Literal["put", "take", "eat", "cook"], ...] = ("put", "take", "eat", "cook")
_WEIGHTS = (5, 2, 1, 2)


class Goal(NamedTuple):
    """Condition that an episode is played for.

    >>> str(Goal("put", "lamp", "oak chest"))
    'put the lamp in the oak chest'
    """

    kind: Literal["take", "put", "eat", "cook"]
    """Hold a thing, have it on or in ``target``, eat it, or eat it cooked."""
    thing: str
    target: str = ""

    def __str__(self) -> str:
        """Return the goal as a player reads it."""
        if self.kind == "put":
            return f"put the {self.thing} {preposition(self.target)} the {self.target}"
        if self.kind == "cook":
            return f"eat the {self.thing} cooked"
        return f"{'hold' if self.kind == 'take' else 'eat'} the {self.thing}"


class House(NamedTuple):
    """Fixed parts of a house. The solver builds its own from what it observes."""

    exits: dict[str, dict[str, tuple[str, str]]]
    """By room and direction: the adjacent room and the door between them, ``""`` if there is none."""
    furniture: dict[str, list[str]]
    """Pieces of furniture by room."""
    home: dict[str, str]
    """Room of each piece of furniture."""
    goals: tuple[Goal, ...]


class State(NamedTuple):
    """Changing state of a house, except for the player's room."""

    where: dict[str, str]
    """Location of each thing: a room, a piece of furniture, ``HELD`` or ``EATEN``."""
    closed: set[str]
    """Closed doors and containers, including the locked ones."""
    locked: set[str]
    cooked: set[str]

    def condition(self, name: str) -> str:
        """Return whether a door or container is locked, closed or open."""
        return "locked" if name in self.locked else "closed" if name in self.closed else "open"

    def shown(self, thing: str) -> str:
        """Return a thing as a player sees it."""
        return f"{thing} (cooked)" if thing in self.cooked else thing

    def lying(self) -> dict[str, list[str]]:
        """Return the things at each location."""
        things: dict[str, list[str]] = {}
        for thing, where in self.where.items():
            things.setdefault(where, []).append(self.shown(thing))
        return things


def is_container(piece: str) -> bool:
    """Return whether a piece of furniture is a container."""
    return piece.rpartition(" ")[2] in _CONTAINERS


def key_of(name: str) -> str:
    """Return the key of a lock, which is made of the same material."""
    return f"{name.partition(' ')[0]} key"


def preposition(piece: str) -> str:
    """Return the preposition between a thing and the piece of furniture that holds it."""
    return "in" if is_container(piece) else "on"


class Builder:
    """Builder of a solvable house: each key can be reached without the lock that it opens."""

    def __init__(self, instance: int, rooms: int, locks: int) -> None:
        self._rng = rng = random.Random(instance)
        names = [KITCHEN, *rng.sample(_ROOMS, rooms - 1)]
        rng.shuffle(names)
        self.start = names[0]
        cells, tree = _lay_out(rng, names)
        pieces = dict(zip(names, rng.sample(_SUPPORTERS + _CONTAINERS, rooms), strict=True))
        doors: dict[tuple[str, str], str] = {}
        self._locked: list[str] = []
        for material in rng.sample(_MATERIALS, locks):
            self._lock(material, tree, pieces, doors)
        ways = tree + _shortcuts(rng, cells, tree, doors)
        colours = rng.sample(_COLOURS, len(_COLOURS))
        for way in ways:
            if way not in doors and rng.random() < 0.2 and colours:
                doors[way] = f"{colours.pop()} door"
        self._closed = [
            *doors.values(),
            *(piece for piece in pieces.values() if is_container(piece) and rng.random() < 0.6),
        ]
        self._exits = _exits(cells, ways, doors)
        self._pieces = pieces
        self._home = {piece: room for room, piece in pieces.items()}
        self._where: dict[str, str] = {}

    def build(self, objects: int, goals: int) -> tuple[House, State, str]:
        """Return the house, its state and the starting room."""
        last = self._place_keys()
        wanted = tuple(self._place_things(last, objects, goals))
        furniture = {room: [piece] for room, piece in self._pieces.items()}
        house = House(self._exits, furniture, self._home, wanted)
        return house, State(self._where, {*self._closed, *self._locked}, set(self._locked), set()), self.start

    def _lock(
        self, material: str, tree: list[tuple[str, str]], pieces: dict[str, str], doors: dict[tuple[str, str], str]
    ) -> None:
        """Put a lock on a container or on a door between two rooms."""
        free = [way for way in tree if way not in doors]
        containers = [room for room, piece in pieces.items() if piece in _CONTAINERS]
        if containers and (not free or self._rng.random() < 0.5):
            room = self._rng.choice(containers)
            pieces[room] = name = f"{material} {pieces[room]}"
        else:
            doors[self._rng.choice(free)] = name = f"{material} door"
        self._locked.append(name)

    def _place_keys(self) -> list[str]:
        """Put each key where it can be reached without its lock; return the places that need the last key."""
        rng, left = self._rng, list(self._locked)
        before: list[str] = []
        places = self._places(left)
        while left:
            doors = {door for room in places if room in self._exits for _, door in self._exits[room].values()}
            lock = rng.choice([name for name in left if name in doors or self._home.get(name) in places])
            fresh = [place for place in places if place not in before]
            self._where[key_of(lock)] = rng.choice(fresh if fresh and rng.random() < 0.6 else places)
            left.remove(lock)
            before, places = places, self._places(left)
        return [place for place in places if place not in before]

    def _places(self, locked: list[str]) -> list[str]:
        """Return the floors and furniture that can be reached while the given locks stay locked."""
        rooms = distances(self.start, lambda at: [to for to, door in self._exits[at].values() if door not in locked])
        return [*rooms] + [piece for piece, room in self._home.items() if room in rooms and piece not in locked]

    def _place_things(self, last: list[str], objects: int, goals: int) -> Iterator[Goal]:
        """Place all other things, with the first goal's thing behind the last lock."""
        rng, where = self._rng, self._where
        foods, things = rng.sample(_FOODS, len(_FOODS)), rng.sample(_THINGS, len(_THINGS))
        keys, places = list(where), [*self._exits, *self._home]
        for number, kind in enumerate(rng.choices(_KINDS, _WEIGHTS, k=goals)):
            if kind == "put" and number and keys and rng.random() < 0.3:
                thing = keys.pop(rng.randrange(len(keys)))
            else:
                thing = (foods if kind in ("eat", "cook") or rng.random() < 0.2 else things).pop()
                where[thing] = rng.choice(places if number else last)
                objects -= 1
            yield Goal(kind, thing, self._target(thing) if kind == "put" else "")
        others = [*foods[: objects // 2], *things]
        for thing in rng.sample(others, objects):
            where[thing] = rng.choice(places)

    def _target(self, thing: str) -> str:
        """Return a piece of furniture that does not hold the thing already."""
        there = self._where[thing]
        pieces = [piece for piece in self._home if piece != there]
        if pieces:
            return self._rng.choice(pieces)
        self._where[thing] = self._home[there]
        return there


def _lay_out(rng: random.Random, names: list[str]) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str]]]:
    """Place rooms on a grid, each after the first beside an earlier one; return them and the connections."""
    cells = {names[0]: (0, 0)}
    taken = {(0, 0)}
    tree = []
    for name in names[1:]:
        while True:
            beside = rng.choice(names[: len(cells)])
            (x, y), (dx, dy) = cells[beside], rng.choice(list(STEPS.values()))
            if (x + dx, y + dy) not in taken:
                break
        cells[name] = (x + dx, y + dy)
        taken.add(cells[name])
        tree.append((beside, name))
    return cells, tree


def _shortcuts(
    rng: random.Random,
    cells: dict[str, tuple[int, int]],
    tree: list[tuple[str, str]],
    locked: Mapping[tuple[str, str], str],
) -> list[tuple[str, str]]:
    """Return additional connections between neighbours, none of which bypasses a locked door."""
    zone = {name: name for name in cells}
    for one, other in tree:  # ordered from the first room outwards
        zone[other] = zone[one] if (one, other) not in locked else other
    at = {cell: name for name, cell in cells.items()}
    shortcuts = []
    for name, (x, y) in cells.items():
        for beside in (at.get((x, y + 1)), at.get((x + 1, y))):
            if beside is None or zone[name] != zone[beside] or {(name, beside), (beside, name)} & set(tree):
                continue
            if rng.random() < 0.3:
                shortcuts.append((name, beside))
    return shortcuts


def _exits(
    cells: dict[str, tuple[int, int]], ways: list[tuple[str, str]], doors: Mapping[tuple[str, str], str]
) -> dict[str, dict[str, tuple[str, str]]]:
    exits: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in cells}
    for one, other in ways:
        (x, y), (to_x, to_y) = cells[one], cells[other]
        way = next(way for way, step in STEPS.items() if step == (to_x - x, to_y - y))
        door = doors.get((one, other), "")
        exits[one][way] = (other, door)
        exits[other][BACK[way]] = (one, door)
    return {name: {way: there[way] for way in STEPS if way in there} for name, there in exits.items()}

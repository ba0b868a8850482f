"""Text adventure in a house, with goals as in TextWorld (Côté et al. 2018)."""

import random
from typing import ClassVar, NamedTuple

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_KITCHEN, _HELD, _EATEN = "kitchen", "you", ""
_each = str.split
_ROOMS = _each(
    "attic balcony bathroom bedroom cellar chapel conservatory corridor garage garden hall laundry library lounge "
    "nursery pantry parlour porch studio study vault workshop"
)
_SUPPORTERS = _each("bench bookcase counter desk dresser mantelpiece pedestal rack shelf stool table workbench")
_CONTAINERS = _each("barrel basket box cabinet chest crate cupboard drawer hamper safe trunk wardrobe")
_THINGS = _each(
    "anchor bell book bottle brush candle coin compass cup dice doll feather flute globe hammer kettle lamp ladder "
    "mask mirror needle pillow plate ribbon rope scarf spoon statue umbrella vase whistle"
)
_FOODS = _each("apple carrot egg fish mushroom onion pepper potato sausage tomato turnip")
_MATERIALS = _each("brass bronze copper glass golden iron ivory silver steel wooden")
_COLOURS = _each("black blue green grey orange purple red white yellow")


class _Goal(NamedTuple):
    """Put a thing on or in ``target``, ``eat`` it, or eat it ``cooked``."""

    kind: str
    thing: str
    target: str

    def __str__(self) -> str:
        if self.kind == "put":
            return f"put the {self.thing} {_inside(self.target)} the {self.target}"
        return f"eat the {self.thing}{' cooked' if self.kind == 'cooked' else ''}"


class Adventure(TextGame):
    """Reach goals in a house that is observed one room at a time: find things, unlock doors, carry, cook and eat.

    >>> env = Adventure(difficulty="easy")
    >>> print(env.reset(options={"instance": 4})[0])
    Goal: eat the sausage.
    You are in the garden. The cabinet is closed. Exits: north, south. 20 turns left.
    Commands: go north; go south; open cabinet; inventory
    >>> env.step("go west")[0].splitlines()[0]
    'That cannot be done here.'

    The house depends on the instance alone: ``rooms`` on a grid, each with a piece of furniture that holds things,
    ``objects``, some of them food, and ``locks`` of doors, each with its key; other doors and containers may be closed.
    The game is won as soon as all ``goals`` hold at the same time, and lost when something is eaten that a goal needs.
    A command that cannot be carried out costs a turn. With ``listed=False`` the commands are not listed.

    The solver does what the goals need at the nearest place that it knows, and otherwise explores the nearest one that
    it does not know.
    """

    presets: ClassVar = {
        "easy": {"rooms": 3, "objects": 4, "locks": 0, "goals": 1, "turns": 20, "listed": True},
        "medium": {"rooms": 6, "objects": 8, "locks": 2, "goals": 2, "turns": 60, "listed": True},
        "hard": {"rooms": 10, "objects": 12, "locks": 3, "goals": 3, "turns": 120, "listed": False},
    }
    ranges: ClassVar = {"rooms": (1, 16), "objects": (1, 24), "locks": (0, 8), "goals": (1, 5)}
    num_instances = 2**32
    rooms: int
    objects: int
    locks: int
    goals: int
    listed: bool

    def prepare(self) -> None:
        """Check that there are enough rooms and things, look whether turns suffice, and write the rules."""
        if self.locks >= self.rooms:
            raise ConfigError(f"locks must be fewer than rooms, got locks={self.locks} and rooms={self.rooms}")
        if self.goals > self.objects:
            raise ConfigError(f"goals must not be more than objects, got goals={self.goals} and objects={self.objects}")
        # A walk through the tree of rooms and back uses each way twice. A walk to each lock, to the stove and to each
        # goal is no longer than there are ways. The rest is a command each: to open, to unlock, to take, cook and put.
        ways = self.rooms - 1
        enough = ways * (2 + self.locks + 1 + self.goals) + self.rooms + ways + 2 * self.locks + 3 * self.goals
        self.optimal_success = 1.0 if self.turns >= enough else None
        how = (
            "Answer with one of the commands that are listed, for example: inventory"
            if self.listed
            else "Answer with one command: go and a direction, or like: take hat; put hat on sofa; put hat in "
            "suitcase; open suitcase; unlock tin door; open tin door; cook soup; eat soup; inventory"
        )
        self.instructions = (
            "You are in a house whose rooms lie on a grid. Reach the goal that is stated at the start, all parts of it "
            f"at the same time, in {counted(self.turns, 'turn')}. You see only the room that you are in, and what lies "
            "in open containers there. A key unlocks the door that is made of its material. You can put, cook and eat "
            "what you hold; the stove to cook with is in the kitchen. If you eat something so that the goal cannot be "
            f"reached any more, you lose. Anything that cannot be carried out costs a turn. {how}"
        )

    def deal(self) -> None:
        """Build the house: a tree of rooms, in which each key lies in a room that is built before its lock's."""
        rng = random.Random(self.instance)
        names = [_KITCHEN, *rng.sample(_ROOMS, self.rooms - 1)]
        rng.shuffle(names)
        self.room, self.cooked, self.explored = names[0], set[str](), {names[0]}
        self.furniture = dict(zip(names, rng.sample(_SUPPORTERS + _CONTAINERS, self.rooms), strict=True))
        closed = [piece for piece in self.furniture.values() if piece in _CONTAINERS and rng.random() < 0.6]
        self.condition = dict.fromkeys(closed, "closed")
        """Condition of the doors and containers that are not open."""
        self.where: dict[str, str] = {}
        """Place of each thing: a room, a piece of furniture, or the player."""
        exits: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in names}
        locked = dict(zip(rng.sample(names[1:], self.locks), rng.sample(_MATERIALS, self.locks), strict=True))
        colours = rng.sample(_COLOURS, len(_COLOURS))
        at = {(0, 0): names[0]}
        for number, name in enumerate(names[1:], 1):
            sides = [(x, y, way) for x, y in at for way, (dx, dy) in _STEPS.items() if (x + dx, y + dy) not in at]
            x, y, way = rng.choice(sides)
            at[x + _STEPS[way][0], y + _STEPS[way][1]] = name
            door = ""
            if name in locked:
                door = f"{locked[name]} door"
                self.condition[door] = "locked"
                self.where[_key_of(door)] = rng.choice(self._places(names[:number]))
            elif rng.random() < 0.2 and colours:
                door = f"{colours.pop()} door"
                self.condition[door] = "closed"
            exits[at[x, y]][way], exits[name][_BACK[way]] = (name, door), (at[x, y], door)
        self.exits = {name: {way: ways[way] for way in _STEPS if way in ways} for name, ways in exits.items()}
        """By room and direction: the next room and the door, ``""`` if there is none."""
        self.wanted: list[_Goal] = []
        last = [name for name in names if name in locked][-1:] or names  # where the first goal's thing is
        foods, things = rng.sample(_FOODS, len(_FOODS)), rng.sample(_THINGS, len(_THINGS))
        for kind in rng.choices(("put", "eat", "cooked"), (5, 1, 2), k=self.goals):
            thing = (foods if kind != "put" or rng.random() < 0.2 else things).pop()
            target = rng.choice([*self.furniture.values()]) if kind == "put" else ""
            places = self._places(names if self.wanted else last)
            self.where[thing] = rng.choice([place for place in places if place != target])
            self.wanted.append(_Goal(kind, thing, target))
        for thing in rng.sample([*foods[: self.objects // 2], *things], self.objects - self.goals):
            self.where[thing] = rng.choice(self._places(names))

    def _places(self, rooms: list[str]) -> list[str]:
        return [place for room in rooms for place in (room, self.furniture[room])]

    def show(self) -> str:
        """Return the room, the turns left and, if they are listed, the commands; at the start the goals."""
        goal = [f"Goal: {'; '.join(map(str, self.wanted))}."] if self.turns_left == self.turns else []
        commands = [f"Commands: {'; '.join(self._orders(self.room))}"] if self.listed else []
        return "\n".join([*goal, f"{self.look()} {counted(self.turns_left, 'turn')} left.", *commands])

    def look(self) -> str:
        """Return what is seen in the room."""
        piece = self.furniture[self.room]
        parts = [f"You are in the {self.room}.", *(["A stove is here."] if self.room == _KITCHEN else [])]
        if piece in self.condition:
            parts.append(f"The {piece} is closed.")
        else:
            parts.append(f"{_inside(piece).capitalize()} the {piece}: {self._listed_at(piece)}.")
        if self._at(self.room):
            parts.append(f"On the floor: {self._listed_at(self.room)}.")
        ways = [
            f"{way} ({door}, {self.condition.get(door, 'open')})" if door else way
            for way, (_, door) in self.exits[self.room].items()
        ]
        return " ".join([*parts, f"Exits: {', '.join(ways) or 'none'}."])

    def _at(self, *places: str) -> list[str]:
        return [thing for thing, where in self.where.items() if where in places]

    def _listed_at(self, place: str) -> str:
        things = [f"{thing} (cooked)" if thing in self.cooked else thing for thing in self._at(place)]
        return ", ".join(things) or "nothing"

    def _open_in(self, room: str) -> list[str]:
        """Return the piece of furniture of a room if things can be put there."""
        return [self.furniture[room]] if self.furniture[room] not in self.condition else []

    def _orders(self, room: str) -> dict[str, tuple[str, str]]:
        """Return what can be done in a room as it was seen, by its command: a verb and its object."""
        ways, held = self.exits[room], self._at(_HELD)
        orders = {f"go {way}": ("go", way) for way, (_, door) in ways.items() if door not in self.condition}
        for name in (*(door for _, door in ways.values()), self.furniture[room]):
            if self.condition.get(name) == "closed":
                orders[f"open {name}"] = ("open", name)
            elif name in self.condition and _key_of(name) in held:
                orders[f"unlock {name}"] = ("unlock", name)
        orders |= {f"take {thing}": ("take", thing) for thing in self._at(room, *self._open_in(room))}
        for thing in held:
            orders |= {f"put {thing} {_inside(piece)} {piece}": ("put", thing) for piece in self._open_in(room)}
            if thing in _FOODS:
                orders[f"eat {thing}"] = ("eat", thing)
                if room == _KITCHEN and thing not in self.cooked:
                    orders[f"cook {thing}"] = ("cook", thing)
        return orders | {"inventory": ("inventory", "")}

    def legal(self) -> list[str] | None:
        """Return the commands that can be carried out, if they are listed."""
        return list(self._orders(self.room)) if self.listed else None

    def guess(self, rng: random.Random) -> str:
        """Return a command that can be carried out."""
        return rng.choice(list(self._orders(self.room)))

    def play(self, action: str) -> Step:
        """Carry out a command."""
        command = " ".join(action.lower().split()) if action.isascii() else ""
        verb, name = self._orders(self.room).get(command, ("", ""))
        message = f"You {verb} the {name}."
        match verb:
            case "":
                return self.reject("That cannot be done here.")
            case "inventory":
                message = f"You hold: {self._listed_at(_HELD)}."
            case "go":
                message, self.room = f"You go {name}.", self.exits[self.room][name][0]
                self.explored.add(self.room)
            case "unlock":
                self.condition[name] = "closed"
            case "open":
                del self.condition[name]
            case "cook":
                self.cooked.add(name)
            case _:
                self.where[name] = {"take": _HELD, "put": self.furniture[self.room], "eat": _EATEN}[verb]
        if all(map(self._is_reached, self.wanted)):
            return Step(f"{message} You have reached the goal.", done=True, success=True)
        if any(self.where[goal.thing] == _EATEN and not self._is_reached(goal) for goal in self.wanted):
            return Step(f"{message} The goal cannot be reached any more.", done=True)
        return self.turn(message)

    def _is_reached(self, goal: _Goal) -> bool:
        is_ready = goal.kind != "cooked" or goal.thing in self.cooked
        return is_ready and self.where[goal.thing] == goal.target  # what is eaten is at no place

    def solve(self) -> str:
        """Do what the goals need at the nearest known place; else explore the nearest unknown one."""
        first = {self.room: ""}
        for room in (rooms := [self.room]):  # from near to far, with the first command on the way
            for way, (there, _) in self.exits[room].items():
                if there in self.explored and there not in first:
                    first[there] = first[room] or f"go {way}"
                    rooms.append(there)
        for use in (2, 1):
            for room in rooms:
                orders = sorted(self._orders(room).items(), key=lambda order: order[1][0] == "go")  # after all others
                for command, (verb, name) in orders:
                    if self._use_of(room, command, verb, name) == use:
                        return first[room] or command
        return "inventory"

    def _use_of(self, room: str, command: str, verb: str, name: str) -> int:
        """Return 2 for a command that takes a key or does what a goal needs, and 1 for one that shows something new."""
        goal = next((goal for goal in self.wanted if goal.thing == name and not self._is_reached(goal)), None)
        if goal is None:
            is_new = verb in ("open", "unlock") or (verb == "go" and self.exits[room][name][0] not in self.explored)
            return 2 if verb == "take" and name.endswith(" key") else int(is_new)
        is_ready = goal.kind == "eat" or (goal.kind == "cooked" and name in self.cooked)
        helps = {"put": command.endswith(f" {goal.target}"), "cook": goal.kind == "cooked", "eat": is_ready}
        return 2 if helps.get(verb, True) else 0

    def state(self) -> tuple[object, ...]:
        """Return where the player and all things are, what is closed or cooked, and what was seen."""
        marks = tuple(sorted(self.cooked)), tuple(sorted(self.explored))
        return self.room, tuple(self.where.items()), tuple(self.condition.items()), *marks


def _inside(piece: str) -> str:
    return "in" if piece in _CONTAINERS else "on"


def _key_of(door: str) -> str:
    return f"{door.partition(' ')[0]} key"

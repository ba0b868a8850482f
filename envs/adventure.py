"""Text adventure in a house of rooms, doors, furniture and objects, with goals as in TextWorld (Côté et al. 2018)."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from gym_trl.envs.puzzle import Puzzle, each
from gym_trl.envs.search import distances, path, rings
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text.textify import counted
from gym_trl.types import Policy

_STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}

_KITCHEN = "kitchen"


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
_FOOD = frozenset(_FOODS)

_HELD = "you"
_EATEN = ""

_KINDS: tuple[Literal["put", "take", "eat", "cook"], ...] = ("put", "take", "eat", "cook")
_WEIGHTS = (5, 2, 1, 2)


class _Goal(NamedTuple):
    kind: Literal["take", "put", "eat", "cook"]
    """Hold a thing, have it on or in ``target``, eat it, or eat it cooked."""
    thing: str
    target: str = ""


class _House(NamedTuple):
    """Fixed parts of a house. The solver builds its own from what it observes."""

    exits: dict[str, dict[str, tuple[str, str]]]
    """By room and direction: the adjacent room and the door between them, ``""`` if there is none."""
    furniture: dict[str, list[str]]
    """Pieces of furniture by room."""
    home: dict[str, str]
    """Room of each piece of furniture."""
    goals: tuple[_Goal, ...]


class _State(NamedTuple):
    """Changing state of a house, except for the player's room."""

    where: dict[str, str]
    """Location of each thing: a room, a piece of furniture, ``_HELD`` or ``_EATEN``."""
    closed: set[str]
    """Closed doors and containers, including the locked ones."""
    locked: set[str]
    cooked: set[str]


class _Order(NamedTuple):
    verb: str
    thing: str = ""
    target: str = ""


class Adventure(Puzzle):
    """Reach goals in a house that is observed one room at a time: find things, unlock, carry, cook and eat.

    >>> env = Adventure(difficulty="easy")
    >>> print(env.reset(options={"instance": 4})[0])
    Goal: eat the sausage.
    You are in the garden. On the bench: nothing. Exits: north, east. 20 turns left.
    Commands: go north; go east; inventory
    >>> print(env.step("go north")[0])  # doctest: +NORMALIZE_WHITESPACE
    You go north.
    You are in the kitchen. A stove is here. In the crate: vase, pillow. On the floor: sausage. Exits: south.
    19 turns left.
    Commands: go south; close crate; take sausage; take vase; take pillow; inventory
    >>> env.step("take sausage")[1:4], env.step("eat sausage")[1:4]
    ((0.0, False, False), (1.0, True, False))

    The house is generated from the instance number alone. It has ``rooms`` rooms on a grid, each with one piece of
    furniture that holds things, ``objects`` things, some of them food, ``locks`` locked doors and containers, each with
    its key, and closed but unlocked doors and containers. A key opens the lock of the same material: the brass key
    opens the brass door. Food is cooked at the stove in the kitchen. There is no limit on the things carried. There are
    ``goals`` goals: to hold a thing, to put it on or in some furniture, to eat it, or to eat it cooked. The game is won
    as soon as all goals hold at the same time. It is lost when something is eaten that a goal needs uneaten, and when
    the ``turns`` are used up. A command that cannot be carried out costs a turn and changes nothing.

    With ``commands="listed"`` each observation ends with all commands that can be carried out, and no other is
    accepted. With ``commands="free"`` none are listed, and plain phrases are accepted: "pick up the lamp", "n", "unlock
    the brass door with the brass key". Things that do not exist and things that cannot be seen are rejected with the
    same message.

    The shortest plan with full knowledge of the house is found by a breadth-first search; ``reward="efficient"``
    compares with it, and ``"shaped"`` pays for each command by which it becomes shorter. The solver does not have this
    knowledge: it explores the nearest unknown place until it can plan. Instances 0 to 1999:

    ========== ================ =============== ====================== ==============
    difficulty solver's success its mean (most) shortest mean (most)   random success
    ========== ================ =============== ====================== ==============
    easy       1.0              4.9 (11)        4.1 (9)                0.18
    medium     1.0              21.3 (33)       17.7 (28)              0.000
    hard       1.0              37.4 (57)       28.7 (47)              0.000
    ========== ================ =============== ====================== ==============

    The tests compare the plans with an exhaustive search, and the numbers with those of fewer instances (``pytest -m
    nightly``: all 2000). ``optimal_success`` derives a bound on the turns that suffice to explore everything.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"rooms": 3, "objects": 4, "locks": 0, "goals": 1, "turns": 20, "commands": "listed"},
        "medium": {"rooms": 6, "objects": 8, "locks": 2, "goals": 2, "turns": 60, "commands": "listed"},
        "hard": {"rooms": 10, "objects": 12, "locks": 3, "goals": 3, "turns": 120, "commands": "free"},
    }
    ranges: ClassVar = {"rooms": (1, 16), "objects": (1, 24), "locks": (0, 8), "goals": (1, 5), "turns": (1, None)}
    ranges |= {"commands": ("listed", "free")}
    reward_modes = ("success", "efficient", "shaped")
    garbage = "take north"
    constant_action = "inventory"
    num_instances = 2**32

    rooms: int
    objects: int
    locks: int
    goals: int
    commands: Literal["listed", "free"]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._instance = 0
        self._shortest: int | None = None
        self._build()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.locks >= self.rooms:
            raise ConfigError(f"locks must be fewer than rooms, got locks={self.locks} and rooms={self.rooms}")
        if self.goals > self.objects:
            raise ConfigError(f"goals must not be more than objects, got goals={self.goals} and objects={self.objects}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example has no effect or names things that no house has."""
        how = (
            "Answer with one of the commands that are listed, for example: inventory"
            if self.commands == "listed"
            else "Answer with one command in plain words: go and a direction, or like: take hat; drop hat; put hat on "
            "sofa; open suitcase; close suitcase; unlock tin door; cook soup; eat soup; inventory"
        )
        return (
            "You are in a house whose rooms lie on a grid. Reach the goal that is stated at the start, all parts of it "
            f"at the same time, in {self.turns} turns. You see only the room that you are in, and what lies in open "
            "containers there. A key opens what is made of its material: a tin key opens a tin door. You can put, cook "
            "and eat what you hold; the stove to cook with is in the kitchen. If you eat something so that the goal "
            f"cannot be reached any more, you lose. Anything that cannot be carried out costs a turn. {how}"
        )

    @property
    def optimal_success(self) -> float | None:
        """1.0 if the turns suffice to explore everything, otherwise ``None``."""
        return 1.0 if self.turns >= self._enough_turns() else None

    @property
    def optimal_return(self) -> float | None:
        """``optimal_success``, except that the optimum of ``"efficient"`` is known for a single room only."""
        return None if self.reward == "efficient" and self.rooms > 1 else self.optimal_success

    def admissible_actions(self) -> Sequence[str] | None:
        """Commands that can be carried out; ``None`` for free commands, which have many wordings each."""
        return list(self._orders()) if self.commands == "listed" else None

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that gives any command that can be carried out, in its listed wording."""
        rng = random.Random(seed)
        return lambda observation: rng.choice(list(self._orders()))

    def solver(self) -> Policy:
        """Return a policy that explores the nearest unknown until it can plan, then takes the shortest way."""
        return Steady(_Explorer(), _SEEN_ROOM.search)

    def shortest_plan(self) -> list[str]:
        """Return the fewest commands that win from here, given full knowledge of the house."""
        plan = _plan(self._house, self._state, self._room)
        assert plan is not None, "every house can be solved, and no command makes it unsolvable"
        return plan

    def _enough_turns(self) -> int:
        """Return a number of turns that suffices to walk through all rooms and try keys and goals as they are found.

        A walk through a tree of rooms and back uses each way twice. A walk to each lock, to the stove and to the place
        of each goal is no longer than there are ways. The rest is one command each: to open containers and doors, to
        take keys and the things of the goals, to unlock, to cook, and to put or eat.
        """
        ways = self.rooms - 1
        walks = ways * (2 + self.locks + 1 + self.goals)
        return walks + self.rooms + ways + 2 * self.locks + 3 * self.goals

    def _build(self) -> None:
        self._possible: dict[str, _Order] = {}
        self._house, self._state, self._room = self._built()
        self._explored = {self._room}  # rooms and containers whose contents the player was shown

    def _built(self) -> tuple[_House, _State, str]:
        return _Builder(self._instance, self.rooms, self.locks).build(self.objects, self.goals)

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        observation = super()._start(instance, options)
        return f"Goal: {'; '.join(map(_describe_goal, self._house.goals))}.\n{observation}"

    def _deal(self, instance: int | None) -> None:
        self._instance = instance or 0
        self._shortest = None
        self._build()
        if self.reward == "shaped":
            self._fewest_actions()

    def _act(self, action: str) -> Outcome:
        read = self._read(action)
        return self._reject(read) if isinstance(read, str) else self._end_turn(self._carry_out(read))

    def _end_turn(self, message: str = "", *, valid: bool = True, done: bool = False) -> Outcome:
        self._turns_left -= 1
        if valid and self._is_solved():
            return Outcome(f"{message} You have reached the goal.", done=True, success=True)
        if valid and any(self._spoilt(goal) for goal in self._house.goals):
            return Outcome(f"{message} The goal cannot be reached any more.", done=True)
        if self._turns_left == 0:
            return Outcome(f"{message} No turns left.", done=True, valid=valid)
        return Outcome(f"{message}\n{self._observe()}", valid=valid)

    def _snapshot(self) -> tuple[Any, ...]:
        where, *marked = self._state
        return self._room, *where.items(), *(tuple(sorted(names)) for names in (*marked, self._explored))

    def _is_solved(self) -> bool:
        return all(self._reached(goal) for goal in self._house.goals)

    def _reached(self, goal: _Goal) -> bool:
        where = self._state.where[goal.thing]
        if goal.kind == "put":
            return where == goal.target
        if goal.kind == "take":
            return where == _HELD
        return where == _EATEN and (goal.kind == "eat" or goal.thing in self._state.cooked)

    def _spoilt(self, goal: _Goal) -> bool:
        return self._state.where[goal.thing] == _EATEN and not self._reached(goal)

    def _fewest_actions(self) -> float:
        """Return the length of the shortest plan with full knowledge of the house; exploring takes longer."""
        if self._shortest is None:
            plan = _plan(*self._built())
            assert plan, "every house can be solved, and none is from the start"
            self._shortest = len(plan)
        return self._shortest

    def _potential(self) -> float:
        """Return the share of the shortest plan's commands that are no longer needed, at least 0."""
        return max(0.0, 1.0 - len(self.shortest_plan()) / self._fewest_actions())

    # Observation

    def _observe(self) -> str:
        house, state, room = self._house, self._state, self._room
        lying = _lying(state)
        parts = [f"You are in the {room}."]
        if room == _KITCHEN:
            parts.append("A stove is here.")
        for piece in house.furniture[room]:
            if piece in state.closed:
                parts.append(f"The {piece} is {'locked' if piece in state.locked else 'closed'}.")
            else:
                parts.append(
                    f"{_preposition(piece).capitalize()} the {piece}: {', '.join(lying.get(piece, ['nothing']))}."
                )
        if room in lying:
            parts.append(f"On the floor: {', '.join(lying[room])}.")
        ways = [
            f"{way} ({door}, {_condition(door, state)})" if door else way
            for way, (_, door) in self._house.exits[self._room].items()
        ]
        parts.append(f"Exits: {', '.join(ways) or 'none'}.")
        parts.append(f"{counted(self._turns_left, 'turn')} left.")
        if self.commands == "listed":
            parts.append(f"\nCommands: {'; '.join(self._orders())}")
        return " ".join(parts).replace(" \n", "\n")

    def _openable(self) -> list[str]:
        """Return the doors and containers in this room."""
        doors = [door for _, door in self._house.exits[self._room].values() if door]
        return doors + [piece for piece in self._house.furniture[self._room] if _holds(piece)]

    def _in_reach(self) -> list[str]:
        """Return the things in this room that are not held: on the floor, on furniture or in open containers."""
        house, state, room = self._house, self._state, self._room
        places = {room, *(piece for piece in house.furniture[room] if piece not in state.closed)}
        return [thing for thing, where in state.where.items() if where in places]

    def _held(self) -> list[str]:
        return [thing for thing, where in self._state.where.items() if where == _HELD]

    # Orders

    def _orders(self) -> dict[str, _Order]:
        """Return everything that can be carried out now, by its command."""
        if not self._possible:
            self._possible = {self._say(order): order for order in self._list_orders()}
        return self._possible

    def _list_orders(self) -> list[_Order]:
        state, house, held = self._state, self._house, self._held()
        orders = [
            _Order("go", way) for way, (_, door) in self._house.exits[self._room].items() if door not in state.closed
        ]
        for name in self._openable():
            if name not in state.closed:
                orders.append(_Order("close", name))
            elif name not in state.locked:
                orders.append(_Order("open", name))
            elif _key(name) in held:
                orders.append(_Order("unlock", name))
        orders += [_Order("take", thing) for thing in self._in_reach()]
        open_here = [piece for piece in house.furniture[self._room] if piece not in state.closed]
        for thing in held:
            orders.append(_Order("drop", thing))
            orders += [_Order("put", thing, piece) for piece in open_here]
            if thing in _FOOD:
                if self._room == _KITCHEN and thing not in state.cooked:
                    orders.append(_Order("cook", thing))
                orders.append(_Order("eat", thing))
        orders.append(_Order("inventory"))
        return orders

    def _say(self, order: _Order) -> str:
        if order.verb == "put":
            return f"put {order.thing} {_preposition(order.target)} {order.target}"
        return f"{order.verb} {order.thing}" if order.thing else order.verb

    def _carry_out(self, order: _Order) -> str:
        """Carry out an order and return its description."""
        house, state, (verb, thing, target) = self._house, self._state, order
        self._possible = {}
        places = {"take": _HELD, "drop": self._room, "put": target, "eat": _EATEN}
        marks = {"open": state.closed.discard, "close": state.closed.add, "unlock": state.locked.discard}
        if verb in places:
            state.where[thing] = places[verb]
        elif verb in marks:
            marks[verb](thing)
            if verb == "open":
                self._explored.add(thing)
        elif verb == "cook":
            state.cooked.add(thing)
        elif verb == "go":
            self._room = house.exits[self._room][thing][0]
            self._explored.add(self._room)
            return f"You go {thing}."
        elif verb == "inventory":
            held = [_with_state(name, state) for name in self._held()]
            return f"You hold: {', '.join(held) or 'nothing'}."
        elif verb == "look":
            return self._look_at(thing)
        if verb == "put":
            return f"You put the {thing} {_preposition(target)} the {target}."
        return f"You {verb} the {thing}."

    def _look_at(self, thing: str) -> str:
        if not thing:
            return "You look around."
        if thing in self._openable():
            return f"The {thing} is {_condition(thing, self._state)}."
        return f"There is nothing special about the {thing}."

    # Parsing

    def _read(self, action: str) -> _Order | str:
        """Return the order that an action names, or the reason why it cannot be carried out."""
        if self.commands == "listed":
            said = " ".join(action.lower().split()) if action.isascii() else ""
            return self._orders().get(said) or "This is not one of the commands."
        words = _words(action)
        if not words:
            return "Say what to do in a few plain words."
        verb, rest = _verb(words)
        if verb == "inventory":
            return _Order("inventory") if not rest else "Say inventory and nothing else."
        if verb == "go":
            return self._read_way(rest)
        if verb in _READERS:
            return self._read_about(verb, rest)
        return f"The verbs are: {', '.join(_READERS)}, go, inventory."

    def _read_way(self, words: list[str]) -> _Order | str:
        words = [word for word in words if word not in ("to", "through")]
        way = _WAYS.get(" ".join(words))
        if way is None:
            way = next(
                (way for way, (_, door) in self._house.exits[self._room].items() if door and door.split() == words),
                None,
            )
        if way is None:
            return "Go where? North, east, south or west."
        exit_here = self._house.exits[self._room].get(way)
        if exit_here is None:
            return f"There is no exit to the {way}."
        door = exit_here[1]
        return f"The {door} is {_condition(door, self._state)}." if door in self._state.closed else _Order("go", way)

    def _read_about(self, verb: str, words: list[str]) -> _Order | str:
        """Read a verb with a thing, and perhaps with a second thing after a preposition."""
        at = next((i for i, word in enumerate(words) if word in _PREPOSITIONS and i > 0), len(words))
        first, second = words[:at], [word for word in words[at:] if word not in _PREPOSITIONS]
        if not first:
            return _Order("look") if verb == "look" else f"{verb.capitalize()} what?"
        thing, unclear = self._find(first)
        if unclear:
            return unclear
        if verb in ("put", "drop") and second:
            verb = "drop" if second == ["floor"] else "put"
            second = second if verb == "put" else []
        if verb == "put" and not second:
            return f"Put the {thing} where?"
        target, unclear = self._find(second) if second else ("", "")
        return unclear or self._check(verb, thing, target) or _Order(verb, thing, target if verb == "put" else "")

    def _find(self, words: list[str]) -> tuple[str, str]:
        """Return the one thing in this room that these words name, and the reason if none does."""
        room = self._room
        here = [*self._openable(), *self._house.furniture[room], *self._in_reach(), *self._held()]
        here += ["stove"] if room == _KITCHEN else []
        if len(words) > 1 and words[0] in ("cooked", "raw"):
            words = words[1:]
        exact = [name for name in here if name.split() == words]
        found = list(dict.fromkeys(exact or [name for name in here if name.split()[-len(words) :] == words]))
        if len(found) > 1:
            return "", f"Which one: {', '.join(found)}?"
        return (found[0], "") if found else ("", f"You see no {' '.join(words)[:40]} here.")

    def _check(self, verb: str, thing: str, target: str) -> str | None:
        """Return the reason, if any, why an order cannot be carried out; it reveals only what can be seen here."""
        if verb == "take":
            return self._check_taken(thing, target)
        if verb in ("open", "close", "unlock"):
            return self._check_openable(verb, thing, target)
        if verb == "look":
            return "Name one thing only." if target else None
        if self._state.where.get(thing) != _HELD:
            return f"You do not hold the {thing}."
        return self._check_food(verb, thing, target) if verb in ("cook", "eat") else self._check_place(target)

    def _check_taken(self, thing: str, target: str) -> str | None:
        place = self._state.where.get(thing)
        if place is None:
            return f"The {thing} cannot be taken."
        if place == _HELD:
            return f"You hold the {thing} already."
        return f"The {thing} is not there." if target not in ("", place) else None

    def _check_place(self, target: str) -> str | None:
        if target and target not in self._house.home:
            return f"Nothing can be put there: {target}."
        return f"The {target} is {_condition(target, self._state)}." if target in self._state.closed else None

    def _check_openable(self, verb: str, name: str, key: str) -> str | None:
        state = self._state
        if name not in self._openable():
            return f"The {name} cannot be opened or closed."
        condition = _condition(name, state)
        if key and (verb == "close" or key != _key(name)):
            return f"The {key} does not help."
        if verb == "close":
            return None if condition == "open" else f"The {name} is {condition} already."
        if verb == "open":
            return None if condition == "closed" else f"The {name} is {condition}."
        if condition != "locked":
            return f"The {name} is not locked."
        return None if state.where.get(_key(name)) == _HELD else f"You need the {_key(name)}."

    def _check_food(self, verb: str, thing: str, tool: str) -> str | None:
        if thing not in _FOOD:
            return f"The {thing} is no food."
        if tool and (verb == "eat" or tool != "stove"):
            return f"The {tool} does not help."
        if verb == "eat":
            return None
        if self._room != _KITCHEN:
            return "There is no stove here."
        return f"The {thing} is cooked already." if thing in self._state.cooked else None


_PLAIN = re.compile(r"[A-Za-z ,\t\r\n]{1,120}[.!]?\s*")
_SKIPPED = frozenset(("the", "a", "an", "my", "some", "please", "then"))
_PREPOSITIONS = frozenset(
    ("on", "onto", "in", "into", "inside", "from", "off", "out", "of", "with", "using", "at", "to")
)
_READERS = ("take", "drop", "put", "open", "close", "unlock", "cook", "eat", "look")
_WAYS = {**{way: way for way in _STEPS}, **{way[0]: way for way in _STEPS}}
_SYNONYMS = {
    "go": ("go", "walk", "run", "move", "head", "enter"),
    "take": ("take", "get", "grab", "collect", "pick up", "pick"),
    "drop": ("drop", "put down", "leave", "discard"),
    "put": ("put", "place", "set", "insert", "lay"),
    "open": ("open",),
    "close": ("close", "shut"),
    "unlock": ("unlock",),
    "cook": ("cook", "roast", "fry", "bake", "boil", "heat"),
    "eat": ("eat", "consume", "swallow"),
    "look": ("look", "l", "look around", "look at", "look in", "look inside", "examine", "x", "inspect", "read"),
    "inventory": ("inventory", "i", "inv", "check inventory", "take inventory", "look at inventory"),
}
_VERBS = {tuple(phrase.split()): verb for verb, phrases in _SYNONYMS.items() for phrase in phrases}


def _words(action: str) -> list[str]:
    """Return the significant words, or none if the action is not made of plain words."""
    if not _PLAIN.fullmatch(action):
        return []
    return [word for word in re.findall("[a-z]+", action.lower()) if word not in _SKIPPED]


def _verb(words: list[str]) -> tuple[str, list[str]]:
    """Return the verb in the wording of the rules, and the words after it."""
    if words[-1:] in (["up"], ["down"]) and len(words) > 2 and words[0] in ("pick", "put"):
        words = [words[0], words[-1], *words[1:-1]]
    if " ".join(words) in _WAYS:
        return "go", words
    for length in (3, 2, 1):
        verb = _VERBS.get(tuple(words[:length]))
        if verb is not None:
            return verb, words[length:]
    return "", words


def _describe_goal(goal: _Goal) -> str:
    if goal.kind == "put":
        return f"put the {goal.thing} {_preposition(goal.target)} the {goal.target}"
    if goal.kind == "cook":
        return f"eat the {goal.thing} cooked"
    return f"{'hold' if goal.kind == 'take' else 'eat'} the {goal.thing}"


def _holds(piece: str) -> bool:
    """Return whether a piece of furniture is a container."""
    return piece.rpartition(" ")[2] in _CONTAINERS


def _key(name: str) -> str:
    return f"{name.partition(' ')[0]} key"


def _preposition(piece: str) -> str:
    return "in" if _holds(piece) else "on"


def _condition(name: str, state: _State) -> str:
    return "locked" if name in state.locked else "closed" if name in state.closed else "open"


def _with_state(thing: str, state: _State) -> str:
    return f"{thing} (cooked)" if thing in state.cooked else thing


def _lying(state: _State) -> dict[str, list[str]]:
    """Return the things at each location."""
    found: dict[str, list[str]] = {}
    for thing, where in state.where.items():
        found.setdefault(where, []).append(_with_state(thing, state))
    return found


class _Builder:
    """Builder of a solvable house: each key can be reached without the lock that it opens."""

    def __init__(self, instance: int, rooms: int, locks: int) -> None:
        self._rng = rng = random.Random(instance)
        names = [_KITCHEN, *rng.sample(_ROOMS, rooms - 1)]
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
        self._closed = [*doors.values(), *(piece for piece in pieces.values() if _holds(piece) and rng.random() < 0.6)]
        self._exits = _exits(cells, ways, doors)
        self._pieces = pieces
        self._home = {piece: room for room, piece in pieces.items()}
        self._where: dict[str, str] = {}

    def build(self, objects: int, goals: int) -> tuple[_House, _State, str]:
        """Return the house, its state and the starting room."""
        last = self._place_keys()
        wanted = tuple(self._place_things(last, objects, goals))
        furniture = {room: [piece] for room, piece in self._pieces.items()}
        house = _House(self._exits, furniture, self._home, wanted)
        return house, _State(self._where, {*self._closed, *self._locked}, set(self._locked), set()), self.start

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
            self._where[_key(lock)] = rng.choice(fresh if fresh and rng.random() < 0.6 else places)
            left.remove(lock)
            before, places = places, self._places(left)
        return [place for place in places if place not in before]

    def _places(self, locked: list[str]) -> list[str]:
        """Return the floors and furniture that can be reached while the given locks stay locked."""
        rooms = distances(self.start, lambda at: [to for to, door in self._exits[at].values() if door not in locked])
        return [*rooms] + [piece for piece, room in self._home.items() if room in rooms and piece not in locked]

    def _place_things(self, last: list[str], objects: int, goals: int) -> Iterator[_Goal]:
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
            yield _Goal(kind, thing, self._target(thing) if kind == "put" else "")
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
            (x, y), (dx, dy) = cells[beside], rng.choice(list(_STEPS.values()))
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
    found = []
    for name, (x, y) in cells.items():
        for beside in (at.get((x, y + 1)), at.get((x + 1, y))):
            if beside is None or zone[name] != zone[beside] or {(name, beside), (beside, name)} & set(tree):
                continue
            if rng.random() < 0.3:
                found.append((name, beside))
    return found


def _exits(
    cells: dict[str, tuple[int, int]], ways: list[tuple[str, str]], doors: Mapping[tuple[str, str], str]
) -> dict[str, dict[str, tuple[str, str]]]:
    exits: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in cells}
    for one, other in ways:
        (x, y), (to_x, to_y) = cells[one], cells[other]
        way = next(way for way, step in _STEPS.items() if step == (to_x - x, to_y - y))
        door = doors.get((one, other), "")
        exits[one][way] = (other, door)
        exits[other][_BACK[way]] = (one, door)
    return {name: {way: there[way] for way in _STEPS if way in there} for name, there in exits.items()}


class _Deed(NamedTuple):
    """Command that every plan has exactly once."""

    command: str
    rooms: tuple[str, ...]
    """Rooms where it can be given; any room if empty."""
    after: set[int]
    """Deeds that must come before it."""


def _plan(house: _House, state: _State, room: str) -> list[str] | None:
    """Return the fewest commands that reach the goals, or ``None`` if the known part of the house does not suffice.

    Dropping, closing or taking a thing that no goal and no lock needs never shortens a plan. So a plan consists of the
    unavoidable deeds, each once, the doors opened for a shorter way, and the walks between them. An unavoidable deed is
    done as soon as the player is in its room, which leaves a breadth-first search over the walks.
    """
    needs = _Needs(house, state, room)
    if not needs.complete:
        return None
    deeds, goal = needs.deeds, (1 << len(needs.deeds)) - 1
    after = [sum(1 << i for i in deed.after) for deed in deeds]
    here = {name: [i for i, deed in enumerate(deeds) if not deed.rooms or name in deed.rooms] for name in house.exits}
    opened = {deed.command.removeprefix("open "): 1 << i for i, deed in enumerate(deeds)}
    optional = {door: 1 << (len(deeds) + i) for i, door in enumerate(needs.shortcuts)}
    opened |= optional

    def moves(at: tuple[str, int]) -> Iterator[tuple[str, tuple[str, int]]]:
        room, done = at
        ready = next((i for i in here[room] if not done >> i & 1 and after[i] & ~done == 0), None)
        if ready is not None:
            yield deeds[ready].command, (room, done | 1 << ready)
            return
        for way, (there, door) in house.exits[room].items():
            if door not in state.closed or done & opened.get(door, 0):
                yield f"go {way}", (there, done)
            elif door in optional:
                yield f"open {door}", (room, done | optional[door])

    came_from: dict[tuple[str, int], tuple[tuple[str, int], str]] = {}
    reached = (at for ring in rings((room, 0), moves, came_from) for at in ring if at[1] & goal == goal)
    end = next(reached, None)
    return None if end is None else path(came_from, end)


class _Needs:
    """Deeds that the goals need, found backwards from the goals."""

    def __init__(self, house: _House, state: _State, room: str) -> None:
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

    def _reach(self, goal: _Goal) -> None:
        thing, kind = goal.thing, goal.kind
        if kind == "put":
            if self._state.where.get(thing) != goal.target:
                self._put(goal)
            return
        if self._state.where.get(thing) == _EATEN:
            return
        after = self._take(thing)
        if kind == "cook" and thing not in self._state.cooked:
            self.complete &= _KITCHEN in self._house.exits
            after = self._add(f"cook {thing}", (_KITCHEN,), after)
        if kind in ("eat", "cook"):
            self._add(f"eat {thing}", (), after)

    def _put(self, goal: _Goal) -> None:
        home = self._house.home.get(goal.target)
        if home is None:
            self.complete = False
            return
        after = self._take(goal.thing) | self._open(goal.target, (home,))
        self._add(f"put {goal.thing} {_preposition(goal.target)} {goal.target}", (home,), after)

    def _take(self, thing: str) -> set[int]:
        place = self._state.where.get(thing)
        if place == _HELD:
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
            after = self._add(f"unlock {name}", rooms, self._take(_key(name)))
        return self._add(f"open {name}", rooms, after)

    def _open_doors(self, start: str) -> None:
        """Add the doors with something needed behind them, which may be the key of another door."""
        left = {
            door: (room, there)
            for room, ways in self._house.exits.items()
            for there, door in ways.values()
            if door in self._state.closed
        }
        behind = {door: self._behind(door, start) for door in left}
        self.shortcuts = [door for door in left if not behind[door] and door not in self._state.locked]
        while True:
            needed = {deed.rooms[0] for deed in self.deeds if len(deed.rooms) == 1}
            found = [door for door in left if behind[door] & needed]
            if not found:
                return
            for door in found:
                self._open(door, left.pop(door))

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
                if deed.command.startswith("unlock ") and _key(deed.command.removeprefix("unlock ")) == goal.thing
            }
            if goal.kind == "put" and uses:
                self._put(goal)
                for deed in self.deeds:
                    if deed.command.startswith(f"put {goal.thing} "):
                        deed.after.update(uses)


_SEEN_GOAL = re.compile(r"^Goal: (.*)\.$", re.MULTILINE)
_SEEN_ROOM = re.compile(r"^You are in the ([a-z]+)\.(.*) Exits: (.*)\. [0-9]+ turns? left\.$", re.MULTILINE)
_SEEN_SHUT = re.compile(r"The ([a-z ]+) is (closed|locked)\.")
_SEEN_THINGS = re.compile(r"(On|In) the ([a-z ]+): ([^.]*)\.")
_SEEN_EXIT = re.compile(r"(north|east|south|west)(?: \(([a-z ]+), (open|closed|locked)\))?")
_WANTED = re.compile(r"(hold|put|eat) the ([a-z ]+?)(?:( cooked)| (?:on|in) the ([a-z ]+))?")


class _Explorer:
    """Policy that draws a map from its observations and plans on it."""

    def __init__(self) -> None:
        self._house = _House({}, {}, {}, ())
        self._state = _State({}, set(), set(), set())
        self._ways: dict[str, dict[str, str]] = {}
        """Doors by room and direction."""
        self._cells: dict[str, tuple[int, int]] = {}
        self._room = ""
        self._command = ""
        self._planned: list[str] = []

    def __call__(self, observation: str) -> str:
        if wanted := _SEEN_GOAL.search(observation):
            self._house = self._house._replace(goals=tuple(map(_read_goal, wanted[1].split("; "))))
        seen = _SEEN_ROOM.search(observation)
        assert seen is not None, "a game that is not over shows the room"
        self._note_command(observation)
        self._note_room(*seen.groups())
        if not self._planned:
            self._planned = (_plan(self._house, self._state, self._room) or [self._explore()])[::-1]
        self._command = self._planned.pop()
        return self._command

    def _note_command(self, observation: str) -> None:
        """Record the effect of a carried-out command that the room's description does not show."""
        verb, _, thing = self._command.partition(" ")
        if not observation.startswith(f"You {verb} "):
            self._command, self._planned = "", []
            return
        if verb in ("take", "eat"):
            self._state.where[thing] = _HELD if verb == "take" else _EATEN
        elif verb == "cook":
            self._state.cooked.add(thing)

    def _note_room(self, room: str, inside: str, exits: str) -> None:
        verb, _, way = self._command.partition(" ")
        x, y = self._cells.get(self._room, (0, 0))
        dx, dy = _STEPS[way] if verb == "go" else (0, 0)
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
            there = at.get((x + _STEPS[way][0], y + _STEPS[way][1]))
            if there is not None:
                self._house.exits[room][way] = (there, door)
                self._house.exits.setdefault(there, {})[_BACK[way]] = (room, door)

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
            if state.where.get(thing) != _HELD or kind == "take":
                continue
            if kind == "cook" and thing not in state.cooked:
                if self._room == _KITCHEN:
                    return f"cook {thing}"
            elif kind != "put":
                return f"eat {thing}"
            elif target in here and not thing.endswith(" key"):
                return f"put {thing} {_preposition(target)} {target}"
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
        return f"unlock {name}" if self._state.where.get(_key(name)) == _HELD else None


def _read_goal(text: str) -> _Goal:
    read = _WANTED.fullmatch(text)
    assert read is not None, "goals are written as they are read"
    verb, thing, cooked, target = read.groups()
    if verb == "put":
        return _Goal("put", thing, target)
    return _Goal("take" if verb == "hold" else "cook" if cooked else "eat", thing)

"""Text adventure in a house of rooms, doors, furniture and objects, with goals as in TextWorld (Côté et al. 2018)."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from gym_trl.envs.adventure_house import (
    EATEN,
    FOOD,
    HELD,
    KITCHEN,
    Builder,
    Goal,
    House,
    State,
    is_container,
    key_of,
    preposition,
)
from gym_trl.envs.adventure_solver import SEEN_ROOM, Explorer, shortest_plan
from gym_trl.envs.adventure_words import PREPOSITIONS, VERBS_WITH_THINGS, WAYS, plain_words, split_verb
from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy


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
        return Steady(Explorer(), SEEN_ROOM.search)

    def shortest_plan(self) -> list[str]:
        """Return the fewest commands that win from here, given full knowledge of the house."""
        plan = shortest_plan(self._house, self._state, self._room)
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

    def _built(self) -> tuple[House, State, str]:
        return Builder(self._instance, self.rooms, self.locks).build(self.objects, self.goals)

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        observation = super()._start(instance, options)
        return f"Goal: {'; '.join(map(str, self._house.goals))}.\n{observation}"

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

    def _reached(self, goal: Goal) -> bool:
        where = self._state.where[goal.thing]
        if goal.kind == "put":
            return where == goal.target
        if goal.kind == "take":
            return where == HELD
        return where == EATEN and (goal.kind == "eat" or goal.thing in self._state.cooked)

    def _spoilt(self, goal: Goal) -> bool:
        return self._state.where[goal.thing] == EATEN and not self._reached(goal)

    def _fewest_actions(self) -> float:
        """Return the length of the shortest plan with full knowledge of the house; exploring takes longer."""
        if self._shortest is None:
            plan = shortest_plan(*self._built())
            assert plan, "every house can be solved, and none is from the start"
            self._shortest = len(plan)
        return self._shortest

    def _potential(self) -> float:
        """Return the share of the shortest plan's commands that are no longer needed, at least 0."""
        return max(0.0, 1.0 - len(self.shortest_plan()) / self._fewest_actions())

    # Observation

    def _observe(self) -> str:
        house, state, room = self._house, self._state, self._room
        lying = state.lying()
        parts = [f"You are in the {room}."]
        if room == KITCHEN:
            parts.append("A stove is here.")
        for piece in house.furniture[room]:
            if piece in state.closed:
                parts.append(f"The {piece} is {'locked' if piece in state.locked else 'closed'}.")
            else:
                parts.append(
                    f"{preposition(piece).capitalize()} the {piece}: {', '.join(lying.get(piece, ['nothing']))}."
                )
        if room in lying:
            parts.append(f"On the floor: {', '.join(lying[room])}.")
        ways = [
            f"{way} ({door}, {state.condition(door)})" if door else way
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
        return doors + [piece for piece in self._house.furniture[self._room] if is_container(piece)]

    def _in_reach(self) -> list[str]:
        """Return the things in this room that are not held: on the floor, on furniture or in open containers."""
        house, state, room = self._house, self._state, self._room
        places = {room, *(piece for piece in house.furniture[room] if piece not in state.closed)}
        return [thing for thing, where in state.where.items() if where in places]

    def _held(self) -> list[str]:
        return [thing for thing, where in self._state.where.items() if where == HELD]

    # Orders

    def _orders(self) -> dict[str, _Order]:
        """Return everything that can be carried out now, by its command."""
        if not self._possible:
            self._possible = {self._say(order): order for order in self._list_orders()}
        return self._possible

    def _list_orders(self) -> list[_Order]:
        exits, pieces = self._house.exits[self._room], self._house.furniture[self._room]
        orders = [_Order("go", way) for way, (_, door) in exits.items() if door not in self._state.closed]
        tried = [_Order(verb, name) for name in self._openable() for verb in ("close", "open", "unlock")]
        tried += [_Order("take", thing) for thing in self._in_reach()]
        for thing in self._held():
            tried += [_Order("drop", thing), *(_Order("put", thing, piece) for piece in pieces)]
            tried += [_Order("cook", thing), _Order("eat", thing)]
        return [*orders, *(order for order in tried if self._check(*order) is None), _Order("inventory")]

    def _say(self, order: _Order) -> str:
        if order.verb == "put":
            return f"put {order.thing} {preposition(order.target)} {order.target}"
        return f"{order.verb} {order.thing}" if order.thing else order.verb

    def _carry_out(self, order: _Order) -> str:
        """Carry out an order and return its description."""
        house, state, (verb, thing, target) = self._house, self._state, order
        self._possible = {}
        places = {"take": HELD, "drop": self._room, "put": target, "eat": EATEN}
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
            held = [state.shown(name) for name in self._held()]
            return f"You hold: {', '.join(held) or 'nothing'}."
        elif verb == "look":
            return self._look_at(thing)
        if verb == "put":
            return f"You put the {thing} {preposition(target)} the {target}."
        return f"You {verb} the {thing}."

    def _look_at(self, thing: str) -> str:
        if not thing:
            return "You look around."
        if thing in self._openable():
            return f"The {thing} is {self._state.condition(thing)}."
        return f"There is nothing special about the {thing}."

    # Parsing

    def _read(self, action: str) -> _Order | str:
        """Return the order that an action names, or the reason why it cannot be carried out."""
        if self.commands == "listed":
            command = " ".join(action.lower().split()) if action.isascii() else ""
            return self._orders().get(command) or "This is not one of the commands."
        words = plain_words(action)
        if not words:
            return "Say what to do in a few plain words."
        verb, rest = split_verb(words)
        if verb == "inventory":
            return _Order("inventory") if not rest else "Say inventory and nothing else."
        if verb == "go":
            return self._read_way(rest)
        if verb in VERBS_WITH_THINGS:
            return self._read_about(verb, rest)
        return f"The verbs are: {', '.join(VERBS_WITH_THINGS)}, go, inventory."

    def _read_way(self, words: list[str]) -> _Order | str:
        words = [word for word in words if word not in ("to", "through")]
        way = WAYS.get(" ".join(words))
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
        return f"The {door} is {self._state.condition(door)}." if door in self._state.closed else _Order("go", way)

    def _read_about(self, verb: str, words: list[str]) -> _Order | str:
        """Read a verb with a thing, and perhaps with a second thing after a preposition."""
        at = next((i for i, word in enumerate(words) if word in PREPOSITIONS and i > 0), len(words))
        first, second = words[:at], [word for word in words[at:] if word not in PREPOSITIONS]
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
        here += ["stove"] if room == KITCHEN else []
        if len(words) > 1 and words[0] in ("cooked", "raw"):
            words = words[1:]
        exact = [name for name in here if name.split() == words]
        names = list(dict.fromkeys(exact or [name for name in here if name.split()[-len(words) :] == words]))
        if len(names) > 1:
            return "", f"Which one: {', '.join(names)}?"
        return (names[0], "") if names else ("", f"You see no {' '.join(words)[:40]} here.")

    def _check(self, verb: str, thing: str, target: str) -> str | None:
        """Return the reason, if any, why an order cannot be carried out; it reveals only what can be seen here."""
        if verb == "take":
            return self._check_taken(thing, target)
        if verb in ("open", "close", "unlock"):
            return self._check_openable(verb, thing, target)
        if verb == "look":
            return "Name one thing only." if target else None
        if self._state.where.get(thing) != HELD:
            return f"You do not hold the {thing}."
        return self._check_food(verb, thing, target) if verb in ("cook", "eat") else self._check_place(target)

    def _check_taken(self, thing: str, target: str) -> str | None:
        place = self._state.where.get(thing)
        if place is None:
            return f"The {thing} cannot be taken."
        if place == HELD:
            return f"You hold the {thing} already."
        return f"The {thing} is not there." if target not in ("", place) else None

    def _check_place(self, target: str) -> str | None:
        if target and target not in self._house.home:
            return f"Nothing can be put there: {target}."
        return f"The {target} is {self._state.condition(target)}." if target in self._state.closed else None

    def _check_openable(self, verb: str, name: str, key: str) -> str | None:
        state = self._state
        if name not in self._openable():
            return f"The {name} cannot be opened or closed."
        condition = state.condition(name)
        if key and (verb == "close" or key != key_of(name)):
            return f"The {key} does not help."
        if verb == "close":
            return None if condition == "open" else f"The {name} is {condition} already."
        if verb == "open":
            return None if condition == "closed" else f"The {name} is {condition}."
        if condition != "locked":
            return f"The {name} is not locked."
        return None if state.where.get(key_of(name)) == HELD else f"You need the {key_of(name)}."

    def _check_food(self, verb: str, thing: str, tool: str) -> str | None:
        if thing not in FOOD:
            return f"The {thing} is no food."
        if tool and (verb == "eat" or tool != "stove"):
            return f"The {tool} does not help."
        if verb == "eat":
            return None
        if self._room != KITCHEN:
            return "There is no stove here."
        return f"The {thing} is cooked already." if thing in self._state.cooked else None

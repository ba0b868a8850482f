# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
import pickle
import random
import re
from collections import deque
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.envs.adventure import Adventure
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play

DIFFICULTIES = ("easy", "medium", "hard")
TINY: dict[str, Any] = {"rooms": 2, "objects": 2, "locks": 1, "goals": 2, "turns": 100, "commands": "listed"}


def situation(env: Adventure) -> tuple[Any, ...]:
    state = env._state
    return (env._room, *state.where.items(), *(tuple(sorted(names)) for names in state[1:]))


def shortest_by_exhaustion(env: Adventure) -> int:
    """Every command in every situation, through ``step`` alone."""
    seen = {situation(env)}
    queue = deque([(pickle.dumps(env), 0)])
    while queue:
        saved, length = queue.popleft()
        for command in pickle.loads(saved).admissible_actions():
            after = pickle.loads(saved)
            _, _, done, _, info = after.step(command)
            if info["success"]:
                return length + 1
            if not done and situation(after) not in seen:
                seen.add(situation(after))
                queue.append((pickle.dumps(after), length + 1))
    raise AssertionError("this house cannot be solved")


def follow(env: Adventure, commands: list[str]) -> list[dict[str, Any]]:
    return [env.step(command)[-1] for command in commands]


def wander(env: Adventure, seed: int, steps: int) -> bool:
    """Walk at random, and tell whether the game goes on."""
    policy = env.random_policy(seed)
    return not any(env.step(policy(""))[2] for _ in range(steps))


def test_the_shortest_plan_is_as_short_as_an_exhaustive_search_finds() -> None:
    env = Adventure(**TINY)
    lengths = []
    for instance in range(12):
        env.reset(options={"instance": instance})
        lengths.append(len(env.shortest_plan()))
        assert lengths[-1] == env._fewest_actions()
        if lengths[-1] <= 10:
            assert lengths[-1] == shortest_by_exhaustion(env)
    assert sum(length <= 10 for length in lengths) >= 6


@pytest.mark.nightly
def test_long_plans_are_as_short_as_an_exhaustive_search_finds() -> None:
    for arguments in (TINY, {**TINY, "rooms": 3, "objects": 1, "goals": 1}, {**TINY, "rooms": 4, "locks": 0}):
        env = Adventure(**arguments)
        for instance in range(40):
            env.reset(options={"instance": instance})
            assert len(env.shortest_plan()) == shortest_by_exhaustion(env)


def test_from_any_situation_one_command_shortens_the_plan_and_none_does_by_more() -> None:
    """A plan is shortest, also in situations that no sensible player gets into."""
    for seed in range(40):
        env = Adventure(rooms=4, objects=4, locks=2, goals=2, turns=1000, commands="listed")
        env.reset(options={"instance": seed})
        if not wander(env, seed, 30):
            continue
        now, lengths = len(env.shortest_plan()), []
        for command in env.admissible_actions() or []:
            after = pickle.loads(pickle.dumps(env))
            _, _, done, _, info = after.step(command)
            lengths.append(0 if info["success"] else 10**6 if done else len(after.shortest_plan()))
        assert min(lengths) == now - 1


@given(instance=st.integers(0, 2**32 - 1), rooms=st.integers(1, 16), data=st.data())
@examples(60)
def test_every_house_can_be_solved_by_its_plan(instance: int, rooms: int, data: st.DataObject) -> None:
    locks, objects = data.draw(st.integers(0, min(8, rooms - 1))), data.draw(st.integers(1, 24))
    goals = data.draw(st.integers(1, min(5, objects)))
    env = Adventure(rooms=rooms, objects=objects, locks=locks, goals=goals, turns=1000)
    env.reset(options={"instance": instance})
    plan = env.shortest_plan()
    infos = follow(env, plan)
    assert all(info["action_valid"] for info in infos)
    assert [info["success"] for info in infos] == [False] * (len(plan) - 1) + [True]


@given(instance=st.integers(0, 2**32 - 1), rooms=st.integers(1, 16), data=st.data())
@examples(60)
def test_the_solver_wins_in_enough_turns_whatever_the_arguments(instance: int, rooms: int, data: st.DataObject) -> None:
    locks, objects = data.draw(st.integers(0, min(8, rooms - 1))), data.draw(st.integers(1, 24))
    goals = data.draw(st.integers(1, min(5, objects)))
    arguments: dict[str, Any] = {"rooms": rooms, "objects": objects, "locks": locks, "goals": goals}
    enough = Adventure(**arguments, turns=1)._enough_turns()
    env = Adventure(**arguments, turns=enough)
    assert env.optimal_success == 1.0
    assert Adventure(**arguments, turns=enough - 1).optimal_success is None
    assert play(env, env.solver(), options={"instance": instance})[-1][-1]["success"]


def lengths(difficulty: Any, count: int) -> tuple[list[int], list[float]]:
    """Return the turns of the solver and of the shortest plan; the solver wins them all."""
    env = Adventure(difficulty=difficulty)
    needed, shortest = [], []
    for instance in range(count):
        steps = play(env, env.solver(), options={"instance": instance})
        assert steps[-1][-1]["success"]
        needed.append(len(steps) - 1)
        shortest.append(env._fewest_actions())
    return needed, shortest


@pytest.mark.parametrize(
    ("difficulty", "mean", "optimum"), [("easy", 4.9, 4.1), ("medium", 21.3, 17.7), ("hard", 37.4, 28.7)]
)
def test_the_solver_needs_about_the_number_of_commands_that_is_written_down(
    difficulty: Any, mean: float, optimum: float
) -> None:
    needed, shortest = lengths(difficulty, 150)
    assert fmean(needed) == pytest.approx(mean, rel=0.1)
    assert fmean(shortest) == pytest.approx(optimum, rel=0.1)
    assert all(most >= least for most, least in zip(needed, shortest, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("difficulty", "mean", "most", "optimum", "longest"),
    [("easy", 4.9, 11, 4.1, 9), ("medium", 21.3, 33, 17.7, 28), ("hard", 37.4, 57, 28.7, 47)],
)
def test_the_table_of_numbers_is_right(difficulty: Any, mean: float, most: int, optimum: float, longest: int) -> None:
    needed, shortest = lengths(difficulty, 2000)
    assert (round(fmean(needed), 1), max(needed)) == (mean, most)
    assert (round(fmean(shortest), 1), max(shortest)) == (optimum, longest)


def test_in_a_single_room_the_solver_is_optimal() -> None:
    env = Adventure(rooms=1, objects=6, locks=0, goals=3, turns=30, reward="efficient", commands="listed")
    assert env.optimal_return == 1.0
    for instance in range(50):
        assert play(env, env.solver(), options={"instance": instance})[-1][2] == 1.0


def test_random_commands_win_easy_houses_sometimes_and_larger_ones_hardly_ever() -> None:
    won = {}
    for difficulty, count in (("easy", 600), ("medium", 60), ("hard", 30)):
        env = Adventure(difficulty=difficulty)
        games = (play(env, env.random_policy(i), options={"instance": i}) for i in range(count))
        won[difficulty] = fmean(steps[-1][-1]["success"] for steps in games)
    assert won["easy"] == pytest.approx(0.18, abs=0.06)
    assert won["medium"] <= 0.02
    assert won["hard"] <= 0.02


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("said", ["", "inventory", "take north", "look", "go north"])
def test_a_player_who_repeats_himself_wins_nothing_and_the_game_ends(difficulty: Any, said: str) -> None:
    env = Adventure(difficulty=difficulty)
    for instance in range(10):
        steps = play(env, lambda _: said, options={"instance": instance})
        assert len(steps) - 1 == env.turns
        assert steps[-1][2:5] == (0.0, True, False)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_walking_alone_wins_nothing(difficulty: Any) -> None:
    env = Adventure(difficulty=difficulty)
    rng = random.Random(0)
    for instance in range(10):
        steps = play(
            env, lambda _: f"go {rng.choice(['north', 'east', 'south', 'west'])}", options={"instance": instance}
        )
        assert not steps[-1][-1]["success"]


def test_shaped_rewards_cannot_be_farmed_by_taking_and_dropping() -> None:
    env = Adventure(difficulty="easy", reward="shaped")
    env.reset(options={"instance": 4})
    total = env.step("go north")[1]
    for _ in range(8):
        total += env.step("take sausage")[1] + env.step("drop sausage")[1]
    assert total == pytest.approx(1 / 3)
    assert total + env.step("inventory")[1] + env.step("go south")[1] + env.step("inventory")[1] == pytest.approx(0)


def test_the_plan_is_one_shorter_after_each_of_its_commands() -> None:
    env = Adventure(reward="shaped")
    env.reset(options={"instance": 7})
    plan = env.shortest_plan()
    for done, command in enumerate(plan):
        assert env._potential() == pytest.approx(done / len(plan))
        env.step(command)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_free_commands_accept_exactly_what_is_listed(difficulty: Any) -> None:
    arguments = Adventure.presets[difficulty]
    ever: set[str] = set()
    for instance in range(12):
        listed = Adventure(**{**arguments, "commands": "listed", "turns": 500})
        free = Adventure(**{**arguments, "commands": "free", "turns": 500})
        listed.reset(options={"instance": instance})
        free.reset(options={"instance": instance})
        rng = random.Random(instance)
        for _ in range(25):
            possible = listed.admissible_actions() or []
            ever |= set(possible)
            for command in rng.sample(sorted(ever), min(12, len(ever))):
                read = free._read(command)
                if isinstance(read, str):
                    assert command not in possible, read
                else:  # "open chest" may be short for "open brass chest"
                    assert free._say(read) in possible
                    assert command not in possible or free._say(read) == command
            command = rng.choice(possible)
            one, other = listed.step(command), free.step(command)
            assert one[0].partition("\nCommands: ")[0] == other[0]
            if one[2]:
                break


@pytest.fixture
def house() -> Adventure:
    """Instance 5 of a free medium game, where the player has a fish to carry and a box to open in the kitchen."""
    env = Adventure(commands="free", turns=200)
    env.reset(options={"instance": 5})
    follow(env, ["open purple door", "go east", "take fish", "go west", "open grey door", "go west"])
    return env


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("s", "go south"),
        ("Walk to the South.", "go south"),
        ("go through the black door", "go south"),
        ("enter black door", "go south"),
        ("  OPEN   the black door!", "open black door"),
        ("open the door", None),
        ("put the fish down", "drop fish"),
        ("put down the fish", "drop fish"),
        ("put fish on the floor", "drop fish"),
        ("place the fish onto the counter", "put fish on counter"),
        ("drop the raw fish on the counter", "put fish on counter"),
        ("please eat my fish", "eat fish"),
        ("i", "inventory"),
        ("check inventory", "inventory"),
        ("shut grey door", "close grey door"),
    ],
)
def test_plain_words_are_understood(house: Adventure, said: str, meant: str | None) -> None:
    if said not in ("  OPEN   the black door!", "open the door"):
        house.step("open black door")
    again = pickle.loads(pickle.dumps(house))
    if meant is None:
        assert house.step(said)[0].startswith("Which one: ")
    else:
        assert house.step(said) == again.step(meant)
        assert house._turns_left == again._turns_left


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("go north", "There is no exit to the north."),
        ("go south", "The black door is closed."),
        ("go home", "Go where? North, east, south or west."),
        ("take the sword", "You see no sword here."),
        ("take the kettle", "You see no kettle here."),  # which there is, elsewhere
        ("open the copper barrel", "You see no copper barrel here."),
        ("take counter", "The counter cannot be taken."),
        ("take fish", "You hold the fish already."),
        ("open counter", "The counter cannot be opened or closed."),
        ("unlock black door", "The black door is not locked."),
        ("open black door with fish", "The fish does not help."),
        ("close black door", "The black door is closed already."),
        ("open grey door", "The grey door is open."),
        ("cook fish", "There is no stove here."),
        ("cook counter", "You do not hold the counter."),
        ("eat fish with fish", "The fish does not help."),
        ("put fish", "Put the fish where?"),
        ("put fish in fish", "Nothing can be put there: fish."),
        ("put fish on black door", "Nothing can be put there: black door."),
        ("drop", "Drop what?"),
        ("inventory now", "Say inventory and nothing else."),
        ("dance", "The verbs are: take, drop, put, open, close, unlock, cook, eat, look, go, inventory."),
        ("", "Say what to do in a few plain words."),
        ("take <fish>", "Say what to do in a few plain words."),
        ("loo\u212a", "Say what to do in a few plain words."),
        ("take " + "fish " * 30, "Say what to do in a few plain words."),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason_and_costs_a_turn(
    house: Adventure, said: str, answer: str
) -> None:
    before, turns = situation(house), house._turns_left
    observation, *_, info = house.step(said)
    assert observation.splitlines()[0] == answer
    assert not info["action_valid"]
    assert situation(house) == before
    assert house._turns_left == turns - 1


def test_what_is_elsewhere_is_refused_like_what_does_not_exist(house: Adventure) -> None:
    things = [*house._state.where, *house._house.home, "sword", "brass key", "glass door"]
    for thing in things:
        if thing in house._house.furniture[house._room] or house._state.where.get(thing) == "you":
            continue
        for verb in ("take", "open", "unlock", "look at", "eat"):
            said = pickle.loads(pickle.dumps(house)).step(f"{verb} {thing}")[0].splitlines()[0]
            assert said == f"You see no {thing} here."


@pytest.mark.parametrize("commands", ["listed", "free"])
def test_a_second_line_is_no_second_command(commands: Any) -> None:
    """In Jericho it is queued into the turns that follow."""
    env = Adventure(commands=commands)
    env.reset(options={"instance": 5})
    before = situation(env)
    for action in (
        "go north\ngo west",
        "go north; go west",
        "go north\r",
        "inventory\ngo north",
        "take rope and go north",
    ):
        env.reset(options={"instance": 5})
        *_, info = env.step(action)
        assert info["action_valid"] == (action == "go north\r")
        assert info["action_valid"] or situation(env) == before


@pytest.mark.parametrize("command", ["save", "restore", "restart", "quit", "undo", "script"])
def test_no_command_is_about_the_program(command: str, house: Adventure, tmp_path: Any, monkeypatch: Any) -> None:
    """Jericho's ``save`` writes a file, its ``restart`` starts anew and its ``quit`` ends without saying so."""
    monkeypatch.chdir(tmp_path)
    before = situation(house)
    *_, terminated, _, info = house.step(command)
    assert not info["action_valid"]
    assert not terminated
    assert situation(house) == before
    assert not list(tmp_path.iterdir())


def test_a_lock_needs_its_key_and_the_key_is_named() -> None:
    env = Adventure(commands="free", turns=200)
    env.reset(options={"instance": 5})
    follow(env, ["n", "w"])
    assert env.step("unlock wooden wardrobe")[0].startswith("You need the wooden key.\n")
    assert env.step("open wardrobe")[0].startswith("The wooden wardrobe is locked.\n")


def test_eating_what_a_goal_needs_otherwise_loses(house: Adventure) -> None:
    observation, reward, terminated, truncated, info = house.step("eat fish")
    assert observation == "You eat the fish. The goal cannot be reached any more."
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["action_valid"]
    assert not info["success"]


def test_food_is_cooked_in_the_kitchen_alone_and_once(house: Adventure) -> None:
    follow(house, ["open black door", "south"])
    assert house.step("cook the fish on the stove")[0].startswith("You cook the fish.\n")
    assert house.step("cook fish")[0].startswith("The fish is cooked already.\n")
    assert house.step("inventory")[0].startswith("You hold: fish (cooked).\n")
    assert house.step("eat the cooked fish")[-1]["action_valid"]


def test_the_last_turn_can_win_and_is_lost_otherwise() -> None:
    for turns, won in ((3, True), (2, False)):
        env = Adventure(difficulty="easy", turns=turns)
        env.reset(options={"instance": 4})
        for command in ["go north", "take sausage", "eat sausage"][:turns]:
            step = env.step(command)
        assert step[1:4] == (float(won), True, False)


def test_a_closed_container_hides_what_is_in_it() -> None:
    for instance in range(40):
        env = Adventure(**{**Adventure.presets["medium"], "turns": 500})
        observation, _ = env.reset(options={"instance": instance})
        hidden = {thing for thing, place in env._state.where.items() if place in env._state.closed}
        while True:
            text = re.sub("Goal: .*", "", observation)
            assert not any(re.search(rf"\b{thing}\b", text) for thing in hidden)
            observation, _, done, _, _ = env.step(env.random_policy(len(text))(observation))
            if done or not hidden <= {t for t, p in env._state.where.items() if p in env._state.closed}:
                break


def test_only_the_room_is_seen() -> None:
    env = Adventure(difficulty="hard")
    for instance in range(30):
        observation, _ = env.reset(options={"instance": instance})
        view = observation.partition("\n")[2]
        elsewhere = [room for room in env._house.exits if room != env._room]
        elsewhere += [piece for piece, room in env._house.home.items() if room != env._room]
        assert not any(re.search(rf"\b{name}\b", view) for name in elsewhere)


def test_seeds_reach_different_houses() -> None:
    env = Adventure()
    assert len({env.reset(seed=seed)[0] for seed in range(200)}) > 195


def test_the_example_in_the_instructions_names_nothing_that_a_house_has() -> None:
    said = Adventure(commands="free").instructions.partition(", or like: ")[2]
    assert said
    for instance in range(100):
        env = Adventure(difficulty="hard")
        env.reset(options={"instance": instance})
        names = {*env._state.where, *env._house.home, *env._state.closed}
        assert not any(re.search(rf"\b{name}\b", said) for name in names)


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"rooms": 1, "objects": 1, "locks": 0, "goals": 1, "turns": 1},
        {"rooms": 2, "locks": 1, "commands": "free"},
        {"rooms": 16, "objects": 24, "locks": 8, "goals": 5, "turns": 500},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: Adventure(**arguments), episodes=10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rooms": 0}, "rooms must be at least 1, got 0"),
        ({"rooms": 17}, "rooms must be at most 16, got 17"),
        ({"objects": "8"}, "objects must be an integer, got '8'"),
        ({"turns": 2.0}, "turns must be an integer"),
        ({"locks": True}, "locks must be an integer"),
        ({"locks": -1}, "locks must be at least 0"),
        ({"rooms": 2, "locks": 2}, "locks=2 and rooms=2"),
        ({"objects": 1, "goals": 2}, "goals=2 and objects=1"),
        ({"goals": 6}, "goals must be at most 5"),
        ({"commands": "all"}, "commands must be 'listed' or 'free', got 'all'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Adventure(**arguments)

import pickle
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.games import fewest_actions
from support.lanes import examples

from gym_trl.envs.adventure import Adventure
from gym_trl.envs.text_env import Difficulty
from gym_trl.testing import play

TINY: dict[str, Any] = {"rooms": 2, "objects": 2, "locks": 1, "goals": 2, "turns": 100, "commands": "listed"}


def follow(env: Adventure, commands: list[str]) -> list[dict[str, Any]]:
    return [env.step(command)[-1] for command in commands]


def copied(env: Adventure) -> Adventure:
    copy: Adventure = pickle.loads(pickle.dumps(env))
    return copy


@pytest.mark.parametrize(
    "arguments",
    [
        TINY,
        pytest.param({**TINY, "rooms": 3, "objects": 1, "goals": 1}, marks=pytest.mark.nightly),
        pytest.param({**TINY, "rooms": 4, "locks": 0}, marks=pytest.mark.nightly),
    ],
)
def test_the_shortest_plan_is_as_short_as_an_exhaustive_search_finds(arguments: dict[str, Any]) -> None:
    env = Adventure(**arguments)
    searched = 0
    for instance in range(12):
        env.reset(options={"instance": instance})
        if (length := len(env.shortest_plan())) <= 9:
            searched += 1
            assert length == fewest_actions(env)
    assert searched > 3


def test_from_any_situation_one_command_shortens_the_plan_and_none_does_by_more() -> None:
    """A plan is shortest, also in situations that no sensible player gets into."""
    for seed in range(25):
        env = Adventure(rooms=4, objects=4, locks=2, goals=2, turns=1000, commands="listed")
        env.reset(options={"instance": seed})
        policy = env.random_policy(seed)
        if any(env.step(policy(""))[2] for _ in range(30)):
            continue
        plan, lengths = len(env.shortest_plan()), []
        for command in env.admissible_actions() or []:
            after = copied(env)
            _, _, done, _, info = after.step(command)
            lengths.append(0 if info["success"] else 10**6 if done else len(after.shortest_plan()))
        assert min(lengths) == plan - 1


@given(instance=st.integers(0, 2**32 - 1), rooms=st.integers(1, 16), data=st.data())
@examples(60)
def test_the_plan_and_the_solver_win_every_house(instance: int, rooms: int, data: st.DataObject) -> None:
    locks, objects = data.draw(st.integers(0, min(8, rooms - 1))), data.draw(st.integers(1, 24))
    goals = data.draw(st.integers(1, min(5, objects)))
    arguments: dict[str, Any] = {"rooms": rooms, "objects": objects, "locks": locks, "goals": goals}
    enough = Adventure(**arguments, turns=1)._enough_turns()
    env = Adventure(**arguments, turns=enough)
    env.reset(options={"instance": instance})
    infos = follow(env, env.shortest_plan())
    assert all(info["action_valid"] for info in infos)
    assert [info["success"] for info in infos] == [False] * (len(infos) - 1) + [True]
    assert env.optimal_success == 1.0
    assert Adventure(**arguments, turns=enough - 1).optimal_success is None
    assert play(env, env.solver(), options={"instance": instance})[-1][-1]["success"]


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_free_commands_accept_exactly_what_is_listed(difficulty: Difficulty) -> None:
    arguments = Adventure.presets[difficulty]
    ever: set[str] = set()
    for instance in range(8):
        listed = Adventure(**{**arguments, "commands": "listed", "turns": 500})
        free = Adventure(**{**arguments, "commands": "free", "turns": 500})
        listed.reset(options={"instance": instance})
        free.reset(options={"instance": instance})
        policy = listed.random_policy(instance)
        for _ in range(25):
            possible = listed.admissible_actions() or []
            ever |= set(possible)
            for command in sorted(ever)[:: max(1, len(ever) // 12)]:
                answer, *_, info = copied(free).step(command)
                if command in possible:
                    assert info["action_valid"], answer
                elif info["action_valid"]:  # "open chest" may be short for "open brass chest"
                    assert answer in [copied(free).step(other)[0] for other in possible]
            command = policy("")
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
    ("response", "command"),
    [
        ("s", "go south"),
        ("go through the black door", "go south"),
        ("  OPEN   the black door!", "open black door"),
        ("put down the fish", "drop fish"),
        ("place the fish onto the counter", "put fish on counter"),
        ("drop the raw fish on the counter", "put fish on counter"),
        ("please eat my fish", "eat fish"),
    ],
)
def test_plain_words_are_understood(house: Adventure, response: str, command: str) -> None:
    if not response.startswith("  OPEN"):
        house.step("open black door")
    again = copied(house)
    assert house.step(response) == again.step(command)
    assert house.turns_left == again.turns_left


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("open the door", "Which one: "),
        ("go north", "There is no exit to the north."),
        ("go south", "The black door is closed."),
        ("take the sword", "You see no sword here."),
        ("take counter", "The counter cannot be taken."),
        ("take fish", "You hold the fish already."),
        ("open black door with fish", "The fish does not help."),
        ("cook fish", "There is no stove here."),
        ("put fish", "Put the fish where?"),
        ("put fish in fish", "Nothing can be put there: fish."),
        ("drop", "Drop what?"),
        ("dance", "The verbs are: take, drop, put, open, close, unlock, cook, eat, look, go, inventory."),
        ("", "Say what to do in a few plain words."),
        ("loo\u212a", "Say what to do in a few plain words."),
        ("take " + "fish " * 30, "Say what to do in a few plain words."),
        ("go east\ngo west", "Go where?"),  # Jericho queues it into the next turns
        *((word, "The verbs are: ") for word in ("save", "restore", "restart", "quit", "undo", "script")),
    ],
)
def test_a_command_that_cannot_be_done_is_refused_with_a_reason(house: Adventure, command: str, answer: str) -> None:
    state, turns_left = house.state_key, house.turns_left
    observation, _, over, _, info = house.step(command)
    assert observation.startswith(answer)
    assert (over, info["action_valid"]) == (False, False)
    assert house.state_key == state
    assert house.turns_left == turns_left - 1


@pytest.mark.parametrize("verb", ["take", "open", "unlock", "look at", "eat"])
def test_what_is_elsewhere_is_refused_like_what_does_not_exist(house: Adventure, verb: str) -> None:
    here = house.step("look")[0]
    for thing in (*house._state.where, *house._house.home, "sword", "brass key", "glass door"):
        if not re.search(rf"\b{thing}\b", here) and house._state.where.get(thing) != "you":
            answer = copied(house).step(f"{verb} {thing}")[0].splitlines()[0]
            assert answer == f"You see no {thing} here."


def test_a_lock_needs_its_key_and_the_key_is_named() -> None:
    env = Adventure(commands="free", turns=200)
    env.reset(options={"instance": 5})
    follow(env, ["n", "w"])
    assert env.step("unlock wooden wardrobe")[0].startswith("You need the wooden key.\n")
    assert env.step("open wardrobe")[0].startswith("The wooden wardrobe is locked.\n")


def test_eating_food_that_the_goal_needs_loses(house: Adventure) -> None:
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


def test_only_the_room_is_seen_and_a_closed_container_hides_its_contents() -> None:
    env = Adventure(difficulty="hard")
    for instance in range(30):
        view = env.reset(options={"instance": instance})[0].partition("\n")[2]
        hidden = [thing for thing, place in env._state.where.items() if place in env._state.closed]
        hidden += [room for room in env._house.exits if room != env._room]
        hidden += [piece for piece, room in env._house.home.items() if room != env._room]
        assert not any(re.search(rf"\b{name}\b", view) for name in hidden)

"""Adventure: every house can be solved, and only what is in sight is shown."""

import random
import re

from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.adventure import Adventure
from gym_trl.testing import play


@examples(60)
@given(instance=st.integers(0, 2**32 - 1), rooms=st.integers(1, 16), data=st.data())
def test_the_solver_wins_every_house(instance: int, rooms: int, data: st.DataObject) -> None:
    locks, objects = data.draw(st.integers(0, min(8, rooms - 1))), data.draw(st.integers(1, 24))
    goals = data.draw(st.integers(1, min(5, objects)))
    env = Adventure(rooms=rooms, locks=locks, objects=objects, goals=goals, turns=500)
    steps = play(env, env.solver(), options={"instance": instance})
    assert all(step[-1]["action_valid"] for step in steps[1:])
    assert steps[-1][-1]["success"]
    assert env.optimal_success == 1.0


def test_only_the_room_is_seen_and_a_closed_container_hides_its_contents() -> None:
    env = Adventure(difficulty="hard")
    for instance in range(30):
        _, view = env.reset(options={"instance": instance})[0].split("\n", 1)
        inside = {env.room, env.furniture[env.room]} - env.condition.keys()
        hidden = [thing for thing, place in env.where.items() if place not in inside]
        hidden += [name for room, piece in env.furniture.items() if room != env.room for name in (room, piece)]
        assert not any(re.search(rf"\b{name}\b", view) for name in hidden)


def test_food_is_cooked_in_the_kitchen_and_eating_what_a_goal_needs_loses() -> None:
    env = Adventure(rooms=1, locks=0, objects=1, goals=1)
    instance = next(i for i in range(99) if "cooked" in env.reset(options={"instance": i})[0])
    *_, cook, eat = [step[0] for step in play(env, env.solver(), options={"instance": instance})]
    assert (cook.split()[0], eat.split()[0]) == ("cook", "eat")
    played = play(
        env, lambda observation: eat if eat in (env.legal() or ()) else env.solve(), options={"instance": instance}
    )
    assert (played[-1][0], played[-1][3], played[-1][-1]["success"]) == (eat, True, False)
    env = Adventure(rooms=3, locks=0, objects=9, goals=1)
    for seed in range(20):  # and nowhere else
        rng, (_, info) = random.Random(seed), env.reset(seed=seed)
        while info["admissible_actions"]:
            assert env.room == "kitchen" or not any(one.startswith("cook") for one in info["admissible_actions"])
            info = env.step(rng.choice(info["admissible_actions"]))[4]

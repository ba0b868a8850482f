"""The search for a blind baseline: of environments in this repository and of ones that are not."""

import json
import re
from collections.abc import Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any, ClassVar

import gymnasium as gym
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings, strategies as st
from support.command_line import run_command_line

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import blind_reference, describe, is_near, search_blind
from gym_trl.seeding import task_seed
from gym_trl.spaces import AnyText


class Corridor(gym.Env[int, int]):
    """Always the same path to the goal, in numbers; a wrong action ends it, a right one pays."""

    def __init__(self, path: Sequence[int] = (2, 0, 1, 1, 2, 0), actions: int = 3, *, says: bool = False) -> None:
        self.path, self.says = tuple(path), says
        self.observation_space: Any = spaces.Discrete(20)
        self.action_space: Any = spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = action == self.path[self.place]
        self.place += right
        over = not right or self.place == len(self.path)
        info = {"success": right and over} if self.says else {}
        return self.place, float(right), over, False, info


class Signals(gym.Env[str, str]):
    """Answer with the word that is shown; what is shown most often is a secret of the instructions' last word."""

    instructions = "A lamp is shown. Answer with its colour: red, green or amber."
    observation_space, action_space = AnyText(), AnyText()

    def __init__(self, share: float = 0.7) -> None:
        self.share = share

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.lamp = "amber" if self.np_random.random() < self.share else str(self.np_random.choice(["red", "green"]))
        return f"The lamp is {self.lamp}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        known = action in ("red", "green", "amber")
        right = action == self.lamp
        return "Over.", float(right), True, False, {"success": right, "action_valid": known}


class LongQuestion(gym.Env[str, str]):
    """Ask something in many words, one of which is the answer of two in five questions."""

    observation_space, action_space = AnyText(), AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.answer = "infeasible" if self.np_random.random() < 0.4 else "not among the words"
        words = " ".join(f"word{place}" for place in range(50))
        return f"{words}. Answer 'infeasible' if there is no way. {words.upper()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self.answer
        return "", float(right), True, False, {"success": right}


class Marked(gym.Env[str, str]):
    """Go right twice in six moves, in words that are marked; others end the episode."""

    observation_space, action_space = AnyText(), AnyText()

    def __init__(self, mark: str = "\\boxed{%s}") -> None:
        self.mark = mark

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.turn = 0
        return f"Move 'up', 'left' or 'right', for example {self.mark % 'left'}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        moves = [self.mark % move for move in ("up", "left", "right")]
        self.place += action == moves[2]
        self.turn += 1
        over = action not in moves or self.place == 2 or self.turn == 6
        return "On." if action in moves else "What?", float(self.place == 2), over, False, {"success": self.place == 2}


class Fragile(Corridor):
    """Raises in some episodes."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 1 and self.place == 0:
            raise RuntimeError("not this one")
        return super().step(action)


def budgeted(make: Any, steps: int = 20_000, **more: Any) -> Any:
    return search_blind(make, steps=steps, seconds=60, **{"episodes": 200, **more})


@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans())
def test_a_path_that_is_always_the_same_is_found_without_looking(path: list[int], says: bool) -> None:
    found = budgeted(partial(Corridor, path, says=says))
    assert found.objective == ("success" if says and len(path) else "return")
    assert (found.success.mean if says else found.mean_return.mean) == (1.0 if says else len(path))


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_best_constant_answer_of_an_environment_without_any_list_is_found(share: float) -> None:
    found = budgeted(partial(Signals, share), 5_000)
    assert found.actions[0] == "amber"
    assert found.success.low <= share + 0.05
    assert found.success.high >= share - 0.05


@pytest.mark.parametrize("longest", [1, 1_000])
def test_a_few_steps_are_enough_for_the_answers_that_a_long_question_names(longest: int) -> None:
    found = search_blind(LongQuestion, steps=3_000, episodes=100, longest=longest)
    assert found.actions == ("infeasible",)
    assert found.success.mean is not None
    assert found.success.mean > 0.2


@pytest.mark.parametrize("mark", ["\\boxed{%s}", "[%s]"])
def test_actions_are_marked_as_an_example_in_the_text_is(mark: str) -> None:
    found = search_blind(partial(Marked, mark), steps=3_000, episodes=100)
    assert found.success.mean == 1.0
    assert found.actions == (mark % "right",)


def test_the_same_arguments_find_the_same() -> None:
    make = partial(gym.make, "TrlEnv/LightsOut-v0", difficulty="easy")
    first, again = (budgeted(make, 5_000, seed=3).as_dict() for _ in range(2))
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    json.dumps(first)
    other = budgeted(make, 5_000, seed=4)
    assert other.as_dict() != first


def test_the_search_keeps_to_its_budget_and_says_so() -> None:
    found = budgeted(partial(gym.make, "CartPole-v1"), 3_000, episodes=20)
    assert (found.budget, found.episodes, found.cut) == (3_000, 20, False)
    assert 2_000 < found.steps <= 3_000
    slow = search_blind(partial(gym.make, "CartPole-v1"), steps=10**9, seconds=0.3, episodes=10**6)
    assert slow.cut
    assert slow.seconds < 5
    assert slow.episodes < 10**6
    assert "cut off by time" in describe(slow)


def test_no_held_out_episode_was_searched_in() -> None:
    seen = []

    class Spying(Signals):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            seen.append(seed)
            return super().reset(seed=seed, options=options)

    found = budgeted(Spying, 2_000, episodes=50)
    assert seen[-50:] == [task_seed(0, "eval", number) for number in range(50)]
    assert not set(seen[:-50]) & set(seen[-50:])
    assert found.episodes == 50


class Slow(Signals):
    """Has steps of 20 ms, and no end."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        sleep(0.02)
        return "On and on.", 0.0, False, False, {}


def test_a_slow_environment_is_searched_no_longer_than_it_may_be() -> None:
    found = search_blind(Slow, seconds=0.4)
    assert found.cut
    assert found.seconds < 2
    assert found.episodes == 0
    assert describe(found).endswith("of 200,000: cut off by time)")


def test_training_does_not_wait_for_the_blind_baseline_of_a_slow_environment() -> None:
    began = monotonic()
    assert blind_reference(Slow) is None
    assert monotonic() - began < 30
    found = blind_reference(partial(gym.make, "TrlEnv/GuessNumber-v0"))
    assert found is not None
    assert found.success.mean == pytest.approx(0.121, abs=0.07)
    assert found.episodes == 200


def test_what_an_environment_raises_does_not_end_the_search() -> None:
    found = budgeted(Fragile, 5_000)
    assert found.mean_return.mean == 6
    assert found.actions[0] == 2 or found.actions[0] == "2"


@pytest.mark.parametrize("steps", [1, 30])
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "TrlEnv/LightsOut-v0"])
def test_a_budget_that_allows_little_is_kept_to(env_id: str, steps: int) -> None:
    found = budgeted(partial(gym.make, env_id), steps, episodes=2)
    assert found.steps <= steps
    assert found.episodes == 2


def test_a_budget_that_allows_nothing_is_refused() -> None:
    refused: list[tuple[str, Any, str]] = [
        ("steps", 0, "least 1"),
        ("episodes", 1, "least 2"),
        ("seconds", 0.0, "above 0"),
    ]
    for name, wrong, least in refused:
        with pytest.raises(ConfigError, match=f"{name} must be .*{least}, got {wrong}"):
            search_blind(Corridor, **{name: wrong})


class Coin(TextGame):
    """Heads in three of four games, which is shown."""

    presets: ClassVar = {"medium": {}}
    num_instances, optimal_success = 4, 1.0
    instructions = "Say the side that is shown: heads or tails."

    def deal(self) -> None:
        self.side = "heads" if self.instance else "tails"

    def show(self) -> str:
        return self.side

    def play(self, action: str) -> Step:
        return Step(self.side, done=True, success=action == self.side)

    def reject(self, reason: str) -> Step:
        return Step(reason, done=True, valid=False)

    def legal(self) -> list[str]:
        return ["heads", "tails"]

    def solve(self) -> str:
        return self.side


def test_a_report_has_the_blind_baseline_in_words_and_numbers() -> None:
    from gym_trl.env_checker.inspector import Inspector

    found = Inspector(Coin, 20, search_steps=3_000).look_at("blind baseline")
    assert found.verdict == "ok"
    assert found.got.startswith("solves 0.7")
    assert "always 'heads'" in found.got
    assert found.got.endswith("solver 1.000, optimum 1.000")
    assert found.numbers is not None
    assert (found.numbers["optimum"], found.numbers["actions"]) == (1.0, ["heads"])


@pytest.mark.full
def test_validate_takes_several_ids_and_prints_the_blind_baseline_of_each() -> None:
    ids = ["TrlEnv/GuessNumber-v0", "FrozenLake-v1"]
    ran = run_command_line(["validate", *ids, "--episodes", "4", "--search-steps", "4000"])
    assert ran.exit_code == 0, ran.output
    assert re.search(r"blind baseline +solves [0-9.]+ .*random play", " ".join(ran.output.split()))
    assert ran.output.count("blind baseline") == 2


def test_near_the_optimum_is_most_of_the_way_from_random_play() -> None:
    assert is_near(0.7, 0.5, 0.6875)
    assert not is_near(0.7, 0.5, 1.0)

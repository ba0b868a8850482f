"""The search for a blind baseline: of environments in this repository and of ones that are not."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import gym_trl
from gym_trl.blind import describe, is_near, search_blind
from gym_trl.cli import app
from gym_trl.envs.text_env import Blind, Measured, Outcome, TextEnv, open_loop
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.seeding import task_seed
from gym_trl.spaces import AnyText
from gym_trl.validation import Game, games, measure_blind, search, validate


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


class Fragile(Corridor):
    """Raises in some episodes."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 1 and self.place == 0:
            raise RuntimeError("not this one")
        return super().step(action)


def budgeted(make: Any, steps: int = 20_000, **more: Any) -> Any:
    return search_blind(make, steps=steps, seconds=60, **{"episodes": 200, **more})


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans())
def test_a_path_that_is_always_the_same_is_found_without_looking(path: list[int], says: bool) -> None:
    found = budgeted(partial(Corridor, path, says=says))
    assert found.objective == ("success" if says and len(path) else "return")
    assert (found.success.mean if says else found.mean_return.mean) == (1.0 if says else len(path))


@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(st.sampled_from([0.5, 0.7, 0.9]), st.integers(0, 2**16))
def test_the_best_constant_answer_of_an_environment_without_any_list_is_found(share: float, seed: int) -> None:
    found = budgeted(partial(Signals, share), 5_000, seed=seed)
    assert found.actions[0] == "amber"
    assert found.success.low <= share + 0.05
    assert found.success.high >= share - 0.05


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


def test_what_an_environment_raises_does_not_end_the_search() -> None:
    found = budgeted(Fragile, 5_000)
    assert found.mean_return.mean == 6
    assert found.actions[0] == 2 or found.actions[0] == "2"


def test_a_budget_that_allows_nothing_is_refused() -> None:
    for wrong in ({"steps": 0}, {"episodes": 1}, {"seconds": 0.0}):
        with pytest.raises(ConfigError, match="steps must be at least 1, episodes at least 2 and seconds above 0"):
            search_blind(Corridor, **wrong)
    with pytest.raises(ConfigError, match="at least one action"):
        open_loop(())


class Coin(TextEnv):
    """Heads in three of four games, which is shown."""

    num_instances, optimal_success = 4, 1.0
    instructions = "Say the side that is shown: heads or tails."
    constant_action = "tails"

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self.side = "tails" if instance == 0 else "heads"
        return self.side

    def _act(self, action: str) -> Outcome:
        return Outcome(self.side, done=True, success=action == self.side)

    def _reject(self, reason: str) -> Outcome:
        return Outcome(reason, done=True, valid=False)

    def admissible_actions(self) -> list[str]:
        return ["heads", "tails"]

    def solver(self) -> Any:
        return lambda observation: observation


def test_the_report_on_any_environment_has_the_blind_baseline_in_words_and_in_numbers() -> None:
    from gym_trl.inspection import Inspector

    found = Inspector(Coin, 20, blind_steps=3_000).look_at("blind baseline")
    assert found.verdict == "ok"
    assert found.got.startswith("solves 0.7")
    assert "always 'heads'" in found.got
    assert found.got.endswith("solver 1.000, optimum 1.000")
    assert found.numbers is not None
    assert (found.numbers["optimum"], found.numbers["actions"]) == (1.0, ["heads"])


def test_validate_takes_several_ids_and_prints_the_blind_baseline_of_each() -> None:
    ids = ["TrlEnv/GuessNumber-v0", "FrozenLake-v1"]
    ran = CliRunner().invoke(app, ["validate", *ids, "--episodes", "4", "--blind-steps", "4000", "--jobs", "1"])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("a blind policy solves") == 3
    assert re.search(r"blind baseline +solves [0-9.]+ .*random play", " ".join(ran.output.split()))
    assert ran.output.count(" steps") >= 4


def test_near_the_optimum_is_said() -> None:
    assert is_near(0.7, 0.5, 0.6875)
    assert not is_near(0.7, 0.5, 1.0)
    ran = CliRunner().invoke(app, ["validate", "TrlEnv/KuhnPoker-v0", "--difficulty", "easy", "--blind-steps", "3000"])
    assert "that is near the optimum" in ran.output


# What is published.

EVERY_PRESET = games(sorted(gym_trl.GAMES))
names = [f"{game.env_id}-{game.difficulty}" for game in EVERY_PRESET]
SAMPLE = [Game("TrlEnv/LightsOut-v0", "easy"), Game("TrlEnv/TowerOfHanoi-v0", "easy")]


def published(game: Game) -> dict[str, Blind]:
    return game.make().get_wrapper_attr("blind_baselines")  # type: ignore[no-any-return]


@pytest.mark.parametrize("game", EVERY_PRESET, ids=names)
def test_every_preset_has_a_blind_baseline_that_its_policy_plays(game: Game) -> None:
    env = game.make().unwrapped
    assert isinstance(env, TextEnv)
    found = env.blind_baselines
    assert list(found) == (["success"] if env.reward_modes[0] == "success" else ["success", "return"])
    for objective, one in found.items():
        value = one.measured.success if objective == "success" else one.measured.mean_return
        assert one.low <= value <= one.high
    policy = env.baselines["blind"].policy(0)
    assert [policy("") for _ in range(3)] == [
        found["success"].actions[n % len(found["success"].actions)] for n in range(3)
    ]


def reproduced(game: Game) -> None:
    for objective, one in published(game).items():
        again = measure_blind(game, episodes=one.measured.episodes, steps=one.steps, rounds=one.rounds)[objective]
        assert again.actions == one.actions
        assert again.success.mean == pytest.approx(one.measured.success, abs=1e-6)
        assert again.mean_return.mean == pytest.approx(one.measured.mean_return, abs=1e-6)


def searched_again(game: Game, steps: int) -> None:
    for objective, one in published(game).items():
        kind: Any = objective
        found = search(game, steps=steps, seconds=600, episodes=1_000, seed=77, objective=kind)
        assert found.score.low is not None
        assert found.score.low <= one.high, describe(found)


@pytest.mark.parametrize("game", SAMPLE, ids=str)
def test_what_is_published_is_found_again(game: Game) -> None:
    reproduced(game)


@pytest.mark.full
@pytest.mark.parametrize("game", EVERY_PRESET, ids=names)
def test_what_is_published_of_every_preset_is_found_again(game: Game) -> None:
    reproduced(game)


@pytest.mark.parametrize("game", [*SAMPLE, Game("TrlEnv/Hangman-v0", "easy"), Game("TrlEnv/2048-v0", "easy")], ids=str)
def test_no_blind_policy_beats_the_published_blind_baseline(game: Game) -> None:
    """Of a search with other seeds."""
    searched_again(game, 20_000)


@pytest.mark.full
@pytest.mark.parametrize("game", EVERY_PRESET, ids=names)
def test_no_blind_policy_of_any_preset_beats_the_published_blind_baseline(game: Game) -> None:
    searched_again(game, min(next(iter(published(game).values())).steps, 50_000))


@pytest.mark.parametrize(
    ("env_id", "difficulty", "found_by_hand"),
    [
        ("TrlEnv/FrozenLake-v0", "hard", 0.48),
        ("TrlEnv/FrozenLake-v0", "easy", 0.60),
        ("TrlEnv/TowerOfHanoi-v0", "hard", 0.55),
        ("TrlEnv/ConnectFour-v0", "easy", 0.83),
        ("TrlEnv/KuhnPoker-v0", "easy", 0.70),
        ("TrlEnv/KuhnPoker-v0", "hard", 0.61),
        ("TrlEnv/2048-v0", "hard", 0.29),
        ("TrlEnv/LightsOut-v0", "easy", 0.48),
    ],
)
def test_what_an_audit_found_is_published(env_id: str, difficulty: str, found_by_hand: float) -> None:
    """The audit chose the best of many on the 2,000 episodes that it reports, so that it may be a little lucky."""
    assert published(Game(env_id, difficulty))["success"].high > found_by_hand - 0.02


def test_a_blind_policy_that_beats_what_is_published_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.envs.text_env._blind_baselines", dict)
    game = Game("TrlEnv/LightsOut-v0", "easy")
    missing = validate(game, episodes=20, blind_steps=3_000).problems
    assert missing == ("the blind baseline was never measured: gym-trl validate --measure",)
    numbers = Measured(success=0.1, mean_return=0.1, deviation=0.0, turns=1.0, episodes=9)._asdict()
    low = {"measured": numbers, "low": 0, "high": 0.11}
    table = {"LightsOut": {"easy": {"success": {**low, "steps": 1, "rounds": 1, "actions": ["1 1"]}}}}
    monkeypatch.setattr("gym_trl.envs.text_env._blind_baselines", lambda: table)
    beaten = [one for one in validate(game, episodes=20, blind_steps=5_000).problems if "a blind policy" in one]
    assert "interval is [0.000, 0.110]" in beaten[0]


def test_the_blind_baseline_can_be_played_by_name() -> None:
    found = evaluate("TrlEnv/LightsOut-v0", "blind", env_kwargs={"difficulty": "easy"}, episodes=50)
    assert found.rows[0].success.mean is not None
    assert 0.2 < found.rows[0].success.mean < 0.8

"""The search for a blind baseline: of environments in this repository and of ones that are not."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from hypothesis import Phase, given, settings, strategies as st
from typer.testing import CliRunner

import gym_trl
from gym_trl.cli.app import app
from gym_trl.env_checker.validation import (
    HELD_OUT_SEED,
    MEASURED_BLIND,
    Game,
    games,
    measure_blind,
    validate,
    write_blind,
)
from gym_trl.envs.baselines import Blind, Measured, open_loop
from gym_trl.envs.text_env import Outcome, TextEnv
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import BlindBaseline, blind_reference, describe, is_near, play_blind, search_blind
from gym_trl.evaluation.evaluation import evaluate
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


@pytest.mark.full
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


class Wager(Corridor):
    """One noisy wager; in the mean action 0 is paid 0.3 more than any other."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.np_random.normal(0.3 if action == 0 else 0.0, 1.5))
        return 0, reward, self.np_random.random() < 0.5, False, {}


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_no_constant_policy_beats_what_is_found_where_rewards_are_noisy(seed: int) -> None:
    found = budgeted(Wager, 20_000, seed=seed)
    assert found.actions == ("0",)


@pytest.mark.full
def test_the_best_constant_policy_of_frozen_lake_is_found() -> None:
    """Down wins 0.0495 of the slippery lake; no cycle of up to five moves wins more, and random play wins 0.014."""
    found = budgeted(partial(gym.make, "FrozenLake-v1"), 60_000, episodes=1_000)
    assert found.success.low is not None
    assert found.success.low > 0.014


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
    assert monotonic() - began < 5
    found = blind_reference(partial(gym.make, "TrlEnv/GuessNumber-v0"))
    assert found is not None
    assert (found.success.mean, found.mean_return.mean, found.episodes) == (0.121, 0.121, 2_000)


def test_what_an_environment_raises_does_not_end_the_search() -> None:
    found = budgeted(Fragile, 5_000)
    assert found.mean_return.mean == 6
    assert found.actions[0] == 2 or found.actions[0] == "2"


@pytest.mark.parametrize("steps", [1, 2, 7, 30, 100])
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
    ran = CliRunner().invoke(app, ["validate", *ids, "--episodes", "4", "--search-steps", "4000", "--jobs", "1"])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("a blind policy solves") == 3
    assert re.search(r"blind baseline +solves [0-9.]+ .*random play", " ".join(ran.output.split()))
    assert ran.output.count(" steps") >= 4


def test_near_the_optimum_is_said() -> None:
    assert is_near(0.7, 0.5, 0.6875)
    assert not is_near(0.7, 0.5, 1.0)
    ran = CliRunner().invoke(app, ["validate", "TrlEnv/KuhnPoker-v0", "--difficulty", "easy", "--search-steps", "3000"])
    assert "this is near the optimum" in ran.output


# What is published.

EVERY_PRESET = games(sorted(gym_trl.GAMES))
names = [f"{game.env_id}-{game.difficulty}" for game in EVERY_PRESET]
SAMPLE = [Game(f"TrlEnv/{name}-v0", "easy") for name in ("LightsOut", "TowerOfHanoi", "KuhnPoker")]


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


MOSTLY_NIGHTLY = [
    pytest.param(game, id=name, marks=[] if game in SAMPLE else [pytest.mark.nightly])
    for game, name in zip(EVERY_PRESET, names, strict=True)
]


@pytest.mark.parametrize("game", MOSTLY_NIGHTLY)
def test_what_is_published_is_reached_again(game: Game) -> None:
    for one in published(game).values():
        episodes = one.measured.episodes
        again = play_blind(game.make, one.actions, episodes=episodes, seed=HELD_OUT_SEED)
        assert again.success.mean == pytest.approx(one.measured.success, abs=1e-6)
        assert again.mean_return.mean == pytest.approx(one.measured.mean_return, abs=1e-6)


@pytest.mark.parametrize("game", MOSTLY_NIGHTLY)
def test_no_blind_policy_beats_the_published_blind_baseline(game: Game) -> None:
    """Of a search with other seeds that knows nothing, on the same episodes."""
    for objective, one in published(game).items():
        kind: Any = objective
        steps = 20_000 if game in SAMPLE else min(one.steps, 50_000)
        found = search_blind(game.make, steps=steps, seconds=600, episodes=1_000, seed=77, objective=kind)
        known = replace(found, **play_blind(game.make, one.actions, episodes=found.episodes, seed=77)._asdict())
        if is_better(found, known):  # of two that are equally good, by chance on one of about twenty sets of episodes
            more = partial(play_blind, game.make, episodes=8 * found.episodes, seed=78)
            found, known = (
                replace(each, **more(each.actions)._asdict()) for each in (found, replace(known, actions=one.actions))
            )
            assert not is_better(found, known), describe(found)


def is_better(found: BlindBaseline, known: BlindBaseline) -> bool:
    """Return whether a score is above the interval of another one."""
    assert found.score.mean is not None
    assert known.score.high is not None
    return found.score.mean > known.score.high


@pytest.mark.parametrize("game", MOSTLY_NIGHTLY)
def test_no_constant_policy_beats_the_published_blind_baseline(game: Game) -> None:
    env = game.make()
    env.reset(seed=0)
    for action in (env.get_wrapper_attr("admissible_actions")() or ())[:8]:
        for objective, one in published(game).items():
            reached = play_blind(game.make, [action], episodes=one.measured.episodes, seed=HELD_OUT_SEED)
            level = reached.success.mean if objective == "success" else reached.mean_return.mean
            assert level is not None
            assert level <= one.high, action


@pytest.mark.full
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(st.lists(st.sampled_from(["1 1", "1 2", "2 1", "2 2"]), min_size=2, max_size=6))
def test_measuring_again_never_lowers_what_is_published(actions: list[str]) -> None:
    game = Game("TrlEnv/LightsOut-v0", "easy")
    best = published(game)["success"]
    found = measure_blind(game, episodes=best.measured.episodes, steps=20)["success"]
    assert found.score.mean is not None
    assert found.score.mean >= best.measured.success
    with pytest.MonkeyPatch.context() as patch:
        low = {"measured": best.measured._asdict(), "low": 0, "high": 1, "steps": 1, "rounds": 1, "actions": actions}
        patch.setattr("gym_trl.envs.text_env.searched_baselines", lambda: {"LightsOut": {"easy": {"success": low}}})
        reached = play_blind(game.make, actions, episodes=200, seed=HELD_OUT_SEED).success.mean
        again = measure_blind(game, episodes=200, steps=500)["success"].success.mean
    assert again is not None
    assert reached is not None
    assert again >= reached


def test_what_stays_published_keeps_the_effort_that_found_it(tmp_path: Path) -> None:
    game, path = Game("TrlEnv/LightsOut-v0", "easy"), tmp_path / "blind.json"
    best = published(game)["success"]
    shutil.copy(MEASURED_BLIND, path)
    write_blind(path, game, measure_blind(game, steps=20))
    assert json.loads(path.read_text()) == json.loads(MEASURED_BLIND.read_text())
    assert (best.steps, best.rounds) != (20, 1)


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
    monkeypatch.setattr("gym_trl.envs.text_env.searched_baselines", dict)
    game = Game("TrlEnv/LightsOut-v0", "easy")
    missing = validate(game, episodes=20, search_steps=3_000).problems
    assert missing == ("the blind baseline was never measured: gym-trl validate --measure",)
    numbers = Measured(success=0.1, mean_return=0.1, deviation=0.0, turns=1.0, episodes=9)._asdict()
    low = {"measured": numbers, "low": 0, "high": 0.11}
    table = {"LightsOut": {"easy": {"success": {**low, "steps": 1, "rounds": 1, "actions": ["1 1"]}}}}
    monkeypatch.setattr("gym_trl.envs.text_env.searched_baselines", lambda: table)
    beaten = [one for one in validate(game, episodes=20, search_steps=5_000).problems if "a blind policy" in one]
    assert "interval is [0.000, 0.110]" in beaten[0]


def test_the_blind_baseline_can_be_played_by_name() -> None:
    found = evaluate("TrlEnv/LightsOut-v0", "blind", env_kwargs={"difficulty": "easy"}, episodes=50)
    assert found.rows[0].success.mean is not None
    assert 0.2 < found.rows[0].success.mean < 0.8

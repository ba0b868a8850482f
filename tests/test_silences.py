"""Law 27: no training runs for nothing in silence."""

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from support import tiny_trainer
from trl import GRPOConfig, GRPOTrainer

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, GymTRLError
from gym_trl.grpo.alarms import check_openings
from gym_trl.types import StepResult, Task

HERE = Path(__file__)
LINE = rf"{HERE.name}:\d+"


class Fair(gym.Env[str, str]):
    """Environment that begins as its seed says, and takes any answer."""

    observation_space, action_space = spaces.Text(99), spaces.Text(99)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"A number: {self.np_random.integers(10**9)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "over", float(len(action)), True, False, {}


class NoKey(Fair):
    calls = 0

    def step(self, action: str) -> Any:
        NoKey.calls += 1
        raise KeyError(f"API_KEY in call {NoKey.calls}")  # the message differs from episode to episode


class NoServer(Fair):
    def reset(self, **given: Any) -> Any:
        raise ConnectionError("API_KEY is refused")


class Sometimes(Fair):
    calls = 0

    def step(self, action: str) -> Any:
        Sometimes.calls += 1
        if Sometimes.calls % 4:
            raise KeyError("API_KEY")
        return super().step(action)


class Changing(Fair):
    calls = 0

    def step(self, action: str) -> Any:
        Changing.calls += 1
        raise [KeyError, ValueError][(Changing.calls - 1) // 4 % 2]("another exception in each rollout of four")


class Global(Fair):
    def reset(self, **given: Any) -> Any:
        super().reset(**given)
        return f"A number: {random.SystemRandom().random()}", {}


class Nondeterministic(Global):
    """Registered as what it is."""


class BrokenNowAndThen(Fair):
    calls = 0

    def reset(self, **given: Any) -> Any:
        BrokenNowAndThen.calls += 1
        if BrokenNowAndThen.calls % 3 == 0:
            raise ConnectionError("no server")
        return super().reset(**given)


class MostlyBroken(Fair):
    calls = 0

    def step(self, action: str) -> Any:
        MostlyBroken.calls += 1
        if MostlyBroken.calls % 4:
            raise ConnectionError("no server")
        return super().step(action)


SIZES = {"per_device_train_batch_size": 4, "num_generations": 2, "max_steps": 4, "max_completion_length": 256}


def made(folder: Path, env: Any, *, stock: bool = False, grpo: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a trainer of the tiny model."""
    usual = {"num_tasks": 16, "max_tokens_per_turn": 2, "action_format": "open"}
    spec = GymSpec(env, **{**usual, **options})
    return tiny_trainer.make(folder, spec, GRPOTrainer if stock else GymGRPOTrainer, grpo=SIZES | (grpo or {}))


@pytest.mark.parametrize("source", ["tasks", "rows"])
def test_fewer_tasks_than_a_generation_has_groups_are_refused_before_the_model_is_loaded(
    tmp_path: Path, source: str
) -> None:
    if source == "tasks":
        spec, rows, tasks, groups = GymSpec(Fair, num_tasks=3), 16, 3, 4
    else:
        data = [{"question": f"{number} + 1?", "answer": number + 1} for number in range(5)]
        spec, rows, tasks, groups = GymSpec.from_dataset(data, prompt="question", answer="answer"), 32, 5, 8
    args = GRPOConfig(str(tmp_path), per_device_train_batch_size=rows, num_generations=4, use_cpu=True, bf16=False)
    with pytest.raises(ConfigError, match=rf"num_tasks\D+{tasks}\D.*\D{groups}\D"):
        GymGRPOTrainer(model="no/such-model", args=args, spec=spec)


def test_as_many_tasks_as_a_generation_has_groups_are_enough(tmp_path: Path) -> None:
    grpo = {"per_device_train_batch_size": 8, "max_steps": 1}
    assert made(tmp_path, Fair, num_tasks=4, grpo=grpo).train().global_step == 1


def test_a_temperature_of_zero_is_refused_by_its_name(tmp_path: Path) -> None:
    """All members of a group would play alike, and TRL divides by it."""
    with pytest.raises(ConfigError, match="temperature"):
        made(tmp_path, Fair, grpo={"temperature": 0.0})
    with pytest.raises(ConfigError, match="temperature"):
        made(tmp_path, Fair, stock=True, grpo={"temperature": 0.0}).train()


def test_an_evaluation_without_tasks_or_of_parts_of_groups_is_refused_when_the_trainer_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_eval_tasks"):
        made(tmp_path, Fair, num_eval_tasks=0, grpo={"eval_strategy": "steps"})
    with pytest.raises(ConfigError, match="per_device_eval_batch_size"):
        made(tmp_path, Fair, num_eval_tasks=2, grpo={"num_generations_eval": 4, "per_device_eval_batch_size": 2})


@pytest.mark.parametrize(("group", "batch"), [(4, 2), (16, 8)])  # 8 is TRL's default
def test_an_evaluation_whose_batch_no_group_of_training_fits_has_smaller_groups(
    tmp_path: Path, group: int, batch: int
) -> None:
    grpo = {"num_generations": group, "per_device_train_batch_size": group, "per_device_eval_batch_size": batch}
    trainer = made(tmp_path, Fair, num_eval_tasks=3, grpo=grpo)
    assert trainer.evaluate()["eval_env/unscored"] == 0.0
    assert trainer.num_generations_eval == batch


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("env", [NoKey, NoServer])
def test_three_rollouts_that_end_with_one_exception_stop_the_training_with_it(
    tmp_path: Path, env: Any, stock: bool
) -> None:
    trainer = made(tmp_path, env, stock=stock)
    with pytest.raises(GymTRLError, match=rf"API_KEY.*{LINE}.*gym-trl check \S*{env.__name__}"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_three_rollouts_of_mostly_unscored_episodes_stop_the_training(tmp_path: Path, stock: bool) -> None:
    trainer = made(tmp_path, MostlyBroken, stock=stock)
    with pytest.raises(GymTRLError, match=r"unscored.*no server"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("env", [Sometimes, Changing])
def test_episodes_that_fail_in_another_way_stop_nothing(tmp_path: Path, env: Any) -> None:
    assert made(tmp_path, env).train().global_step == 4


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
def test_a_group_whose_members_begin_differently_is_refused(tmp_path: Path, stock: bool) -> None:
    trainer = made(tmp_path, Global, stock=stock)
    with pytest.raises(ConfigError, match=r"np_random.*gym-trl check \S*Global"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("seat", [0, 1])
def test_only_the_seat_that_begins_must_begin_alike(seat: int) -> None:
    """Law 6: what another seat is shown first depends on what the first one did."""
    games = []
    for shown in ("a", "b"):
        game = [Episode(Task("Game-v0", 0), number) for number in range(2)]
        for number, one in enumerate(game):
            one.begin(StepResult(shown if number == seat else "the same", info={"to_move": 0}))
            one.answer("go")
        games.append(game)
    with pytest.raises(ConfigError) if seat == 0 else nullcontext():
        check_openings([0, 0], games)


def test_an_environment_that_is_registered_as_nondeterministic_may_begin_differently(tmp_path: Path) -> None:
    gym.register("Tests/Nondeterministic-v0", lambda **_: Nondeterministic(), nondeterministic=True)
    try:
        assert made(tmp_path, "Tests/Nondeterministic-v0", grpo={"max_steps": 1}).train().global_step == 1
    finally:
        del gym.registry["Tests/Nondeterministic-v0"]


LEVELS = [{"high": 10}, {"high": 50}]


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (BrokenNowAndThen, {}),
        ("TrlEnv/KuhnPoker-v0", {"seats": "self"}),
        ("TrlEnv/TicTacToe-v0", {"seats": "self", "turn_limit": 3}),
        ("TrlEnv/GuessNumber-v0", {"curriculum": LEVELS, "turn_limit": 2}),
    ],
)
def test_resets_that_fail_seats_and_levels_raise_no_false_alarm(
    tmp_path: Path, env: Any, options: dict[str, Any]
) -> None:
    assert made(tmp_path, env, **options, grpo={"max_steps": 3}).train().global_step == 3

import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support import slow_policy
from support.episodes import ended

from gym_trl.cli.app import main
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError, PolicyError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import (
    Score,
    optimum,
    play_tasks,
    random_reference,
)
from gym_trl.evaluation.scores import Row, Scoreboard
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.grpo.spec import GymSpec
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.records.files import read_records
from gym_trl.records.schema import Record
from gym_trl.rollout import Limits, rollout, run
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine, save_tiny
from gym_trl.training.findings import Played, scores
from gym_trl.training.options import choose
from gym_trl.training.references import references
from gym_trl.types import Task

GUESS_ID = "TrlEnv/GuessNumber-v0"
GUESS = [Task("TrlEnv/GuessNumber-v0", seed, {"instance": seed}) for seed in range(50)]


class Bare(gym.Env[str, str]):
    """Environment of somebody else: text, and nothing that this library adds."""

    def __init__(self, turns: float = 1) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.turns = turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.left = self.turns
        return "Go.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "raise":
            raise RuntimeError("it broke")
        if action == "cut":
            raise ConnectionError("the line was cut")
        self.left -= 1
        return "On.", 1.0, self.left == 0 and action == "win", self.left == 0 and action != "win", {}


BARE = [Task("Bare-v0", seed) for seed in range(4)]


def test_the_solver_reaches_the_optimum() -> None:
    score = Score.of(play_tasks(gym.make, GUESS, lambda env: env.get_wrapper_attr("solver")()))
    assert (score.success, score.mean_return, score.episodes, score.unscored) == (1.0, 1.0, 50, 0)
    assert score.turns == pytest.approx(4.86)
    assert optimum(GuessNumber()).success == 1.0
    assert optimum(GuessNumber(turns=5)).success == 0.62


def test_random_play_is_as_good_as_chance_and_repeats_itself() -> None:
    def play(seed: int) -> Score:
        number = count(seed)
        policy = lambda env: env.get_wrapper_attr("random_policy")(next(number))  # noqa: E731
        return Score.of(play_tasks(gym.make, GUESS * 20, policy))

    score = play(1)
    chance = 1 - (49 / 50) ** 6
    assert score.success == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / score.episodes))
    assert score == play(1) != play(2)


def test_random_play_is_one_number_of_as_many_episodes_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """In info, train and doctor, whatever the seeds and the tasks of a run are."""
    for env_kwargs in ({"high": 8, "turns": 4}, {"difficulty": "easy"}):
        known = random_reference(partial(gym.make, **env_kwargs), GUESS_ID)
        assert known is not None
        options = choose(GUESS_ID, seed=9, eval_episodes=8)
        found = references(replace(options, env_kwargs=env_kwargs))
        assert (found["success_random"], found["episodes_random"]) == (known.success.mean, known.episodes)
        main(["info", GUESS_ID, *(f"--env-kwargs={name}={value}" for name, value in env_kwargs.items())])
        assert f"random policy {known}\n" in capsys.readouterr().out
        lost = ended(0.0, success=False, task=Task(GUESS_ID, 0))
        told = scores(Played([lost], group_size=1, ends=()), found).got
        assert f"success 0.000 of 1 episodes (random {known.success.mean:.3f} of {known.episodes:,} episodes" in told


def test_an_environment_that_raised_is_not_played_again() -> None:
    made: list[Bare] = []

    class Closing(Bare):
        def close(self) -> None:
            closed.append(made.index(self))
            raise RuntimeError("and it does not close")

    def make(env_id: str) -> Bare:
        made.append(Closing() if not made else Bare())
        return made[-1]

    words = iter(["raise", "win", "win", "win"])
    used: list[int] = []
    closed: list[int] = []

    def policy_for(env: Any) -> Any:
        used.append(made.index(env))
        return lambda observation: next(words)

    play_tasks(make, BARE, policy_for)
    assert (used, closed) == ([0, 1, 1, 1], [0])


# ---------------------------------------------------------------------------------------------------------------------
# evaluate
# ---------------------------------------------------------------------------------------------------------------------

Keys = list[tuple[Any, ...]]


def without_clock(record: Record) -> dict[str, Any]:
    return {**record, "model_seconds": None, "env_seconds": None}


def keys(folder: Path) -> Keys:
    return sorted((one["policy"], one["task"]["id"], one["attempt"]) for one in read_records(folder))


def tables(rows: list[Row]) -> list[Row]:
    """Return the part of a record that does not depend on how fast the machine was."""
    return [replace(row, model_seconds=None, env_seconds=None) for row in rows]


def test_every_policy_plays_the_same_games_which_training_never_sees(tmp_path: Path) -> None:
    evaluate(GUESS_ID, ["solver", "random"], episodes=60, attempts=3, seed=5, out=tmp_path)
    records = list(read_records(tmp_path))
    played = {name: [one["task"] for one in records if one["policy"] == name] for name in ("solver", "random")}
    assert played["solver"] == played["random"]
    seeds = {one["task"]["seed"] for one in records}
    assert len(seeds) == 20
    for seed in (0, 5):
        spec = GymSpec(GUESS_ID, num_tasks=2_000, seed=seed)
        assert not seeds & {task.seed for task in spec.tasks("train")}
    assert Counter(one["attempt"] for one in records) == {0: 40, 1: 40, 2: 40}
    assert all(one["group"] == index // 3 % 20 for index, one in enumerate(records))


def test_a_longer_evaluation_begins_with_the_games_of_a_shorter_one(tmp_path: Path) -> None:
    short = evaluate(GUESS_ID, "random", episodes=40, out=tmp_path)
    longer = evaluate(GUESS_ID, "random", episodes=100, out=tmp_path)
    assert (short.played, longer.played, longer.rows[0].episodes) == (40, 60, 100)
    assert tables(longer.rows) == tables(evaluate(GUESS_ID, "random", episodes=100).rows)


def test_what_is_done_is_not_played_again_and_other_policies_add_to_the_folder(tmp_path: Path) -> None:
    first = evaluate(GUESS_ID, "solver", episodes=30, out=tmp_path)
    again = evaluate(GUESS_ID, "solver", episodes=30, out=tmp_path)
    both = evaluate(GUESS_ID, "random", episodes=30, out=tmp_path)
    assert (first.played, again.played, both.played) == (30, 0, 30)
    assert again.rows == first.rows
    assert [row.policy for row in both.rows] == ["random", "solver"]


@pytest.mark.parametrize(("changed", "said"), [({"seed": 1}, "seed=0, not 1"), ({"attempts": 2}, "attempts=1, not 2")])
def test_a_folder_of_other_settings_is_refused(tmp_path: Path, changed: dict[str, int], said: str) -> None:
    evaluate(GUESS_ID, "solver", episodes=4, out=tmp_path)
    with pytest.raises(ConfigError, match=said):
        evaluate(GUESS_ID, "solver", episodes=4, out=tmp_path, **changed)  # type: ignore[arg-type]


def test_the_folder_of_a_training_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"version": 1, "options": {}}')
    with pytest.raises(ConfigError, match="is not the configuration of an evaluation"):
        evaluate(GUESS_ID, "solver", episodes=4, out=tmp_path)


def test_two_processes_do_not_evaluate_into_one_folder(tmp_path: Path) -> None:
    def while_it_plays(record: Record, board: Scoreboard) -> None:
        with pytest.raises(ConfigError, match="another process is evaluating into"):
            evaluate(GUESS_ID, "solver", episodes=2, out=tmp_path)

    assert evaluate(GUESS_ID, "solver", episodes=2, out=tmp_path, on_episode=while_it_plays).played == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
        ({"episodes": 10, "attempts": 4}, "episodes must be a multiple of attempts=4, got 10"),
        ({"policy": ["solver", "solver"]}, "policies must have different names"),
        ({"policy": "nothing:here"}, "'nothing:here' names no function"),
        ({"policy": "http://localhost:1"}, "is a server"),
        ({"env": "TrlEnv/Gues-v0"}, "there is no environment 'TrlEnv/Gues-v0'"),
        ({"env_kwargs": {"high": 3, GUESS_ID: {}}, "env": [GUESS_ID, "TrlEnv/Echo-v0"]}, "'high' is none of the ids"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_anything_is_played(
    arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        evaluate(**{"env": GUESS_ID, "policy": "solver", "out": tmp_path / "new", **arguments})
    assert not (tmp_path / "new").exists()


def test_failures_of_environments_and_connections_are_played_again(tmp_path: Path) -> None:
    gym.register("Tests/Bare-v0", "test_evaluation:Bare")
    broken = True

    def policy_for(env: Any) -> Any:
        answers = iter(["cut" if broken else "win", "on", "win"])

        def policy(observation: str) -> str:
            if broken and next(numbers) % 2:
                raise ConnectionError("no answer")
            return next(answers)

        return policy

    numbers = iter(range(99))
    try:
        failed = evaluate("Tests/Bare-v0", policy_for, episodes=6, out=tmp_path)
        [row] = failed.rows
        assert (row.episodes, row.unscored, row.stop_reasons) == (0, 6, {"cancelled": 3, "env_error": 3})
        assert {f"{one['error']}".partition(" (")[0] for one in read_records(tmp_path)} == {
            "step raised ConnectionError: the line was cut",
            "the policy 'policy_for' raised ConnectionError: no answer",
        }
        assert [[turn["answer"] for turn in one["turns"]] for one in read_records(tmp_path)] == [["cut"], []] * 3
        broken = False
        assert evaluate("Tests/Bare-v0", policy_for, episodes=6, out=tmp_path).played == 0
        again = evaluate("Tests/Bare-v0", policy_for, episodes=6, out=tmp_path, retry=True)
        assert (again.played, again.rows[0].episodes, again.rows[0].unscored) == (6, 6, 0)
        assert len(keys(tmp_path)) == len(set(keys(tmp_path))) == 6
    finally:
        del gym.registry["Tests/Bare-v0"]


# ---------------------------------------------------------------------------------------------------------------------
# Policies with a bug
# ---------------------------------------------------------------------------------------------------------------------


def of_the_observation(observation: Any) -> str:
    return "win" if "Go" in str(observation) else "on"


def of_numbers(env: Any) -> Any:
    return lambda observation: 3


def of_a_mistake(env: Any) -> Any:
    return lambda observation: str(1 / 0)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (of_the_observation, "'of_the_observation' must return a function from observation to action when .* got 'on'"),
        (of_numbers, "'of_numbers' must return an action as text, got 3 of type int"),
        (of_a_mistake, r"'of_a_mistake' raised ZeroDivisionError: .*test_evaluation.py, line \d+.*1 / 0"),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_policy_with_a_bug_stops_the_evaluation_by_its_name_and_line(
    policy: Any, said: str, concurrency: int
) -> None:
    played = TextPolicy(policy.__name__, lambda env, seed: policy(env), concurrency)
    with pytest.raises(PolicyError, match=said):
        evaluate(Bare, played, episodes=4)


# ---------------------------------------------------------------------------------------------------------------------
# One table, one set of rules
# ---------------------------------------------------------------------------------------------------------------------


class Rarely(gym.Env[str, str]):
    """Environment that says that an episode was solved, and of all others nothing."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "Go.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "On.", 0.0, action in "ab", action == "c", {"success": True} if action == "a" else {}

    def solver(self) -> Any:
        return lambda observation: "a"


def saying(*actions: str) -> Any:
    """Policy whose episodes say one of these actions each, in turn."""
    said = iter(actions * 99)

    def policy(env: Any) -> Any:
        action = next(said)
        return lambda observation: action

    policy.__name__ = f"saying_{'_'.join(actions)}"
    return policy


def test_one_success_in_any_row_makes_all_other_episodes_failures() -> None:
    """Terminated, truncated, or ended by too many actions that say nothing."""
    [rare, never] = evaluate(Rarely, [saying(*"abbcbccbcb"), saying("b")], episodes=20).rows
    assert (rare.success.mean, rare.episodes) == (0.1, 20)
    assert (never.success.mean, never.episodes) == (0.0, 20)
    [alone] = evaluate(Rarely, saying("b"), episodes=5).rows
    assert alone.success.mean is None


def cliff(env: Any) -> Any:
    moves = iter(["move up", *["move right"] * 11, "move down"])
    return lambda observation: next(moves)


def test_a_definition_of_success_holds_for_every_kind_of_policy(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    policies: list[Any] = [Model(str(tmp_path), max_tokens_per_turn=2, max_completion_length=60, label="tiny"), cliff]
    rows = evaluate("CliffWalking-v1", policies, episodes=3, success=-13, turn_limit=13).rows
    assert {row.policy: row.success.mean for row in rows} == {"cliff": 1.0, "tiny": 0.0}


def test_limits_are_those_of_all_rows() -> None:
    words = {"solver": 2.0, "random": 2.0, "saying_50": 2.0}
    rows = evaluate(GUESS_ID, ["solver", "random", saying("50")], episodes=3, turn_limit=2).rows
    assert {row.policy: row.turns for row in rows} == words
    [row] = evaluate(GUESS_ID, saying("what?"), episodes=3, invalid_penalty=0.5, end_after_invalid=2).rows
    lost = -0.5 * 6  # what all turns without an action would have cost
    assert (row.mean_return.mean, row.turns, row.stop_reasons) == (lost, 2.0, {"invalid": 3})


def test_all_rows_have_the_limits_of_the_models_training(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    def turns(*given_options: dict[str, Any], **given: Any) -> float | None:
        short = Model(str(tmp_path), max_tokens_per_turn=1, max_completion_length=90)
        models: list[Any] = [
            short.changed(label=f"tiny {number}", **options) for number, options in enumerate(given_options)
        ]
        rows = evaluate("TrlEnv/Echo-v0", [*models, saying("b")], episodes=1, env_kwargs={"turns": 9}, **given).rows
        return next(row.turns for row in rows if row.policy == "saying_b")

    assert turns({"turn_limit": 2}) == 2
    assert turns({"turn_limit": 2}, {"turn_limit": 2, "history": 1}) == 2
    assert turns({"turn_limit": 2}, {}) == 2
    assert turns({"turn_limit": 2}, {"turn_limit": 3}, turn_limit=4) == 4
    with pytest.raises(ConfigError, match=r"no turn_limit .*\(turn_limit=2 for tiny 0 and turn_limit=3"):
        turns({"turn_limit": 2}, {"turn_limit": 3})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"turn_limt": 2}, "there is no option turn_limt; did you mean 'turn_limit'?"),
        ({"seats": "self"}, "there is no option seats"),
        ({"fail_under": 0.5}, "fail_under is not an option of evaluate"),
        ({"history": 2}, "history requires a model in this process, and 'solver' is none"),
        ({"step_timeout": 1.0}, "step_timeout requires a model in this process"),
    ],
)
def test_an_option_that_does_nothing_is_refused_for_every_policy(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        evaluate(GUESS_ID, ["solver", saying("1")], episodes=1, **options)


class OfAnotherSpec(Bare):
    """Environment that knows what the user has done wrong."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        if self.where == "reset":
            raise ConfigError("folder must be a folder with tasks")
        return super().reset()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise ConfigError("folder must be a folder with tasks")


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_users_mistake_is_raised_by_whoever_plays(where: str) -> None:
    """And is no failure of the infrastructure: in evaluations, rollouts and all executors."""
    chat, said = ByteChat(), r"^folder must be a folder with tasks$"
    with pytest.raises(ConfigError, match=said):
        evaluate(OfAnotherSpec, saying("a"), episodes=2, env_kwargs={"where": where})
    for executor in ("inline", "thread", "process"):
        stepping = ExecutorConfig(executor=executor)
        engine = ScriptedEngine(lambda request: chat.say("a"))
        with (
            make_pool(lambda env_id: OfAnotherSpec(where), stepping) as pool,
            pytest.raises(ConfigError, match=said),
        ):
            run(rollout(BARE, pool=pool, engine=engine, chat=chat, limits=Limits(tokens_per_turn=9)))


class Waits(gym.Env[str, str]):
    """Text that takes its time; counts how many are waited for at once."""

    lock, now, most = threading.Lock(), 0, 0

    def __init__(self, seconds: float = 0.03) -> None:
        self.observation_space, self.action_space, self.seconds = AnyText(), AnyText(), seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return f"Go {self.np_random.integers(1000)}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        with Waits.lock:
            Waits.now += 1
            Waits.most = max(Waits.most, Waits.now)
        time.sleep(self.seconds)
        with Waits.lock:
            Waits.now -= 1
        self.turn += 1
        return f"On {self.np_random.integers(1000)}.", 1.0, self.turn == 3, False, {"success": True}


@pytest.fixture
def waits() -> Iterator[None]:
    gym.register("Tests/Waits-v0", Waits)  # type: ignore[arg-type]
    Waits.most = 0
    yield
    del gym.registry["Tests/Waits-v0"]


def test_a_policy_of_the_users_plays_one_episode_after_the_other(waits: None) -> None:
    assert evaluate("Tests/Waits-v0", lambda env: str.upper, episodes=3).rows[0].episodes == 3
    assert Waits.most == 1


def test_threads_play_what_one_plays(tmp_path: Path) -> None:
    def make(env: Any, seed: int) -> Any:
        return env.get_wrapper_attr("random_policy")(seed)

    alone, together = (TextPolicy("random", make, concurrency=count) for count in (1, 9))
    names = {"alone": alone, "together": together}
    for name, player in names.items():
        evaluate(GUESS_ID, player, episodes=200, out=tmp_path / name)
    first, second = (
        sorted(map(str, map(without_clock, read_records(tmp_path / one)))) for one in ("alone", "together")
    )
    assert first == second


def eval_command(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "gym_trl", "eval", GUESS_ID, "--out", str(folder), *options]
    return subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ONE_THREAD
    )


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}


def kill_after(process: "subprocess.Popen[bytes]", folder: Path, lines: int, seconds: float) -> None:
    """Send SIGKILL when so many more episodes are written, and a moment later."""
    path, deadline = folder / "rollouts.jsonl", time.monotonic() + 120
    before = path.read_bytes().count(b"\n") if path.exists() else 0
    while not path.exists() or path.read_bytes().count(b"\n") < before + lines:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    assert process.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.full
@pytest.mark.processes
def test_an_evaluation_killed_three_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """A thousand episodes by the command line: the same command again and again, until it ends by itself."""
    options = ["--policy", "support.slow_policy:solver", "--episodes", "1000", "--attempts", "2"]
    rng = random.Random(0)
    for kill in range(3):
        kill_after(eval_command(tmp_path, *options), tmp_path, rng.randint(0, 30), rng.uniform(0, 0.01))
        if kill == 1:  # a machine that dies with the process tears a line
            with (tmp_path / "rollouts.jsonl").open("ab") as file:
                file.write(b'{"version": 1, "task": {"id"')
    before = len(list(read_records(tmp_path)))
    assert 0 < before < 1000
    assert eval_command(tmp_path, *options).wait(timeout=120) == 0
    assert len(keys(tmp_path)) == len(set(keys(tmp_path))) == 1000
    player = TextPolicy("support.slow_policy:solver", lambda env, seed: slow_policy.solver(env))
    undisturbed = evaluate(GUESS_ID, player, episodes=1000, attempts=2)
    assert tables(Scoreboard(read_records(tmp_path)).rows()) == tables(undisturbed.rows)

"""Games as objects with tools: alone, in the real GRPOTrainer's own tool loop, and in TRL's asynchronous worker."""

import gc
import inspect
import json
import pickle
import re
import runpy
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support import warm
from support.lanes import examples

from gym_trl import GymSpec
from gym_trl.envs.text_env import Outcome, TextEnv
from gym_trl.errors import ConfigError, TaskError
from gym_trl.grpo.environment_factory import EnvironmentFactory
from gym_trl.grpo.rewards import env_reward
from gym_trl.grpo.totals import Row, StepTotals
from gym_trl.options import Curriculum
from gym_trl.testing import tiny_model
from gym_trl.types import StopReason

GUESS, WORDLE, ECHO = "TrlEnv/GuessNumber-v0", "TrlEnv/Wordle-v0", "TrlEnv/Echo-v0"
SCRIPT = Path(__file__).parent / "train_with_tools.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tools.py"
PENALTY, TURNS = 0.25, 4
needs_trl = [pytest.mark.trl, pytest.mark.processes, pytest.mark.full]


def guess(**options):
    return GymSpec(GUESS, env_kwargs={"high": 8, "turns": TURNS}, num_tasks=16, **options)


def tools(game):
    """As GRPOTrainer lists them (trl 1.16)."""
    functions = inspect.getmembers(type(game), predicate=inspect.isfunction)
    return [name for name, _ in functions if name not in ("reset", "get_reward") and not name.startswith("_")]


def row_of(spec, secret):
    rows = spec.train_dataset
    return next(row for row in rows if json.loads(row["prompt"][-1]["task"])["options"]["instance"] == secret - 1)


def begun(spec, secret=4):
    """Return an object in the game of a secret."""
    game = spec.environment_factory()
    game.reset(**row_of(spec, secret))
    return game


def halve(game):
    low, high = 1, 8
    answers: list[str] = []
    while not answers or "over" not in answers[-1]:
        middle = (low + high) // 2
        answers.append(game.guess(number=middle))
        low, high = (middle + 1, high) if answers[-1] == "Higher." else (low, middle - 1)
    return answers


class Fragile(TextEnv):
    """Breaks where it is told to."""

    num_instances, optimal_success, constant_action = None, 1.0, "go"
    instructions = "Go."
    option_names = frozenset({"breaks"})
    open = 0

    def __init__(self, **options):
        super().__init__(**options)
        Fragile.open += 1

    def close(self):
        Fragile.open -= 1

    def _start(self, instance, options):
        self.breaks = options.get("breaks")
        if self.breaks == "reset":
            raise RuntimeError("no display")
        return "Ready."

    def _act(self, action):
        if self.breaks == "step":
            raise RuntimeError("it fell over")
        return Outcome("There.", done=True, success=True)

    def _reject(self, reason):
        return Outcome(reason, valid=False)

    def solver(self):
        return lambda observation: "go"


class Hanging(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        env.unwrapped.turns = 2

    def step(self, action):
        if action == "hang":
            time.sleep(3)
        return super().step(action)


def fragile(breaks, name="Fragile-v0"):
    factory = EnvironmentFactory(lambda env_id: Fragile(), name)
    task = json.dumps({"env_id": name, "seed": 1, "options": {"breaks": breaks} if breaks else {}})
    return factory(), {"prompt": [{"role": "user", "content": "", "task": task}]}


class TestTheObject:
    def test_a_model_is_shown_the_environments_own_tools_and_nothing_else(self):
        assert tools(guess().environment_factory()) == ["guess"]
        assert tools(GymSpec(ECHO).environment_factory()) == ["act"]
        assert tools(GymSpec("FrozenLake-v1").environment_factory()) == ["act"]

    @pytest.mark.parametrize(("env_id", "argument", "kind"), [(GUESS, "number", "integer"), (WORDLE, "word", "string")])
    def test_its_tools_have_schemas_of_their_own(self, env_id, argument, kind):
        from transformers.utils import get_json_schema

        schema = get_json_schema(GymSpec(env_id).environment_factory().guess)["function"]
        assert schema["name"] == "guess"
        assert schema["description"].startswith("Guess the secret")
        properties = schema["parameters"]["properties"]
        assert {name: about["type"] for name, about in properties.items()} == {argument: kind}
        assert properties[argument]["description"]

    @given(st.integers(1, 8), st.lists(st.integers(-1, 9), max_size=8))
    @examples(60)
    def test_calls_are_steps_of_the_environment(self, secret, numbers):
        """A call answers and pays as ``step`` does; after the end nothing is paid, and it is counted."""
        spec = guess(invalid_penalty=PENALTY)
        game, env = spec.environment_factory(), replace(spec.env_spec, action_format="plain").make(GUESS)
        game.reset(**row_of(spec, secret))
        env.reset(seed=0, options={"instance": secret - 1})
        paid, over, late = 0.0, False, 0
        for number in numbers:
            said = game.guess(number=number)
            if over:
                assert said == "The game is over."
                late += 1
                continue
            observation, reward, over, _, _ = env.step(str(number))
            paid += float(reward)
            assert said == (f"{observation} The game is over." if over else observation)
        assert game.get_reward() == pytest.approx(paid - (0 if over else PENALTY * (TURNS - len(numbers))))
        column = game._column()
        assert (column["calls_after_end"], column["num_turns"]) == (late, len(numbers) - late)
        assert (column["stop_reason"] == "unfinished") is not over

    def test_the_prompt_and_what_reset_adds_say_what_a_rollout_says(self):
        """But for the sentence on how to mark an action in an answer."""
        spec = guess(system_prompt="Be brief.", action_format="boxed")
        row = row_of(spec, 3)
        prompt = row["prompt"][-1]["content"] + spec.environment_factory().reset(**row)
        env = spec.make(GUESS)
        observation, _ = env.reset(options={"instance": 2})
        marked = f"{env.get_wrapper_attr('instructions')}\n\n{observation}"
        assert prompt == marked.replace(" Put your action in \\boxed{...}.", "")
        assert "box" not in prompt

    def test_an_object_is_used_again_and_remembers_nothing(self):
        spec = guess()
        game = spec.environment_factory()
        for secret in (1, 8, 5):
            game.reset(**row_of(spec, secret))
            halve(game)
            assert game.get_reward() == 1.0
            assert game._column()["num_turns"] == {1: 3, 8: 4, 5: 3}[secret]

    def test_a_game_that_is_left_costs_what_the_spec_says(self):
        """As an invalid action in each turn that is left; otherwise a model that loses would learn not to play."""
        game = begun(guess(invalid_penalty=PENALTY))
        assert [game.get_reward(), game.get_reward()] == [-TURNS * PENALTY] * 2

    @pytest.mark.parametrize("arguments", [{}, {"word": "four"}, {"number": "four"}, {"number": 4, "self": 1}])
    def test_arguments_that_do_not_fit_are_an_error_and_no_turn(self, arguments):
        game = begun(guess())
        with pytest.raises(TypeError, match=r"number|self"):
            game.guess(**arguments)
        assert game._column()["num_turns"] == 0

    @pytest.mark.parametrize("breaks", ["reset", "step"])
    def test_a_crash_by_a_call_is_scored_and_a_failed_reset_is_not(self, breaks):
        game, row = fragile(breaks)
        added = game.reset(**row)
        assert ("failed" in added) == (breaks == "reset")
        if breaks == "step":
            assert game.act("go") == "The environment failed, which ended the game."
        assert game.act("go") == "The game is over."
        unscored = pytest.warns(RuntimeWarning, match=r"is unscored, .*give it reward_funcs=spec.reward_funcs")
        with unscored if breaks == "reset" else nullcontext():
            assert game.get_reward() == (None if breaks == "reset" else 0.0)
        assert game._column()["stop_reason"] == (StopReason.ENV_ERROR if breaks == "reset" else StopReason.CRASHED)
        game.reset(**fragile(None)[1])
        assert game.act("go") == "There. The game is over."
        assert game.get_reward() == 1.0

    @pytest.mark.full
    @pytest.mark.parametrize("executor", ["thread", "process"])
    def test_an_action_that_hangs_its_environment_is_a_loss_at_the_deadline(self, executor):
        limits = {"executor": executor, "step_timeout": 0.3, "reset_timeout": 60.0}
        spec = GymSpec(ECHO, wrappers=[Hanging], **limits, num_tasks=1)
        game = spec.environment_factory()
        game.reset(**spec.train_dataset[0])
        assert game.act("quick") != game.act("hang") == "The environment failed, which ended the game."
        assert (game.get_reward(), game._column()["stop_reason"]) == (0.0, StopReason.CRASHED)
        game.reset(**spec.train_dataset[0])
        assert "failed" not in game.act("quick")
        assert game._column()["num_turns"] == 1

    def test_its_environment_is_closed_with_it(self):
        before = Fragile.open
        game, row = fragile(None)
        game.reset(**row)
        assert Fragile.open == before + 1
        del game
        gc.collect()
        assert Fragile.open == before

    def test_the_factory_and_a_game_in_play_can_be_pickled(self):
        spec = guess(wrappers=[gym.wrappers.RecordEpisodeStatistics])
        assert spec.train_dataset
        assert spec.rollout_func
        factory = pickle.loads(pickle.dumps(spec.environment_factory))
        game = factory()
        game.reset(**row_of(spec, 7))
        assert game.guess(4) == "Higher."
        assert type(game).__name__ == "TrlEnv_GuessNumber_v0"
        again = pickle.loads(pickle.dumps(game))
        assert [one.guess(7) for one in (game, again)] == ["Correct. The game is over."] * 2
        assert tools(again) == ["guess"]


class TestSeveralEnvironments:
    def test_each_has_its_own_factory_and_rows_say_which(self):
        spec = GymSpec({GUESS: 1, WORDLE: 1, "FrozenLake-v1": 1}, num_tasks=6)
        factories = spec.environment_factory
        assert {env_id: tools(make()) for env_id, make in factories.items()} == {
            GUESS: ["guess"],
            WORDLE: ["guess"],
            "FrozenLake-v1": ["act"],
        }
        assert len({type(make()).__name__ for make in factories.values()}) == 3
        for row in spec.train_dataset:
            assert json.loads(row["prompt"][-1]["task"])["env_id"] == row["environment"]
            assert factories[row["environment"]]().reset(**row)

    def test_a_row_of_another_environment_is_named(self):
        spec = GymSpec([GUESS, WORDLE], num_tasks=2)
        row = next(row for row in spec.train_dataset if row["environment"] == WORDLE)
        with pytest.raises(ConfigError, match=r"asks for 'TrlEnv/Wordle-v0', and this environment is 'TrlEnv/Guess"):
            spec.environment_factory[GUESS]().reset(**row)


class TestWhatCannotWork:
    def test_prompts_without_a_task_are_named_with_what_to_do(self):
        game = guess().environment_factory()
        for row in ({"prompt": [{"role": "user", "content": "Play."}]}, {"prompt": "Play."}, {}):
            with pytest.raises(TaskError, match=r"spec\.train_dataset.*spec\.rollout_func"):
                game.reset(**row)

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"max_tokens_per_turn": 9}, "max_tokens_per_turn"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
            ({"on_rollout": print, "max_alive": 2}, "max_alive, on_rollout"),
            ({"curriculum": Curriculum([{"high": 3}, {"high": 9}])}, "curriculum"),
        ],
    )
    def test_options_that_trls_loop_has_no_place_for_are_refused(self, options, named):
        spec = GymSpec(GUESS, **options)
        with pytest.raises(ConfigError, match=named):
            _ = spec.environment_factory

    @pytest.mark.parametrize(
        ("declared", "error"),
        [
            ([lambda action: action], "function with a name"),
            ([], "names of their own"),
            (["undescribed"], "docstring that describes every argument"),
            (["untyped"], "type hints"),
            (["reset"], "other than reset and get_reward"),
            (["_hidden"], "underscore"),
            (["described", "described"], "names of their own"),
        ],
    )
    def test_a_tool_that_trl_could_not_show_is_named(self, declared, error):
        def described(word: str) -> str:
            """Say it.

            Args:
                word: Any.
            """
            return word

        def undescribed(word: str) -> str:
            """Say it."""
            return word

        def untyped(word):
            """Say it.

            Args:
                word: Any.
            """
            return word

        def reset(word: str) -> str:
            return described(word)

        def _hidden(word: str) -> str:
            return described(word)

        reset.__doc__ = _hidden.__doc__ = described.__doc__
        known = {"described": described, "undescribed": undescribed, "untyped": untyped}
        known |= {"reset": reset, "_hidden": _hidden}

        class Own(gym.Wrapper):
            action_tools = tuple(known[one] if isinstance(one, str) else one for one in declared)

        with pytest.raises(ConfigError, match=error):
            GymSpec(ECHO, wrappers=[Own]).environment_factory()

    def test_a_trainer_that_was_given_both_ways_is_told_so(self):
        game = begun(guess())
        with pytest.raises(ConfigError, match="either rollout_func or environment_factory"):
            env_reward(environments=[game], episode_return=[1.0])
        with pytest.raises(ConfigError, match="got object"):
            env_reward(environments=[object()])


def test_rewards_are_the_environments_own_and_the_logs_get_the_rest():
    spec = guess(invalid_penalty=PENALTY)
    games = [spec.environment_factory() for _ in range(3)]
    for game in games:
        game.reset(**row_of(spec, 4))
    games[0].guess(4)
    games[0].guess(4)
    games[1].guess(9)
    assert env_reward(environments=games) == [None] * 3
    logged = StepTotals.of([Row.of(game._column()) for game in games]).metrics()
    assert logged["env/return"] == pytest.approx((1.0 - 2 * TURNS * PENALTY) / 3)
    assert logged["env/unfinished"] == pytest.approx(2 / 3)
    assert logged["env/calls_after_end"] == pytest.approx(1 / 3)
    assert logged["env/stop/success"] == pytest.approx(1 / 3)
    assert logged["env/unscored"] == 0.0


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    done = warm.run(SCRIPT, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report.json").read_text())


@pytest.fixture
def steps(report):
    return report["steps"]


class TestTheTrainer:
    pytestmark = needs_trl

    def test_a_group_plays_one_game_and_groups_play_different_ones(self, steps):
        played = [outcome["task"] for step in steps for outcome in step["outcomes"]]
        groups = [set(played[start : start + 4]) for start in range(0, len(played), 4)]
        assert [len(group) for group in groups] == [1] * 4
        assert len(set.union(*groups)) == 4

    def test_rewards_are_the_environments_return_and_nothing_is_counted_twice(self, report):
        for log, step in zip(report["logs"], report["steps"], strict=False):
            returns = [outcome["episode_return"] for outcome in step["outcomes"]]
            assert returns == [1.0, -TURNS * PENALTY, 1.0, 1.0] * 2
            assert log["reward"] == pytest.approx(sum(returns) / 8)
            assert log["rewards/TrlEnv_GuessNumber_v0/mean"] == pytest.approx(log["env/return"])
            assert (log["env/success"], log["env/unfinished"], log["env/unscored"]) == (0.75, 0.25, 0.0)

    def test_an_unscored_episode_moves_no_weight_with_any_reward_function(self, report):
        step = report["failing"]
        for start in (0, 4):
            won, failed, late, mistaken = step["advantages"][start : start + 4]
            assert step["outcomes"][start + 1]["stop_reason"] == "env_error"
            assert failed == 0.0 == sum(step["tool_mask"][start + 1])
            assert won + late + mistaken == pytest.approx(0.0, abs=1e-4)
            assert all(sum(step["tool_mask"][start + place]) for place in (0, 2, 3))

    def test_a_stock_trainer_has_the_same_metrics_from_its_first_batch_on(self, report):
        stock = report["stock"]
        for ours, theirs in zip(report["steps"], stock["steps"], strict=True):
            assert ours["advantages"] == theirs["advantages"]
            assert ours["tool_mask"] == theirs["tool_mask"]
        for ours, theirs in zip(report["logs"][:2], stock["logs"], strict=False):
            names = [name for name in ours if name.startswith("env/") or "reward" in name]
            assert len(names) > 10
            assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}

    def test_a_stock_trainer_that_cannot_leave_out_an_unscored_episode_is_refused(self, report):
        assert "make the trainer with GymGRPOTrainer(" in report["refused"]

    def test_calls_after_the_end_change_nothing_and_are_counted(self, report):
        for log, step in zip(report["logs"], report["steps"], strict=False):
            assert [outcome["calls_after_end"] for outcome in step["outcomes"]] == [0, 0, 2, 0] * 2
            assert log["env/calls_after_end"] == 0.5
            assert all(text.count("\nThe game is over.\n") == 2 for text in step["texts"][2::4])

    def test_what_is_no_tool_or_does_not_fit_is_said_and_no_turn(self, report):
        for log, step in zip(report["logs"], report["steps"], strict=False):
            winner, mistaken = step["outcomes"][0], step["outcomes"][3]
            assert mistaken == winner
            for said in ("Tool step not found", "Tool close not found"):
                assert said in step["texts"][3]
            for said in ("missing a required argument: 'number'", "must be of type integer, got 'four'"):
                assert said in step["texts"][3]
            assert log["tools/failure_frequency"] > 0

    def test_every_prompt_is_a_prefix_and_the_mask_marks_what_was_sampled(self, steps):
        """Laws 1 and 2: TRL's loop keeps them for what its template reads back as calls."""
        for step in steps:
            turns = [turn for asked in step["asked"] for turn in asked]
            for prompt, completion, mask in zip(
                step["prompt_ids"], step["completion_ids"], step["tool_mask"], strict=True
            ):
                whole, sampled = prompt + completion, [0] * len(completion)
                for asked, answer in turns:
                    end = len(asked) + len(answer)
                    if whole[:end] == asked + answer:
                        sampled[len(asked) - len(prompt) : end - len(prompt)] = [1] * len(answer)
                assert sampled == mask


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_the_example_trains_and_a_model_without_calls_is_scored(tmp_path):
    tokenizer = runpy.run_path(str(SCRIPT))["tool_tokenizer"]()
    tokenizer.save_pretrained(tmp_path / "tiny")
    tiny_model(tokenizer, width=32, layers=1).save_pretrained(tmp_path / "tiny")
    done = warm.run(
        *(EXAMPLE, f"--model={tmp_path / 'tiny'}", f"--output_dir={tmp_path / 'out'}"),
        *("--max_steps=1", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=1"),
        *("--num_generations=4", "--max_completion_length=16", "--use_cpu=true", "--bf16=false"),
        "--disable_tqdm=true",
        env={"TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, expected in (("env/unfinished", 1.0), ("reward", -0.7), ("tools/call_frequency", 0.0)):
        assert [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", done.stdout)] == [expected]
    assert (tmp_path / "out" / "model.safetensors").exists()

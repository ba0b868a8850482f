"""Games as objects with tools, alone and in the tool loop of TRL's own trainer."""

import gc
import inspect
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from hypothesis import given, settings, strategies as st
from support import tiny_trainer, warm
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from gym_trl import GymGRPOTrainer, GymSpec, StopReason
from gym_trl.errors import ConfigError, InfrastructureError, TaskError
from gym_trl.testing import tiny_model, tiny_tokenizer

GUESS, PENALTY, TURNS, OVER = "TrlEnv/GuessNumber-v0", 0.25, 4, "The game is over."
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tools.py"


def guess(number: int) -> str:
    """Guess the secret.

    Args:
        number: The guess.
    """
    return str(number)


class Guessing(gym.Wrapper):
    """Game with a tool of its own, which fails after a guess of 99, and refuses to be reset for a secret of 8."""

    action_tools = (guess,)
    open = 0

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        Guessing.open += 1

    def reset(self, **given: Any) -> Any:
        if (given.get("options") or {}).get("instance") == 7:
            raise InfrastructureError("the machine is gone")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        if action == "99":
            raise ValueError("the game cannot stand it")
        return super().step(action)

    def close(self) -> None:
        Guessing.open -= 1
        super().close()


def make(**options: Any) -> GymSpec:
    usual: dict[str, Any] = {
        "env_kwargs": {"high": 8, "turns": TURNS},
        "wrappers": [Guessing],
        "invalid_penalty": PENALTY,
    }
    return GymSpec(GUESS, **usual | {"num_tasks": 16, "executor": "inline"} | options)


SPEC = make()


def row_of(spec: GymSpec, secret: int) -> dict[str, Any]:
    row: dict[str, Any] = spec.train_dataset[0]
    last = row["prompt"][-1]
    task = json.loads(last["task"]) | {"options": {"instance": secret - 1}}
    return row | {"prompt": [*row["prompt"][:-1], last | {"task": json.dumps(task)}]}


def begun(secret: int = 4) -> Any:
    game = SPEC.environment_factory()
    game.reset(**row_of(SPEC, secret))
    return game


def tools(game: Any) -> list[str]:
    """Return what GRPOTrainer offers the model (TRL 1.16)."""
    functions = inspect.getmembers(type(game), predicate=inspect.isfunction)
    return [name for name, _ in functions if name not in ("reset", "get_reward") and not name.startswith("_")]


# ---------------------------------------------------------------------------------------------------------------------
# The object
# ---------------------------------------------------------------------------------------------------------------------


def test_a_model_is_shown_the_environments_own_tools_with_their_schemas_and_nothing_else() -> None:
    from transformers.utils import get_json_schema

    game = SPEC.environment_factory()
    assert tools(game) == ["guess"]
    assert get_json_schema(game.guess) == get_json_schema(guess)
    assert tools(GymSpec("FrozenLake-v1").environment_factory()) == ["act"]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.lists(st.integers(-1, 9), max_size=8))
def test_calls_are_steps_of_the_environment_and_a_game_that_is_left_is_lost(secret: int, numbers: list[int]) -> None:
    """Law 15: a game that was left is worth no more than an invalid action in each turn."""
    game, env = begun(secret), replace(SPEC.env_spec, action_format="plain").make(GUESS)
    env.reset(seed=0, options={"instance": secret - 1})
    paid, over, turns = 0.0, False, 0
    for number in numbers:
        said = game.guess(number=number)
        if over:
            assert said == OVER
            continue
        observation, reward, over, _, _ = env.step(str(number))
        paid, turns = paid + float(reward), turns + 1
        assert said == (f"{observation} {OVER}" if over else observation)
    assert game.get_reward() == game.get_reward() == pytest.approx(paid if over else -TURNS * PENALTY)
    assert len(game.episode.turns) == max(1, turns)
    assert (game.episode.stop_reason is StopReason.ENDED) == over
    assert game.guess(number=1) == OVER


def test_the_prompt_and_what_reset_adds_say_what_a_rollout_says_but_for_the_mark_of_actions() -> None:
    spec = make(system_prompt="Be brief.", action_format="boxed")
    row, env = row_of(spec, 3), spec.make(GUESS)
    prompt = row["prompt"][-1]["content"] + spec.environment_factory().reset(**row)
    observation, _ = env.reset(options={"instance": 2})
    marked = f"{env.get_wrapper_attr('instructions')}\n\n{observation}"
    assert prompt == marked.replace(" Put your action in \\boxed{...}.", "") != marked


def test_an_object_is_used_again_and_remembers_nothing() -> None:
    game = begun(4)
    for secret in (1, 6):
        game.reset(**row_of(SPEC, secret))
        assert (game.guess(number=secret), game.get_reward()) == (f"Correct. {OVER}", 1.0)


@pytest.mark.parametrize("arguments", [{}, {"word": "four"}, {"number": 4, "self": 1}])
def test_arguments_that_do_not_fit_are_an_error_and_no_turn(arguments: Any) -> None:
    game = begun()
    with pytest.raises(TypeError):
        game.guess(**arguments)
    game.guess(4)
    assert len(game.episode.turns) == 1


def test_a_crash_by_a_call_is_a_loss_and_a_failed_reset_is_unscored() -> None:
    game = begun()
    assert OVER not in game.guess(99)
    assert game.guess(4) == OVER
    assert (game.get_reward(), game.episode.stop_reason) == (-TURNS * PENALTY, StopReason.CRASHED)
    assert "failed" in game.reset(**row_of(SPEC, 8))
    assert game.guess(4) == OVER
    assert (game.get_reward(), game.episode.stop_reason) == (None, StopReason.ENV_ERROR)


def test_its_environment_is_closed_with_it() -> None:
    gc.collect()
    before, game = Guessing.open, begun()
    assert Guessing.open == before + 1
    del game
    gc.collect()
    assert Guessing.open == before


def test_with_a_worker_an_action_that_hangs_is_a_loss_at_the_deadline() -> None:
    class Hanging(gym.Wrapper):
        def step(self, action: Any) -> Any:
            time.sleep(action == "7")
            return super().step(action)

    spec = make(wrappers=[Hanging], executor="thread", step_timeout=0.3)
    game = spec.environment_factory()
    game.reset(**row_of(spec, 3))
    assert OVER not in game.act("1")
    game.act("7")
    assert (game.get_reward(), game.episode.stop_reason) == (-TURNS * PENALTY, StopReason.CRASHED)


def test_each_of_several_environments_has_a_factory_and_rows_say_which() -> None:
    spec = GymSpec([GUESS, "FrozenLake-v1"], num_tasks=4)
    factories = spec.environment_factory
    assert len({type(make()).__name__ for make in factories.values()}) == 2
    for row in spec.train_dataset:
        assert json.loads(row["prompt"][-1]["task"])["env_id"] == row["environment"]
        assert factories[row["environment"]]().reset(**row)


def test_what_cannot_be_a_tool_or_a_task_is_refused() -> None:
    """Law 22."""

    def reset() -> str:
        return ""

    for declared in ((reset,), (guess, guess)):
        wrapper = type("Own", (gym.Wrapper,), {"action_tools": declared})
        with pytest.raises(ConfigError, match="action_tools"):
            _ = make(wrappers=[wrapper]).environment_factory
    with pytest.raises(TaskError, match="train_dataset"):
        SPEC.environment_factory().reset(prompt=[{"role": "user", "content": "Play."}])


# ---------------------------------------------------------------------------------------------------------------------
# The trainer
# ---------------------------------------------------------------------------------------------------------------------


def call(**arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "guess", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


PLAYERS = {
    "W": [call(number=4), call(number=2), call(number=1), call(number=3), "Done."],  # plays on until it has won
    "Q": [call(number=9), "I do not know."],  # leaves the game
    "C": [call(number=99), "Oh."],  # crashes it
    "E": [call(letter="four"), call(word="four"), call(number=2), call(number=1), call(number=3), "Done."],
}
"""Responses of the members of a group; guesses of 1 to 4 find a secret below 5."""


def tool_tokenizer() -> Any:
    """Return a tokenizer of characters with Qwen3's template, whose calls TRL can parse."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>"})
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


class Scripted:
    """Methods of a trainer whose responses are those of the players, and that keeps its batches."""

    def _generate_single_turn(self: Any, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        answers = []
        for row, ids in enumerate(prompt_ids):
            said = self.processing_class.decode(ids).rpartition("<|im_start|>user\nFind")[2]
            found = re.findall(r"([WQCE])<tool_call>", said)
            player = found[0] if found else "WQCE"[row % 4]
            text = PLAYERS[player][said.count("</tool_response>")]
            text = player + text if "<tool_call>" in text else text
            if player in "WE" and OVER in said:
                text = "Done."
            answers.append([*self.processing_class.encode(text, add_special_tokens=False), self.eos_token_ids[0]])
        self.sampled = [*getattr(self, "sampled", []), *map(tuple, answers)]
        return answers, None

    def _generate_and_score_completions(self: Any, inputs: Any) -> Any:
        self.batch: Any = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self.episodes = [one.episode for one in self.environments]
        return self.batch


def generous(completions: Any, **_: Any) -> list[float]:
    return [1000.0] * len(completions)


def train(folder: Path, kind: type, *, secret: int, reward_funcs: Any = ()) -> Any:
    tokenizer = tool_tokenizer()
    model = tiny_model(tokenizer, width=32, layers=1)
    model.config.max_position_embeddings = 4096  # characters are many tokens
    trainer = tiny_trainer.make(
        folder,
        SPEC,
        type("Trainer", (Scripted, kind), {}),
        grpo={"max_steps": 1, "per_device_train_batch_size": 4, "max_completion_length": 2500},
        model=model,
        processing_class=tokenizer,
        train_dataset=SPEC.train_dataset.map(lambda row: row_of(SPEC, secret)),
        eval_dataset=None,
        rollout_func=None,
        environment_factory=SPEC.environment_factory,
        reward_funcs=[*SPEC.reward_funcs, *reward_funcs],
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", [GRPOTrainer, GymGRPOTrainer])
def test_rewards_and_metrics_are_those_of_the_episodes(tmp_path: Path, kind: type) -> None:
    trainer = train(tmp_path, kind, secret=3)
    lost = -TURNS * PENALTY
    assert [one.episode_return for one in trainer.episodes] == [1.0, lost, lost, 1.0]
    reasons = [StopReason.ENDED, StopReason.INVALID, StopReason.CRASHED, StopReason.ENDED]
    assert [one.stop_reason for one in trainer.episodes] == reasons
    log = trainer.state.log_history[0]
    assert (log["reward"], log["env/return"], log["env/success"], log["env/unscored"]) == (0.0, 0.0, 0.5, 0.0)
    assert (log["env/stop/ended"], log["env/stop/invalid"], log["env/stop/crashed"]) == (0.5, 0.25, 0.25)
    assert log["rewards/TrlEnv_GuessNumber_v0/mean"] == 0.0
    assert trainer.batch["advantages"].sign().tolist() == [1, -1, -1, 1]


def test_what_was_sampled_is_what_the_mask_says(tmp_path: Path) -> None:
    """Laws 1 and 2."""
    trainer = train(tmp_path, GymGRPOTrainer, secret=3)
    batch = trainer.batch
    for row in range(4):
        mask = (batch["completion_mask"][row] * batch["tool_mask"][row]).tolist()
        ids = [one for one, bit in zip(batch["completion_ids"][row].tolist(), mask, strict=True) if bit]
        end, parts = trainer.eos_token_ids[0], []
        while ids:
            parts.append(ids[: ids.index(end) + 1])
            ids = ids[len(parts[-1]) :]
        assert all(tuple(part) in trainer.sampled for part in parts)
        assert len(parts) >= 2


def test_an_unscored_episode_moves_no_weight_with_any_reward_function(tmp_path: Path) -> None:
    """Law 14."""
    trainer = train(tmp_path, GymGRPOTrainer, secret=8, reward_funcs=[generous])
    assert [one.stop_reason for one in trainer.episodes] == [StopReason.ENV_ERROR] * 4
    assert not trainer.batch["advantages"].any()
    assert not (trainer.batch["completion_mask"] * trainer.batch["tool_mask"]).any()
    assert trainer.state.log_history[0]["env/unscored"] == 1.0


@pytest.mark.slow
def test_the_example_trains_and_a_model_without_calls_has_lost(tmp_path: Path) -> None:
    tokenizer = tool_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tiny")
    torch.manual_seed(0)
    tiny_model(tokenizer, width=32, layers=1).save_pretrained(tmp_path / "tiny")
    done = warm.run(
        *(EXAMPLE, f"--model={tmp_path / 'tiny'}", f"--output_dir={tmp_path / 'out'}"),
        *("--max_steps=1", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=1"),
        *("--num_generations=4", "--max_completion_length=16", "--use_cpu=true", "--bf16=false"),
        "--disable_tqdm=true",
        env={"TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, expected in (("env/stop/invalid", 1.0), ("reward", -0.7), ("tools/call_frequency", 0.0)):
        assert [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", done.stdout)] == [expected]

"""Law 22: a wrong option is refused with the same sentence in Python, on the command line and in a file."""

import json
import re
from typing import Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.options import EvalOptions, TournamentOptions
from gym_trl.training.options import check_grpo, choose, choose_warm_start


class Untouched(gym.Env[Any, Any]):
    """Environment that must not be made."""

    def __init__(self) -> None:
        raise AssertionError("an environment was made before an option was refused")


WRONG_ALONE: dict[str, list[Any]] = {
    "turn_limit": [0, -1, 1.5, "abc", True, [1], {"a": 1}],
    "end_after_invalid": [0, "x", 2.5],
    "invalid_penalty": [-1, "x", [0.1], None],
    "cutoff_return": ["low", [1]],
    "max_tokens_per_turn": [0, -5, "many"],
    "max_observation": [0, "x"],
    "max_action": [0, 0.5],
    "max_alive": [0, "all"],
    "max_unscored": [-0.1, 1.5, "half"],
    "resample_dead_groups": [-1, "twice"],
    "workers": [0, "x"],
    "step_timeout": [0, -3, "soon"],
    "reset_timeout": [0, "x"],
    "seed": [-1, 2**32, "x"],
    "steps": [0, -1, "x", 1.5],
    "episodes_per_step": [0, 7, "x"],
    "num_generations": [1, 0, "x"],
    "learning_rate": [-1, "fast"],
    "max_completion_length": [0, "x"],
    "overlong_cache": [0, 99999],
    "eval_episodes": [-1, "x"],
    "records_per_step": [-1, "x"],
    "width": [0, "x"],
    "layers": [0, "x"],
    "lora": [0, "x"],
    "lora_alpha": [0, -1],
    "action_format": ["taag", "json:", "regex:("],
    "cut_actions": ["rejct", "no"],
    "observe": ["ansi", "nowhere:show"],
    "act": ["upper", "nowhere:act"],
    "success": ["often", "nowhere:won"],
    "state_key": ["key", "nowhere:key"],
    "credit": ["pol", "nowhere:credit"],
    "executor": ["fork", "nowhere:pool"],
    "cutoff": [60],
    "history": ["last=8"],
    "curriculum": ["hard"],
    "seats": ["all"],
    "vllm": ["colocat", "server"],
    "dtype": ["float8", "bfloat16"],
    "model": ["/nowhere/at-all"],
    "chat_template_kwargs": ["thinking"],
    "grpo": ["beta"],
    "env_kwargs": ["high"],
}


def each(wrong: dict[str, list[Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """Return wrong values one by one, in Python and as flags."""
    return [
        ({name: value}, [f"--{name.replace('_', '-')}", json.dumps(value)])
        for name, values in wrong.items()
        for value in values
    ]


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    *each(WRONG_ALONE),
    ({"cutoff": {"episode_s": 0}}, ["--cutoff.episode-s", "0"]),
    ({"cutoff": {"stragglers": 1}}, ["--cutoff.stragglers", "1"]),
    ({"cutoff": {"on_cutoff": "lost"}}, ["--cutoff.on-cutoff", "lost"]),
    ({"history": {"last": -1}}, ["--history.last", "-1"]),
    ({"history": {"last": "many"}}, ["--history.last", "many"]),
    ({"history": {"most": 3}}, ["--history.most", "3"]),
    ({"curriculum": {"kind": "levels"}}, ["--curriculum.kind", "levels"]),
    ({"curriculum": {"explore": 0}}, ["--curriculum.explore", "0"]),
    ({"curriculum": {"levels": [{}], "rise": "high"}}, ["--curriculum.levels", "[{}]", "--curriculum.rise", "high"]),
    ({"seats": {"every": 0}}, ["--seats.every", "0"]),
    ({"seats": {"schedule": "last"}}, ["--seats.schedule", "last"]),
    ({"seats": {"every": 3, "self_play": 2}}, ["--seats.every", "3", "--seats.self-play", "2"]),
    ({"strict": True, "action_format": None}, ["--strict", "--action-format", "none"]),
    ({"deterministic": True, "cutoff": {"episode_s": 9}}, ["--deterministic", "--cutoff.episode-s", "9"]),
    ({"executor": "inline", "workers": 2}, ["--executor", "inline", "--workers", "2"]),
    ({"seats": "self", "success": 1.0}, ["--seats", "self", "--success", "1"]),
    ({"seats": "self", "curriculum": "prioritized"}, ["--seats", "self", "--curriculum", "prioritized"]),
    ({"grpo": {"learning_rat": 1}}, ["--grpo", "learning_rat=1"]),
    ({"grpo": {"loss_type": "dapp"}}, ["--grpo", "loss_type=dapp"]),
    ({"grpo": {"temperature": 0}}, ["--grpo", "temperature=0"]),
    ({"grpo": {"beta": "small"}}, ["--grpo", "beta=small"]),
    ({"grpo": {"output_dir": "x"}}, ["--grpo", "output_dir=x"]),
    ({"steps": 3, "grpo": {"max_steps": 4}}, ["--steps", "3", "--grpo", "max_steps=4"]),
    ({"turn_limt": 3}, ["--turn-limt", "3"]),
    ({"cutof": 3}, ["--cutof", "3"]),
    ({"num_tasks": 3}, ["--num-tasks", "3"]),
]
"""Wrong options of a training in Python and as flags."""


OF_PLAYING: dict[str, list[Any]] = {
    "temperature": [-1, "hot"],
    "concurrency": [0, "many"],
    "vllm": ["server", "no"],
    "llm": ["dtype"],
    "sampling": ["greedy", [1]],
    "max_completion_length": [0, "x"],
    "max_tokens_per_turn": [0, 1.5],
    "action_format": ["taag", "json:"],
    "seed": [-1, 2**32],
    "env_kwargs": ["high"],
    "episods": [3],
}
OF_COMMANDS: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "train": WRONG,
    "eval": [
        *each(OF_PLAYING),
        *each({"episodes": [0, "x", 1.5], "attempts": [0, 3], "fail_under": [-1, 2, "x"], "turn_limit": [0]}),
        ({"llm": {"seed": 1}}, ["--llm", "seed=1"]),
        ({"cutoff": {"episode_s": 0}}, ["--cutoff.episode-s", "0"]),
        ({"history": {"last": -1}}, ["--history.last", "-1"]),
    ],
    "tournament": each(OF_PLAYING) + each({"games": [0, "x", 1.5], "anchr": ["random"]}),
    "warm-start": [
        *each({"steps": [0, "x"], "batch_size": [0, 1.5], "learning_rate": [0, -1, "x"], "eval_episodes": [-1]}),
        *each({"keep": ["some"], "min_return": ["low"], "episodes": [0], "lora": [0], "seats": ["self"]}),
        *each({name: WRONG_ALONE[name] for name in ("turn_limit", "workers", "dtype", "observe", "curriculum")}),
        ({"history": {"summary": "model"}}, ["--history.summary", "model"]),
    ],
}
"""Wrong options of all commands that have declared ones."""
MADE: dict[str, Any] = {
    "train": lambda env, given: check_grpo(choose(env, **given).grpo),
    "eval": lambda env, given: EvalOptions.of({"env": env, "max_tokens_per_turn": 256, **given}),
    "tournament": lambda env, given: TournamentOptions.of({"env": env, **given}),
    "warm-start": lambda env, given: choose_warm_start(env, **{"max_tokens_per_turn": 8, **given}),
}
ALL_WRONG = [(command, *one) for command, wrong in OF_COMMANDS.items() for one in wrong]


def one_form(sentence: str) -> str:
    """Return a sentence with the names of flags as those in Python."""
    return re.sub(r"--[a-z][\w.-]*", lambda flag: flag[0][2:].replace("-", "_"), sentence)


@pytest.mark.parametrize(("command", "given_options", "words"), ALL_WRONG, ids=lambda value: " ".join(map(str, value)))
def test_a_wrong_option_is_refused_with_one_sentence_in_python_flags_and_files(tmp_path, command, given_options, words):
    env = f"{__file__}:Untouched"
    with pytest.raises(ConfigError) as raised:
        MADE[command](env, given_options)
    said = str(raised.value)
    assert "\n" not in said
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"env": env, **given_options}), encoding="utf-8")
    line = [env, *(["random", "noop"] if command == "tournament" else []), *words]
    for one in [line, [str(path), "--trust"]] if command in ("train", "eval") else [line]:
        result = CliRunner().invoke(app, [command, *one])
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ")
        told = one_form(" ".join(result.stderr.removeprefix("Error: ").split()))
        assert told.removeprefix(f"{one_form(str(path))}: ") == one_form(" ".join(said.split()))
        assert "Loading" not in result.output

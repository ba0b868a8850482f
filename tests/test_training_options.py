"""Options of a training: presets, fields of GRPOConfig, and refusals before a folder is made."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.command_line import run_command_line

from gym_trl.errors import ConfigError, GymTRLError
from gym_trl.training.options import TINY, TINY_ELSEWHERE, check_grpo, choose
from gym_trl.training.run import train

pytestmark = pytest.mark.trl


def test_presets_are_overridden_one_by_one() -> None:
    chosen = choose("TrlEnv/GuessNumber-v0", env_kwargs={"turns": 5}, grpo={"beta": 0.1}, steps=7)
    preset = TINY["TrlEnv/GuessNumber-v0"]
    assert chosen.env_kwargs == {"high": 8, "turns": 5}
    assert chosen.grpo == {**preset.grpo, "beta": 0.1}
    assert (chosen.steps, chosen.episodes_per_step) == (7, preset.episodes_per_step)
    assert choose("Any-v0").steps == TINY_ELSEWHERE.steps


def test_with_vllm_the_tiny_model_is_where_the_gpu_is() -> None:
    vllm = {"use_vllm": True, "vllm_mode": "colocate"}
    assert TINY_ELSEWHERE.grpo.keys() - choose(grpo=vllm).grpo.keys() == {"use_cpu"}
    assert choose(grpo={**vllm, "use_cpu": True}).grpo["use_cpu"]


def test_a_server_has_no_tiny_model_that_is_made_on_the_spot() -> None:
    server = {"use_vllm": True, "vllm_mode": "server"}
    with pytest.raises(ConfigError, match=r'^vllm="server" needs the model that'):
        choose(grpo=server)
    assert choose(model="some/model", grpo=server).vllm == "server"


def test_fields_that_have_an_option_of_their_own_can_be_given_either_way() -> None:
    chosen = choose(grpo={"num_generations": 16, "max_steps": 9, "seed": 4})
    assert (chosen.num_generations, chosen.steps, chosen.seed) == (16, 9, 4)
    assert not {"num_generations", "max_steps", "seed"} & set(chosen.grpo)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rat": 1}, "there is no option grpo.learning_rat; did you mean 'learning_rate'"),
        ({"loss_type": "nonsense"}, "loss_type must be one of grpo, .*dapo, .*, got 'nonsense'$"),
        ({"learning_rate": "high"}, "learning_rate must be a finite number, got 'high'"),
        ({"top_k": 0.5}, "top_k must be an integer, got 0.5"),
        ({"temperature": 0}, "temperature must be above 0, got 0"),
        ({"bf16": 1}, "bf16 must be True or False, got 1"),
        ({"output_dir": "x"}, "output_dir cannot be set here: the run's folder is set with --out"),
    ],
)
def test_a_field_that_cannot_be_set_is_an_error_that_says_why(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_grpo(given)


def test_values_become_what_their_fields_want() -> None:
    given = {"learning_rate": 1, "top_k": 1e2, "run_name": 7, "min_p": None, "generation_kwargs": {"top_p": 0.5}}
    assert check_grpo(given) == {**given, "learning_rate": 1.0, "top_k": 100, "run_name": "7"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grpo": {"per_device_train_batch_size": 3}}, "episodes_per_step=8 are 8 per process, not 3 x 2"),
        ({"grpo": {"lr_scheduler_type": "wavy"}}, "GRPOConfig rejects the options: wavy is not a valid SchedulerType"),
        ({"model": "no/such/model"}, "there is no folder 'no/such/model'"),
    ],
)
def test_what_cannot_be_trained_is_said_before_a_folder_is_made(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    chosen = replace(choose("TrlEnv/Echo-v0", episodes_per_step=8, num_generations=4), **{"grpo": {}, **changes})
    with pytest.raises(GymTRLError, match=said):
        train(chosen, out=tmp_path / "run", console=Console(quiet=True))
    assert not (tmp_path / "run").exists()


def test_training_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "trl"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("training.run", "grpo.trainer"):
        monkeypatch.delitem(sys.modules, f"gym_trl.{name}")
        monkeypatch.delattr(f"gym_trl.{name}")
    result = run_command_line(["train"])
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: gym-trl train needs packages that are not installed: pip install 'gym-trl[train]'\n"
    )

"""gym-trl doctor: each thing that stands in a training's way is found before it, with what to change."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_command_line
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.envspec import EnvSpec
from gym_trl.report import Verdict
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.action_formats import Judge, Response, candidate_formats, read_again
from gym_trl.training.doctor import Diagnosis, NextStep, diagnose
from gym_trl.training.model_checks import Memory, estimate_memory
from gym_trl.training.models import ModelChoice
from gym_trl.training.options import choose
from gym_trl.types import Request, Task

GUESS = "TrlEnv/GuessNumber-v0"
Say = Callable[[Request], str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, width=32, layers=1)
    return folder


@pytest.fixture
def said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Diagnosis]:
    """Return a function that diagnoses a model which responds as a script says."""

    def run(say: Say | str, *, groups: int = 2, free: int | None = None, **options: Any) -> Diagnosis:
        script = (lambda request: say) if isinstance(say, str) else say
        tokenizer = AutoTokenizer.from_pretrained(tiny)

        def engine(*_: Any, **__: Any) -> ScriptedEngine:
            return ScriptedEngine(lambda request: tokenizer.encode(script(request), add_special_tokens=False))

        monkeypatch.setattr("gym_trl.training.doctor.transformers_engine", engine)
        given = {"num_generations": 4, "episodes_per_step": 8, "eval_episodes": 4, **options}
        chosen = choose(GUESS, model=str(tiny), env_kwargs={"high": 8, "turns": 4}, **given)
        return diagnose(chosen, groups=groups, free=free)

    return run


def number(request: Request) -> int:
    """Return a number from 1 to 8 that differs between the episodes of a group."""
    return 1 + request.seed % 8


def test_a_model_that_plays_legally_and_differently_is_ready(said: Callable[..., Diagnosis]) -> None:
    found = said(lambda request: f"<action>{number(request)}</action><|end|>")
    assert found.ready, [one.got for one in found.problems]
    assert found.next_step is NextStep.TRAIN
    assert found.changes == {}
    assert found.finding("readable actions").numbers["legal"] == 1.0
    assert found.finding("groups with spread").verdict is Verdict.OK


def test_the_proposed_format_reads_numbers_in_prose(
    said: Callable[..., Diagnosis],
) -> None:
    def prose(request: Request) -> str:
        return f"I say {number(request)}, I think.<|end|>"

    found = said(prose)
    lost = found.finding("readable actions")
    assert found.findings[0] is lost
    assert lost.verdict is Verdict.PROBLEM
    assert lost.numbers["readable"] == 0.0
    assert lost.examples[0].startswith("I say ")
    assert found.next_step is NextStep.DOCTOR
    assert found.changes == {"action_format": r"regex:(\d+)"}
    again = said(prose, action_format=found.changes["action_format"])
    assert again.ready
    assert again.finding("readable actions").numbers["legal"] == 1.0


def test_groups_whose_members_are_all_alike_teach_nothing(said: Callable[..., Diagnosis]) -> None:
    found = said("<action>9</action><|end|>")  # out of range
    flat = found.finding("groups with spread")
    assert flat.verdict is Verdict.PROBLEM
    assert flat.numbers["groups"] == 2
    assert flat.numbers["spread"] == 0.0
    assert flat.numbers["flat_returns"] == pytest.approx([-0.4])  # no better than four invalid actions
    alike = said("<action>4</action><|end|>").finding("groups with spread")
    assert alike.verdict is Verdict.PROBLEM
    assert "easier variant" in alike.fix


def test_a_model_without_ends_of_turns_differs_from_one_cut_off_at_times(
    said: Callable[..., Diagnosis],
) -> None:
    never = said("and then " * 4, max_tokens_per_turn=16).finding("length of a turn")
    assert never.verdict is Verdict.PROBLEM
    assert never.numbers["ended"] == 0.0
    assert "almost never ends its turn with '<|end|>' (id 1)" in never.fix
    assert never.warm_start

    def at_times(request: Request) -> str:
        action = f"<action>{number(request)}</action>"
        return f"{action}{' because' * 9}" if request.seed % 3 == 0 else f"{action}<|end|>"

    cut = said(at_times, max_tokens_per_turn=32).finding("length of a turn")
    assert cut.verdict is Verdict.WARNING
    assert cut.options == {"max_tokens_per_turn": 64}


def test_a_step_that_does_not_fit_names_options_with_which_it_does(said: Callable[..., Diagnosis], tiny: Path) -> None:
    def play(request: Request) -> str:
        return f"<action>{number(request)}</action><|end|>"

    roomy = said(play, free=1 << 40).finding("memory")
    assert roomy.verdict is Verdict.OK
    assert roomy.numbers["needed"] < roomy.numbers["most"]
    whole = estimate_memory(ModelChoice(model=str(tiny)), tokens=1, checkpointing=True).fixed
    tight = said(play, free=whole + 1)
    assert [one.name for one in tight.problems] == ["memory"]
    assert tight.finding("memory").numbers["rows"] == 1
    large = {"max_completion_length": 4_000, "per_device_train_batch_size": 8}
    warned = said(play, free=roomy.numbers["most"], grpo=large).finding("memory")
    assert warned.verdict is Verdict.WARNING
    assert warned.numbers["rows"] == 8


def test_an_adapter_is_proposed_where_all_weights_do_not_fit(
    said: Callable[..., Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    def estimate(choice: ModelChoice, **_: Any) -> Memory:
        return Memory(fixed=(4 if choice.lora else 16) * (1 if choice.dtype else 2), row=0, scores=0)

    monkeypatch.setattr("gym_trl.training.doctor.estimate_memory", estimate)
    monkeypatch.setattr("gym_trl.training.model_checks.estimate_memory", estimate)
    assert said("7", free=32).finding("memory").verdict is Verdict.OK
    assert said("7", free=31).changes == {"lora": 16}
    assert said("7", free=7).changes == {"lora": 16, "dtype": "bfloat16"}
    assert said("7", free=3).next_step is NextStep.NONE


def test_weights_that_do_not_fit_are_not_loaded(
    tiny: Path, said: Callable[..., Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    found = said("7", free=1000)
    assert [one.name for one in found.problems] == ["memory"]
    assert found.prompt == ""
    assert found.next_step is NextStep.NONE


def test_the_prompt_is_shown_with_control_tokens_and_the_next_observation(
    said: Callable[..., Diagnosis],
) -> None:
    found = said("<action>1</action><|end|>", system_prompt="Be brief.", groups=4)
    assert found.prompt.startswith("<|system|>Be brief.<|end|><|user|>Find the secret integer from 1 to 8.")
    assert found.prompt.endswith("Guess 1 to 8 in 4 tries.<|end|><|assistant|>")
    assert found.reply == "<|user|>Higher.<|end|><|assistant|>"
    assert found.finding("system message").got == "yours: 'Be brief.'"
    begins = said("<action>1</action><|end|>", groups=4).finding("system message").got
    assert begins.startswith("none is known; prompts begin with '<|user|>Find the secret integer from 1 to 8.")


def test_legality_depends_on_the_actions_before_a_response() -> None:
    task = Task("TrlEnv/Hangman-v0", 0)
    with Judge(EnvSpec("TrlEnv/Hangman-v0"), seconds=60) as judge:
        first, later = (Response("e", False, task, before) for before in ((), ("e",)))
        assert [judge.accepts(one, "e") for one in (first, later)] == [True, False]


@pytest.mark.parametrize(
    ("actions", "text", "action"),
    [
        (["3", "12"], "Between 1 and 9, I take 7.", "7"),
        (["-3", "12"], "My answer is -4!", "-4"),
        (["up", "upper"], "Then UPPER it is.", "UPPER"),
        (["crane", "slate"] + [f"{one}rown" for one in "abcdefghijklmnopqrstuvwxyz"], "My word: frown!", "frown"),
        ([f"{row} {column}" for row in range(6) for column in range(6)], "I open 3 4.", "3 4"),
    ],
)
def test_a_pattern_reads_actions_of_the_same_kind_from_prose(actions: list[str], text: str, action: str) -> None:
    formats = candidate_formats(actions, marked=True)
    [reading] = read_again(formats[2:3], [Response(text, False, Task("", 0), ())], None)
    assert reading.example == (text, action)


def test_the_command_prints_the_next_one_and_exits_with_1(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "--env-kwargs",
        "high=8",
        "--num-generations",
        "2",
        "--episodes-per-step",
        "2",
        "--max-tokens-per-turn",
        "8",
        "--groups",
        "1",
    ]
    result = run_command_line(["doctor", GUESS, "--model", str(tiny), *small])
    assert result.exit_code == 1, result.output
    assert "problem  readable actions: 0.000 of " in result.stdout
    assert "| <|user|>Find the secret integer from 1 to 8." in result.stdout
    words = shlex.split(result.stdout.splitlines()[-1])
    assert words[:5] == ["gym-trl", words[1], GUESS, "--model", str(tiny)]
    assert "high=8" in words
    assert words[1] in {"doctor", "warm-start"}
    assert list(tmp_path.iterdir()) == []  # nothing is written
    found = run_command_line(["doctor", GUESS, "--model", str(tiny), *small, "--json"])
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert shlex.split(told["commands"][0]) == words
    assert told["ready"] is False
    assert {one["name"] for one in told["findings"]} >= {"readable actions", "groups with spread", "memory", "speed"}


@pytest.mark.parametrize(
    "arguments",
    [
        [GUESS, "--model", "nope"],
        ["Nope-v0", "--model", "Qwen/Qwen3-0.6B"],
        [GUESS, "--model", "Qwen/Qwen3-0.6B", "--dtype", "bfloat16"],
        [GUESS, "--model", "Qwen/Qwen3-0.6B", "--env-kwargs", "high=x"],
    ],
)
def test_what_cannot_be_examined_is_one_line_and_exit_status_2(arguments: list[str]) -> None:
    result = run_command_line(["doctor", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.lm
def test_the_format_proposed_for_the_pretrained_model_works(pretrained: Path) -> None:
    def examine(**options: Any) -> Diagnosis:
        small: dict[str, Any] = {
            "num_generations": 4,
            "episodes_per_step": 8,
            "eval_episodes": 4,
            "max_tokens_per_turn": 24,
        }
        return diagnose(choose(GUESS, model=str(pretrained), **small, **options), groups=2, free=1 << 40)

    found = examine()
    lost = found.finding("readable actions")
    assert lost.verdict is Verdict.PROBLEM
    assert lost.numbers["readable"] < 0.1
    assert found.next_step is NextStep.DOCTOR
    assert found.changes["action_format"].startswith("regex:")
    assert "template's own: 'You are a helpful AI assistant" in found.finding("system message").got
    spec = {name: found.changes[name] for name in found.changes.keys() & {"cut_actions"}}
    again = examine(action_format=found.changes["action_format"], **spec).finding("readable actions")
    assert again.numbers["readable"] > lost.numbers["readable"] + 0.1
    assert again.numbers["legal"] >= lost.numbers["legal"]

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support import tiny_trainer, warm

from gym_trl import GymSpec, evaluate
from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.parts.part import Rollout
from gym_trl.grpo.parts.start_from import StartFrom
from gym_trl.grpo.planned_rows import Planned
from gym_trl.options import History
from gym_trl.policies.functions import environment_policy
from gym_trl.rollout.text_player import play
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, Turn

ENV = "TrlEnv/FrozenLake-v0"
EASY: dict[str, Any] = {"env_kwargs": {"map_name": "random", "size": 4, "is_slippery": False, "turns": 12}}
SPEC: dict[str, Any] = {**EASY, "num_tasks": 8, "num_eval_tasks": 4, "max_tokens_per_turn": 1, "cut_actions": "accept"}
SPEC |= {"action_format": "plain", "instructions": ""}
GRPO: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_steps": 2,
    "max_completion_length": 512,
}
GRPO |= {"learning_rate": 1e-3, "shuffle_dataset": False}


def solved(task):
    env = GymSpec(ENV, **SPEC).make(ENV)
    return [turn.answer.text for turn in play(env, task, lambda env: environment_policy("solver").make(env, 0)).turns]


def a_call(step=0, seed=0, **changes) -> Any:
    made = {"place": Place("train", step, 0, 0, 0), "seed": seed, "make": GymSpec(ENV, **SPEC).make, "gather": list}
    made |= {"config": SimpleNamespace(history=None), "seats": {}, "declaring": frozenset({ENV}), "logged": {}}
    call = SimpleNamespace(**{**made, **changes})
    call.log = call.logged.update
    return call


def rows(groups, size, seed=0):
    return [Planned(n, n // size, n % size, [], Task(ENV, seed + n // size)) for n in range(groups * size)]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 9), st.floats(1, 6), st.sampled_from([0.0, 0.4, 1.0]))
def test_members_of_a_group_are_given_the_same_turns_on_any_number_of_processes(size, processes, seed, left, share):
    """Law 6, also for what is given."""
    planned = rows(processes * 2, size, seed)
    found = []
    for count in (1, processes):
        part = StartFrom(share=share)
        part.state = {"left": left}
        per = len(planned) // count
        found.append(
            [row for k in range(count) for row in part.plan(planned[k * per : (k + 1) * per], a_call(3, seed))]
        )
    assert found[0] == found[1]
    for row in found[0]:
        actions = solved(row.task)
        assert list(row.opening) == actions[: len(row.opening)]
        assert row.opening == found[0][row.group * size].opening
        if len(actions) > 1 and share in (0.0, 1.0):
            given = max(1, len(actions) - int(left)), max(1, len(actions) - int(left) - 1)
            assert len(row.opening) in (given if share else (0,))


def test_the_turns_left_follow_success():
    part, call = StartFrom(share=1.0), a_call()
    [row] = part.plan(rows(1, 1), call)
    turns = tuple(Turn("", Answer("", one), 0.0, True, 0, 1) for one in solved(row.task))
    longest = len(turns) - 1

    def end(*reasons, given=1, task=row.task, call=call):
        episodes = [EpisodeResult(task, reason, turns, (), given_turns=given) for reason in reasons]
        part.end(Rollout("train", 0, episodes), call)
        return part.state["left"]

    won, lost = StopReason.SUCCESS, StopReason.FAILURE
    assert end(won, lost) == 1
    assert end(won, won) == 2**0.5
    assert call.logged == {"start_from/success": 1.0, "start_from/left": 2**0.5}
    assert end(lost, lost, StopReason.ENV_ERROR) == pytest.approx(1)
    assert end(lost) == 1
    assert end(won, given=0) == 1
    for _ in range(20):
        end(won)
    assert part.state["left"] == longest
    smaller = {**SPEC, "env_kwargs": {**EASY["env_kwargs"], "size": 3}}
    assert end(won, task=Task(ENV, 99), call=a_call(make=GymSpec(ENV, **smaller).make)) == longest


def answering(answers):
    return lambda env: lambda observation: next(answers)


def played(folder, part, steps=2, checkpoint=None, **options):
    rollouts: list[Rollout] = []
    spec = GymSpec(ENV, parts=[part], on_rollout=rollouts.append, **SPEC)
    trainer = tiny_trainer.make(folder, spec, grpo={**GRPO, "max_steps": steps, **options})
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, rollouts


def summary(rollouts):
    return [
        [
            (one.task, one.given_turns, [turn.answer.text for turn in one.turns], one.episode_return)
            for one in rollout.episodes
        ]
        for rollout in rollouts
    ]


@pytest.mark.trl
def test_given_turns_are_those_of_the_solver_and_are_not_trained_on(tmp_path):
    trainer, rollouts = played(tmp_path, StartFrom(share=0.75))
    given = [one for rollout in rollouts for one in rollout.episodes if one.given_turns]
    assert given
    assert len(given) < 32
    for one in given:
        assert [turn.answer.text for turn in one.turns[: one.given_turns]] == solved(one.task)[: one.given_turns]
        assert sum(one.trace.mask) == len(one.turns) - one.given_turns  # one token a turn
        assert all(one.trace.mask[turn.start] for turn in one.turns[one.given_turns :])
        assert len(one.trace.mask) == len(one.trace.completion_ids) == len(one.trace.logprobs)
        rest = iter([turn.answer.text for turn in one.turns])
        again = play(GymSpec(ENV, **SPEC).make(ENV), one.task, answering(rest))
        if one.terminated:
            assert (again.stop_reason, again.episode_return) == (one.stop_reason, one.episode_return)
    for rollout in rollouts:
        for group in range(4):
            assert len({one.given_turns for one in rollout.episodes[4 * group : 4 * group + 4]}) == 1
    trainer.evaluate()
    assert not any(one.given_turns for one in rollouts[-1].episodes)


@pytest.mark.trl
def test_a_repeated_and_a_resumed_training_are_the_same(tmp_path):
    part = StartFrom(share=1.0, target=0.1)
    _, whole = played(tmp_path / "a", part, steps=3, save_strategy="steps", save_steps=2)
    _, again = played(tmp_path / "b", part, steps=3)
    assert summary(whole) == summary(again)
    saved = json.loads((tmp_path / "a" / "checkpoint-2" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["gym_trl.start_from"]["left"] >= 1
    _, rest = played(
        tmp_path / "a", StartFrom(share=1.0, target=0.1), steps=3, checkpoint=str(tmp_path / "a" / "checkpoint-2")
    )
    assert summary(rest) == summary(whole)[2:]


@pytest.mark.trl
@pytest.mark.processes
def test_a_group_on_two_processes_has_one_prompt_and_number_of_turns_left(tmp_path):
    options = {
        "spec": {"parts": ["gym_trl.grpo.parts.start_from:StartFrom"]},
        "grpo": {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6, "num_generations": 4},
    }
    script = Path(__file__).parent / "train_some_steps.py"
    reports: list[Any] = warm.run_ranks(script, tmp_path, json.dumps(options), processes=2)
    given = 0
    for step in range(3):
        prompts = [tuple(ids) for report in reports for ids in report["returned"][step]["prompt_ids"]]
        tasks = [task for report in reports for task in report["rollouts"][step]["tasks"]]
        for start in range(0, 12, 4):
            assert len({*prompts[start : start + 4]}) == len({*tasks[start : start + 4]}) == 1
        given += len({len(prompt) > min(map(len, prompts)) + 4 for prompt in prompts}) > 1
        assert all(report["logprob_differences"][step] < 2e-3 for report in reports)
    assert given
    [main, other] = [[log["start_from/left"] for log in one["logs"] if "start_from/left" in log] for one in reports]
    assert main
    assert main == other


def test_recorded_episodes_are_started_from_with_the_marks_that_responses_have(tmp_path):
    evaluate(ENV, policy="solver", episodes=4, seed=0, out=tmp_path / "eval", **EASY)
    part = StartFrom(next((tmp_path / "eval").glob("*.jsonl")), share=1.0)
    tasks = [Task.from_json(name) for name in part._recorded]
    spec = GymSpec(ENV, **EASY)
    planned = part.plan([Planned(n, n, 0, [], task) for n, task in enumerate(tasks)], a_call(make=spec.make))
    for row in planned:
        marked = tuple(f"<action>{action}</action>" for action in solved(row.task))
        assert row.opening == marked[: len(row.opening)]
        assert len(row.opening) == max(1, len(marked) - 1)
    assert part.plan(rows(1, 1, seed=77), a_call())[0].opening == ()


def test_what_is_not_possible_is_refused():
    for share in (-0.1, 1.5, True):
        with pytest.raises(ConfigError, match="share must be a number from 0 to 1"):
            StartFrom(share=share)
    with pytest.raises(ConfigError, match="target must be"):
        StartFrom(target=2.0)
    with pytest.raises(ConfigError, match="source must be a policy of the environments"):
        StartFrom("Qwen/Qwen3-0.6B")
    with pytest.raises(ConfigError, match="cannot be combined with history"):
        StartFrom().begin(a_call(config=SimpleNamespace(history=History(last=2))))
    with pytest.raises(ConfigError, match="cannot be combined with seats"):
        StartFrom().begin(a_call(seats={ENV: 2}))
    with pytest.raises(ConfigError, match="has no policy 'solver'"):
        StartFrom(share=1.0).plan(
            [Planned(0, 0, 0, [], Task("CartPole-v1", 0))], a_call(make=GymSpec("CartPole-v1").make)
        )


def test_a_source_without_a_successful_episode_is_said():
    part = StartFrom(lambda env: lambda observation: "left", share=1.0)
    with pytest.warns(RuntimeWarning, match="no successful episode of the first 32 tasks"):
        planned = part.plan(rows(33, 1), a_call())
    assert not any(row.opening for row in planned)

"""Demonstrations of a warm start are transcribed as rollouts are, and chosen by their outcome."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.demonstrations import CHATS, GUESS, LIMITS, SMALL, play, spec_of
from support.lanes import examples
from support.viewer_runs import play_games, write_games

from gym_trl.chat import Chat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.episode import Segment
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.executors.make import make_pool
from gym_trl.grpo.spec import GymSpec
from gym_trl.policies.functions import as_policy
from gym_trl.policies.weights import load_tokenizer
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.schema import as_record
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.training.supervised import (
    sft_rows,
)
from gym_trl.types import Message, TokenIds
from gym_trl.wrappers import Opponent

GAMES: list[tuple[str, dict[str, Any]]] = [
    (GUESS, SMALL),
    ("TrlEnv/Echo-v0", {}),
    ("TrlEnv/Wordle-v0", {}),
    ("TrlEnv/Hangman-v0", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
]


def rows(episodes: Iterable[Episode]) -> list[Segment]:
    return [episode.row for episode in episodes]


def sampled(episode: Episode) -> list[TokenIds]:
    spans = [turn.spans[-1] for turn in episode.turns]
    return [episode.segments[segment].completion_ids[start:stop] for segment, start, stop in spans]


def sampled_again(episode: Episode, spec: GymSpec, chat: Chat, limits: Limits = LIMITS) -> Episode:
    """The episode of a rollout in which an engine samples the same ids."""
    responses = sampled(episode)
    engine = ScriptedEngine(lambda request: responses[request.turn - 1])
    preamble = [] if spec.options.system_prompt is None else [Message("system", spec.options.system_prompt)]
    with make_pool(spec.make) as pool:
        [[again]] = run(
            rollout([episode.task], pool=pool, engine=engine, chat=chat, limits=limits, preambles=[preamble])
        )
    assert engine.requests[-1].prompt_ids + responses[-1] == again.row.ids
    return again


# ---------------------------------------------------------------------------------------------------------------------
# Laws 1 and 2
# ---------------------------------------------------------------------------------------------------------------------


@examples(60)
@given(
    chat=st.sampled_from(sorted(CHATS)),
    game=st.sampled_from(GAMES),
    policy=st.sampled_from(["solver", "random"]),
    options=st.fixed_dictionaries(
        {
            "action_format": st.sampled_from(["tag", "boxed", "json:move", "plain"]),
            "system_prompt": st.sampled_from([None, "Play well."]),
            "seed": st.integers(0, 2**32 - 1),
        }
    ),
)
def test_a_demonstration_is_the_transcript_of_a_rollout_that_samples_it(
    chat: str, game: tuple[str, dict[str, Any]], policy: str, options: dict[str, Any]
) -> None:
    if game[0] == "FrozenLake-v1":  # it has no solver
        policy = "random"
    used = CHATS[chat]()
    spec = spec_of(*game, num_tasks=2, **options)
    for result in play(policy, spec, used, keep="all", episodes=2).kept:
        again = sampled_again(result, spec, used)
        assert (again.row.ids, again.row.mask) == (result.row.ids, result.row.mask)
        assert again.turns == result.turns
        assert (again.stop_reason, again.success) == (result.stop_reason, result.success)
        assert all(ids[-1] in used.stop_ids for ids in sampled(result))


@pytest.mark.trl
@pytest.mark.parametrize("action_format", ["tag", "plain"])
def test_the_trainers_rollout_of_the_same_responses_has_the_same_columns(
    action_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import tiny_trainer

    spec = spec_of(action_format=action_format, system_prompt="Play well.", max_tokens_per_turn=32, num_tasks=4)
    settings = {"per_device_train_batch_size": 4, "max_completion_length": 256}
    trainer = tiny_trainer.make(tmp_path, spec, grpo=settings)
    kept = play("solver", spec, limits=Limits(32, 256, 2048), episodes=4).kept
    responses = [sampled(result) for result in kept]
    engine = ScriptedEngine(lambda request: responses[int(request.episode_id)][request.turn - 1])
    monkeypatch.setattr("gym_trl.grpo.rollout_func.trainer_engine", lambda *_, **__: nullcontext(engine))
    columns = spec.rollout_func(list(spec.train_dataset["prompt"]), trainer)
    assert columns["prompt_ids"] == [result.row.prompt_ids for result in kept]
    assert columns["completion_ids"] == [result.row.completion_ids for result in kept]
    assert columns["env_mask"] == [result.row.mask for result in kept]


def test_logprobs_of_what_was_not_sampled_are_unknown() -> None:
    [result] = play("solver", spec_of(), episodes=1).kept
    assert {logprob for logprob, bit in zip(result.row.logprobs, result.row.mask, strict=True) if bit} == {None}
    assert {logprob for logprob, bit in zip(result.row.logprobs, result.row.mask, strict=True) if not bit} <= {0.0}


def test_a_response_is_cut_off_where_the_models_would_be() -> None:
    spec = spec_of(action_format="plain", cut_actions="accept")
    limits = Limits(tokens_per_turn=1, tokens=128)
    for result in play("solver", spec, limits=limits).kept:
        assert {len(ids) for ids in sampled(result)} == {1}  # a digit, without the end of the turn
        assert sampled_again(result, spec, CHATS["tiny"](), limits).row.mask == result.row.mask


def test_the_same_seed_gives_the_same_demonstrations_and_another_seed_others() -> None:
    first, again, other = (play("random", spec_of(seed=seed)).kept for seed in (0, 0, 1))
    assert rows(first) == rows(again) != rows(other)


# ---------------------------------------------------------------------------------------------------------------------
# Episodes to train on
# ---------------------------------------------------------------------------------------------------------------------


def test_legal_random_episodes_are_kept_unless_success_is_asked_for() -> None:
    every = play("random", spec_of(num_tasks=40), episodes=40)
    assert (len(every.kept), every.dropped) == (40, {})
    wins = [result for result in every.kept if result.success]
    chosen = play("random", spec_of(num_tasks=40), episodes=40, keep="successful")
    assert rows(chosen.kept) == rows(wins)
    assert chosen.dropped == {"without success": 40 - len(wins)}
    assert 0 < len(wins) < 40


def test_a_solvers_failures_are_dropped() -> None:
    spec = spec_of(env_kwargs={"high": 8, "turns": 2}, num_tasks=16)
    found = play("solver", spec, episodes=16)
    assert all(result.success for result in found.kept)
    assert found.dropped == {"without success": 16 - len(found.kept)}
    assert 0 < len(found.kept) < 16
    assert (
        found.account() == f"{len(found.kept)} of 16 episodes can be trained on: {16 - len(found.kept)} without success"
    )


def test_an_episode_with_an_invalid_action_is_never_kept() -> None:
    def stray(env: Any) -> Callable[[str], str]:
        guesses = iter(["ninety", *"12345678"])
        return lambda observation: next(guesses)

    with pytest.raises(ConfigError, match="0 of 6 episodes can be trained on: 6 with an invalid action"):
        play(as_policy(stray), spec_of(), keep="all")  # type: ignore[arg-type]


def test_success_that_nobody_declares_is_not_guessed() -> None:
    spec = spec_of("CliffWalking-v1", turn_limit=5)
    found = play("random", spec, keep="successful")
    assert (len(found.kept), found.undeclared) == (6, 6)
    best = max(result.episode_return or 0.0 for result in found.kept)
    chosen = play("random", spec, keep="successful", min_return=best)
    assert {result.episode_return for result in chosen.kept} == {best}
    assert chosen.dropped == ({f"with a return below {best:g}": 6 - len(chosen.kept)} if len(chosen.kept) < 6 else {})


def test_characters_that_the_tokenizer_lacks_are_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot write the response"):
        play(as_policy(lambda env: lambda observation: "\u00e9"), spec_of())  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------


def test_records_of_a_solver_are_its_demonstrations(tmp_path: Path) -> None:
    evaluate(GUESS, "solver", episodes=8, env_kwargs=SMALL, out=tmp_path)
    chat, spec = CHATS["tiny"](), spec_of(action_format="tag")
    found = play(str(tmp_path), spec, chat, episodes=None)
    assert (found.played, len(found.kept), found.evaluated) == (8, 8, 8)
    records = list(read_records(tmp_path))
    assert [[turn.action for turn in result.turns] for result in found.kept] == [
        [turn["answer"] for turn in record["turns"]] for record in records
    ]
    assert sampled_again(found.kept[0], spec, chat).row.mask == found.kept[0].row.mask


def test_recorded_ids_are_used_unchanged(tmp_path: Path) -> None:
    spec, chat = spec_of(action_format="plain"), CHATS["tiny"]()
    [result] = play("solver", spec, chat, episodes=1).kept
    # A model may write spaces that an action has not.
    unusual = [chat.encoder.encode(" ") + ids for ids in sampled(result)]
    engine = ScriptedEngine(lambda request: unusual[request.turn - 1])
    with make_pool(spec.make) as pool:
        [[played]] = run(rollout([result.task], pool=pool, engine=engine, chat=chat, limits=LIMITS))
    write(tmp_path, played, action_format="plain")
    [again] = play(str(tmp_path), spec, chat).kept
    assert again.row.completion_ids == played.row.completion_ids != result.row.completion_ids


def test_recorded_ids_of_another_tokenizer_are_not_used(tmp_path: Path) -> None:
    spec, chat = spec_of(action_format="plain"), CHATS["tiny"]()
    [result] = play("solver", spec, chat, episodes=1).kept
    write(tmp_path, result, action_format="plain")
    other = CHATS["qwen3"]()
    [again] = play(str(tmp_path), spec, other).kept
    assert [other.text(ids).text for ids in sampled(again)] == [turn.answer.text for turn in result.turns]
    assert sampled_again(again, spec, other).row.completion_ids == again.row.completion_ids


def test_records_that_play_differently_now_are_dropped(tmp_path: Path) -> None:
    results = play("solver", spec_of(), episodes=2).kept
    write(tmp_path, *results, change={"seed": 12345, "options": {}})
    with pytest.raises(ConfigError, match=r"when it was recorded|goes on"):
        play(str(tmp_path), spec_of(), episodes=2)


def test_seats_of_games_are_refused_with_advice(tmp_path: Path) -> None:
    env = "TrlEnv/KuhnPoker-v0"
    games = play_games(env, env, lambda rng: "bet", seeds=[0])
    folder = write_games(tmp_path / "run", games)
    with pytest.raises(ConfigError, match="single seats of games, which cannot be played again one by one: train on"):
        play(str(folder), spec_of(env, wrappers=[Opponent]))
    with pytest.raises(ConfigError, match="a warm start plays one seat of a game, against others: leave out seats="):
        play("solver", spec_of(env, seats="self"))


@pytest.mark.parametrize(("env", "kwargs"), [("TrlEnv/Echo-v0", {}), (GUESS, {"high": 9, "turns": 4})])
def test_records_of_another_environment_are_refused(env: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    evaluate(env, "solver", episodes=2, env_kwargs=kwargs, out=tmp_path)
    with pytest.raises(ConfigError, match=f"no scored episode of {GUESS} with .*it has 2 of {env}"):
        play(str(tmp_path), spec_of())


@pytest.mark.lm
def test_demonstrations_for_the_pretrained_model_are_what_it_would_sample(pretrained: Path) -> None:
    chat = Chat(load_tokenizer(str(pretrained)))
    spec = spec_of(system_prompt="Play well.")
    for policy in ("solver", "random"):
        for result in play(policy, spec, chat).kept:
            again = sampled_again(result, spec, chat)
            assert (again.row.ids, again.row.mask) == (result.row.ids, result.row.mask)


def test_demonstrations_with_a_history_are_trained_segment_by_segment() -> None:
    found = play("solver", spec_of(env_kwargs={"high": 50, "turns": 6}, history=1, max_tokens_per_turn=16))
    for result in found.kept:
        assert [row["input_ids"] for row in sft_rows(result)] == [segment.ids for segment in result.segments]
    assert any(len(result.segments) > 1 for result in found.kept)


def write(folder: Path, *results: Episode, action_format: str = "tag", change: dict[str, Any] | None = None) -> None:
    """Record episodes with their tokens."""
    with RecordWriter(folder) as records:
        for result in results:
            wrapping = {"action_format": action_format}
            record = as_record(result, env_kwargs=SMALL, spec=wrapping, tokens=True, split="train")
            record["task"] = {**record["task"], **(change or {})}  # type: ignore[typeddict-item]
            records.write(record)

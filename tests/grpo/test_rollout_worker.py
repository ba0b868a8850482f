"""The worker against its protocol, in the real AsyncGRPOTrainer, and with the real ``vllm serve``."""

import json
import math
import queue
import re
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import warm
from support.credited import credited
from support.vllm_double import LOGPROB, VLLMDouble
from support.vllm_serve import TRL, Server

from gym_trl import GymSpec
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.grpo.checkpoints import DECLARING, TRAINED
from gym_trl.grpo.parts.start_from import StartFrom
from gym_trl.grpo.rollout_worker import RolloutWorker
from gym_trl.options import Curriculum, History
from gym_trl.testing import ByteChat, save_tiny, tiny_tokenizer
from gym_trl.types import Completion, FinishReason, StopReason

GUESS = "TrlEnv/GuessNumber-v0"
SCRIPT = Path(__file__).parent / "train_async.py"
CHAT = ByteChat()
needs_trl = [pytest.mark.trl, pytest.mark.processes, pytest.mark.full]


def config(url="http://localhost:1", **options):
    from trl.experimental.async_grpo import AsyncGRPOConfig

    given: dict[str, Any] = {
        "num_generations": 4,
        "max_inflight_tasks": 8,
        "queue_maxsize": 16,
        "max_completion_length": 400,
    }
    given |= {"vllm_server_base_url": url, "use_cpu": True, "bf16": False, "report_to": [], "request_timeout": 30}
    return AsyncGRPOConfig("unused", **{**given, **options})


def spec(**options):
    given = {"env_kwargs": {"high": 8, "turns": 4}, "num_tasks": 16, "action_format": None, "chat": CHAT}
    return GymSpec(GUESS, **{**given, **options})


def halving(request):
    """Plays well, but for every fourth request, which is answered by chance."""
    low, high, guess = 1, 8, 4
    for answer in re.findall("<user>(Higher|Lower)", CHAT.show(request.prompt_ids)):
        low, high = (guess + 1, high) if answer == "Higher" else (low, guess - 1)
        guess = (low + high) // 2
    return CHAT.say(str(guess if request.seed % 4 else request.seed % 9))


@pytest.fixture
def started():
    """Starts workers, and stops them whatever happens."""
    workers = []

    def start(of, args=None, engine=None, *, answer=halving, server=False, **script):
        scripted = None if server else lambda: ScriptedEngine(answer, **script)
        made = of.rollout_worker(args or config(), tiny_tokenizer(), engine=engine or scripted)
        workers.append(made)
        made.update_model_version(1)
        made.start()
        return made

    yield start
    for worker in workers:
        worker.stop()


def take(worker, count):
    """As the trainer does, but not for ever."""
    return [worker.rollout_buffer.get(timeout=20) for _ in range(count)]


def metrics(worker):
    found: dict[str, list] = {}
    while True:
        try:
            measured = worker.metrics_queue.get_nowait()
        except queue.Empty:
            return found
        for name, value in measured.items():
            found.setdefault(name, []).append(value)


def eventually(said, deadline_s=20.0):
    """Until ``said()`` is true; what it says at last."""
    end = time.monotonic() + deadline_s
    while not (answer := said()) and time.monotonic() < end:
        time.sleep(0.01)
    return answer


def terms(samples):
    """Return the terms of a loss: each trained token with the ids before it, and its advantage."""
    return [
        (tuple(sample.input_ids[: place + 1].tolist()), sample.advantage)
        for sample in samples
        for place, trained in enumerate(sample.completion_mask)
        if trained
    ]


def terms_of(episode, values, spans):
    """Return the same of an episode whose turns have these advantages."""
    trace, start = episode.trace, 0
    for segment, border in zip(trace.segments, [*trace.borders, None], strict=True):
        whole, before = segment.prompt_ids + segment.completion_ids, len(segment.prompt_ids)
        for place, trained in enumerate(segment.mask):
            if trained:
                of_turn = [value for value, (a, b) in zip(values, spans, strict=True) if a <= start + place < b]
                yield tuple(whole[: before + place + 1]), sum(of_turn)
        start = border.stop if border else start


class TestTheProtocol:
    def test_it_has_all_that_trl_asks_of_a_worker(self):
        from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol

        worker = spec().rollout_worker(config(), tiny_tokenizer())
        asked = [
            *RolloutWorkerProtocol.__annotations__,
            *(name for name in vars(RolloutWorkerProtocol) if name[0] != "_"),
        ]
        assert len(asked) == 6
        assert all(hasattr(worker, name) for name in asked)

    def test_groups_play_the_tasks_in_their_order_again_and_again(self, started):
        """Law 6: the word that is shown tells the tasks apart."""
        of = GymSpec("TrlEnv/Echo-v0", num_tasks=5, action_format=None, chat=CHAT)
        env = of.make("TrlEnv/Echo-v0")
        shown = [env.reset(seed=task.seed, options=dict(task.options) or None)[0] for task in of.tasks("train")]
        samples = take(started(of, delay=lambda request: 1 + request.seed % 9), 60)
        for sample in samples:
            assert sample.prompt[-1]["content"].endswith(f"\n\n{shown[sample.group_id % 5]}")
        assert max(sample.group_id for sample in samples) >= 14

    def test_a_sample_is_what_the_engine_was_given_and_returned(self, started):
        """Laws 1 and 2."""
        engine = ScriptedEngine(halving, delay=lambda request: 1 + request.seed % 5)
        played: list[Any] = []
        worker = started(spec(on_rollout=played.append), engine=lambda: engine)
        samples = take(worker, 48)
        worker.stop()
        spoken = {(tuple(request.prompt_ids), tuple(halving(request))) for request in engine.requests}
        trajectories = {tuple(one.prompt_ids + one.completion_ids): one for group in played for one in group.episodes}
        for sample in samples:
            ids, mask = sample.input_ids.tolist(), sample.completion_mask.tolist()
            assert len(ids) == len(mask) == len(sample.old_log_probs)
            assert [logprob != 0 for logprob in sample.old_log_probs.tolist()] == [bool(bit) for bit in mask]
            assert mask[-1] == 1
            for turn in trajectories[tuple(ids)].turns:
                before = len(trajectories[tuple(ids)].prompt_ids)
                start, stop = before + turn.start, before + turn.stop
                assert (tuple(ids[:start]), tuple(ids[start:stop])) in spoken
                assert mask[start:stop] == [1] * (stop - start)
        kinds = (np.int64, np.int64, np.float32)
        assert (
            tuple(getattr(samples[0], name).dtype for name in ("input_ids", "completion_mask", "old_log_probs"))
            == kinds
        )

    def test_an_episode_of_several_segments_is_as_many_samples_with_one_advantage(self, started):
        played: list[Any] = []
        worker = started(spec(on_rollout=played.append, history=History(last=0, most=1), max_tokens_per_turn=9))
        samples = take(worker, 24)
        worker.stop()
        by_ids = {}
        for group in played:
            for episode in group.episodes:
                for segment in episode.trace.segments:
                    by_ids[tuple(segment.prompt_ids + segment.completion_ids)] = segment, episode
        assert any(len(episode.trace.segments) > 1 for _, episode in by_ids.values())
        for sample in samples:
            segment, episode = by_ids[tuple(sample.input_ids.tolist())]
            assert sample.completion_mask.tolist() == [0] * len(segment.prompt_ids) + segment.mask
            assert bool(sample.metrics) == (segment == episode.trace.segments[0]), "an episode is logged once"

    @pytest.mark.parametrize("history", [None, History(last=0, most=1)], ids=["whole", "segments"])
    @pytest.mark.parametrize("credit", ["return_to_go", "gigpo", "pool"])
    def test_credit_per_turn_trains_each_token_as_the_synchronous_trainer_does(self, started, credit, history):
        """Each token once, after the same ids, and with the advantage of its turn."""
        played: list[Any] = []
        options = {"env_kwargs": {"high": 8, "turns": 4, "reward": "efficient"}, "max_tokens_per_turn": 9}
        of = spec(credit=credit, on_rollout=played.append, history=history, **options)
        tasks = list(of.tasks("train"))
        worker = started(of, answer=lambda request: CHAT.say(str(1 + request.seed % 8)))
        samples: list[Any] = []
        while len({sample.group_id for sample in samples}) < 7:
            samples += take(worker, 1)
        worker.stop()
        wanted: dict[int, list[Any]] = {}
        for rollout in played:
            advantages = credited(rollout.episodes, credit, scale="group")
            for episode, values, spans in zip(rollout.episodes, advantages.values, advantages.spans, strict=True):
                wanted.setdefault(tasks.index(episode.task), []).extend(terms_of(episode, values, spans))
        for group in {sample.group_id for sample in samples[:-1]} - {samples[-1].group_id}:  # it may be taken in part
            trained = sorted(terms(sample for sample in samples if sample.group_id == group))
            assert [ids for ids, _ in trained] == [ids for ids, _ in sorted(wanted[group])]
            assert [value for _, value in trained] == pytest.approx([value for _, value in sorted(wanted[group])])
        assert len({(sample.group_id, sample.advantage) for sample in samples}) > 7 * 2

    def test_messages_are_split_where_the_model_began_to_speak(self, started):
        (sample, *_) = take(started(spec(system_prompt="Be brief.")), 4)
        assert [message["role"] for message in sample.prompt] == ["system", "user"]
        assert {message["role"] for message in sample.completion[::2]} == {"assistant"}
        assert {message["role"] for message in sample.completion[1::2]} == {"user"}

    def test_advantages_are_those_of_trls_own_worker(self, started):
        samples = take(started(spec(env_kwargs={"high": 8, "turns": 4, "reward": "efficient"})), 80)
        groups: dict[int, list] = {}
        for sample in samples:
            groups.setdefault(sample.group_id, []).append(sample)
        complete = [group for group in groups.values() if len(group) == 4]
        assert len(complete) > 10
        for group in complete:
            rewards = np.array([sample.metrics["reward"] for sample in group])
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
            assert [sample.advantage for sample in group] == pytest.approx(expected.tolist())
        assert any(sample.advantage > 0 for sample in samples)

    def test_members_are_sampled_apart_and_again_in_the_next_pass(self, started):
        engine = ScriptedEngine(halving)
        take(started(spec(num_tasks=2), engine=lambda: engine), 32)
        seeds = [request.seed for request in list(engine.requests)]
        assert len(seeds) == len(set(seeds))

    def test_a_sample_has_the_version_that_was_live_when_its_group_began(self, started):
        gate = threading.Event()

        class Slow(ScriptedEngine):
            def collect(self, *, block):
                return super().collect(block=block) if gate.is_set() else []

        worker = started(spec(), args=config(max_inflight_tasks=4), engine=lambda: Slow(halving))
        eventually(lambda: worker._playing == 4)
        worker.update_model_version(7)
        gate.set()
        samples = take(worker, 12)
        assert {sample.model_version for sample in samples if sample.group_id == 0} == {1}
        assert {sample.model_version for sample in samples if sample.group_id > 0} == {7}
        assert all(0 <= time.time() - sample.enqueued_at < 60 for sample in samples)

    def test_no_episode_begins_while_the_buffer_is_full(self, started):
        engine = ScriptedEngine(halving)
        worker = started(spec(), args=config(queue_maxsize=8), engine=lambda: engine)
        assert eventually(worker.rollout_buffer.full)
        assert eventually(lambda: worker._playing == 0)
        asked = len(engine.requests)
        time.sleep(0.2)
        assert len(engine.requests) == asked
        worker.check_health(60)
        take(worker, 40)
        assert len(engine.requests) > asked
        assert max(metrics(worker)["rollout/backpressure_s"]) > 0.1

    def test_as_many_play_at_once_as_the_configuration_says_if_the_spec_allows_it(self, started):
        for of, most in ((spec(), 8), (spec(max_alive=3), 3)):
            engine = ScriptedEngine(halving, delay=lambda request: 10**9)
            worker = started(of, engine=lambda made=engine: made)
            assert eventually(lambda made=engine, most=most: made.pending == most)
            worker.stop()
            assert engine.pending == 0

    def test_the_number_is_the_trainers_own_where_it_is_left_to_it(self):
        args = config(
            max_inflight_tasks=-1, per_device_train_batch_size=3, gradient_accumulation_steps=5, max_staleness=2
        )
        assert spec().rollout_worker(args, tiny_tokenizer())._inflight() == 30

    def test_stopping_in_the_middle_ends_it_at_once_and_starting_goes_on(self, started):
        engines: list[Any] = []

        class Closing(ScriptedEngine):
            closed = False

            def close(self):
                self.closed = True

        def engine():
            engines.append(Closing(halving, delay=lambda request: 10**9 if len(engines) == 1 else 1))
            return engines[-1]

        worker = started(spec(), engine=engine)
        assert eventually(lambda: engines[0].pending == 8)
        begun = time.monotonic()
        worker.stop()
        worker.stop()
        assert time.monotonic() - begun < 5
        assert (engines[0].pending, engines[0].closed) == (0, True)
        assert not [thread for thread in threading.enumerate() if thread.name == "gym-trl rollout worker"]
        with pytest.raises(EngineError, match="not running"):
            worker.check_health(60)
        worker.start()
        worker.start()
        assert min(sample.group_id for sample in take(worker, 8)) >= 2  # no number is used twice
        worker.check_health(60)

    def test_groups_of_an_earlier_training_are_left_out_and_others_unchanged(self):
        of = spec(num_tasks=5)
        played = []
        for left_out in ((), {0, 1, 3, 6}):
            worker = of.rollout_worker(config(), tiny_tokenizer(), engine=lambda: ScriptedEngine(halving))
            worker.begin_after(left_out)
            worker.start()
            try:
                played.append({(one.group_id, tuple(one.input_ids)) for one in take(worker, 4 * (8 - len(left_out)))})
            finally:
                worker.stop()
        assert {group for group, _ in played[1]} == {2, 4, 5, 7}
        assert played[1] == {(group, ids) for group, ids in played[0] if group in {2, 4, 5, 7}}

    def test_a_curriculum_is_climbed(self, started):
        climbed = Curriculum([{"high": 3}, {"high": 8}], episodes=8, fall=-1.0, rise=0.6)
        of = spec(env_kwargs={"turns": 4}, curriculum=climbed)
        said = [sample.prompt[0]["content"] for sample in take(started(of, answer=climb), 64)]
        assert "1 to 3" in said[0]
        assert "1 to 8" in said[-1]

    def test_a_part_gives_groups_their_first_turns(self, started):
        part, played = StartFrom(share=1.0), list[Any]()
        of = spec(parts=[part], on_rollout=played.append)
        samples = take(started(of, answer=lambda request: halving(replace(request, seed=1))), 32)  # always right
        given = [sample for sample in samples if len(sample.prompt) > 1]
        assert given
        for sample in given:
            assert {message["role"] for message in sample.prompt[1::2]} == {"assistant"}
            assert {message["role"] for message in sample.prompt[::2]} == {"user"}
            assert sample.completion[0]["role"] == "assistant"
            said = CHAT.show([id_ for id_, mask in zip(sample.input_ids, sample.completion_mask, strict=True) if mask])
            assert said.count("<end>") == sum(message["role"] == "assistant" for message in sample.completion)
        assert part.state["left"] > 1
        assert {one.given_turns for one in played[0].episodes} == {played[0].episodes[0].given_turns}


def climb(request):
    """Tries one after the other."""
    return CHAT.say(str(CHAT.show(request.prompt_ids).count("<user>Higher") + 1))


class TestWhatGoesWrong:
    def test_failed_episodes_are_counted_and_have_no_part_in_the_baseline(self, started):
        def answer(request):
            if request.seed % 3 == 0:
                return Completion(request.id, [], [], FinishReason.ERROR, "out of memory")
            return halving(request)

        played: list[Any] = []
        worker = started(spec(on_rollout=played.append, max_unscored=1.0), answer=answer)
        samples = take(worker, 40)
        worker.stop()
        groups: dict[int, list] = {sample.group_id: [] for sample in samples}
        for sample in samples:
            groups[sample.group_id].append(sample.metrics["reward"])
        by_group = {index: rollout.episodes for index, rollout in enumerate(played)}
        scored = sorted(sorted(one.episode_return for one in group if one.scored) for group in by_group.values())
        for rewards in list(groups.values())[:-1]:
            assert sorted(rewards) in scored
        for number in list(groups)[:-1]:
            paid = np.array(groups[number])
            expected = (paid - paid.mean()) / (paid.std() + 1e-8)
            assert [s.advantage for s in samples if s.group_id == number] == pytest.approx(expected.tolist())
        measured = metrics(worker)
        failed, total = (sum(pair) for pair in zip(*measured["env/unscored"], strict=True))
        assert 0 < failed < total
        assert total == 4 * len(played)
        assert failed == sum(not one.scored for group in by_group.values() for one in group)
        assert sum(pair[0] for pair in measured[f"env/stop/{StopReason.CANCELLED}"]) == failed

    def test_a_token_without_a_logprob_is_not_trained_on(self, started):
        def answer(request):
            ids = CHAT.say("4")
            return Completion(request.id, ids, [None, *[-1.0] * (len(ids) - 1)])

        for sample in take(started(spec(), answer=answer), 8):
            assert not np.isnan(sample.old_log_probs).any()
            assert ((sample.old_log_probs != 0) == (sample.completion_mask == 1)).all()
            assert 0 < sample.completion_mask.sum() < sum(len(CHAT.say("4")) for _ in range(4)) + 1

    def test_an_engine_that_breaks_reaches_the_trainer(self, started):
        def answer(request):
            raise EngineError("the model's logits are not numbers any more")

        worker = started(spec(), answer=answer)
        assert eventually(lambda: worker._failure)
        with pytest.raises(EngineError, match=r"has failed: .*not numbers any more") as caught:
            worker.check_health(60)
        assert isinstance(caught.value.__cause__, EngineError)

    def test_a_worker_that_does_not_move_reaches_the_trainer(self, started):
        gate = threading.Event()
        worker = started(spec(), answer=lambda request: gate.wait(20) and halving(request))
        time.sleep(0.3)
        with pytest.raises(EngineError, match="has made no progress"):
            worker.check_health(0.2)
        worker.check_health(60)
        gate.set()

    def test_nothing_but_failures_reaches_the_trainer_in_the_end(self, started):
        def answer(request):
            return Completion(request.id, [], [], FinishReason.ERROR, "no server")

        worker = started(spec(max_unscored=1.0), answer=answer)
        assert eventually(lambda: worker._unscored_since)
        worker.check_health(60)
        time.sleep(0.3)
        with pytest.raises(EngineError, match="no episode could be scored for"):
            worker.check_health(0.2)


class TestTheServer:
    """Over HTTP, with a double of vLLM's side."""

    def test_it_is_asked_as_the_configuration_says(self, started):
        args = {"temperature": 0.7, "repetition_penalty": 1.1, "max_completion_length": 100}
        with VLLMDouble() as vllm:
            worker = started(spec(max_tokens_per_turn=20), config(vllm.url, **args), server=True)
            samples = take(worker, 32)
            worker.stop()
        body = next(body for body in vllm.bodies if len(body["prompt"]) > 1)  # the check asks for one token
        assert {"temperature": 0.7, "repetition_penalty": 1.1, "top_k": 0, "top_p": 1.0}.items() <= body.items()
        assert set(body["stop_token_ids"]) == {tiny_tokenizer().eos_token_id, *CHAT.stop_ids}
        assert 2 < body["max_tokens"] <= 20
        assert 4 <= vllm.peak <= 8  # all of them, on a machine with nothing else to do
        assert {sample.group_id for sample in samples} >= set(range(6))
        for sample in samples:
            logprobs = sample.old_log_probs[sample.completion_mask == 1]
            assert logprobs[0] == LOGPROB

    def test_an_episodes_budget_is_the_completions_the_servers_and_the_trainers(self, started):
        budget = {"max_completion_length": 4000, "token_budget": 330}
        with VLLMDouble(lambda body: CHAT.say("9" * 40)) as vllm:
            worker = started(spec(), config(vllm.url, **budget), server=True)
            samples = take(worker, 8)
            worker.stop()
        assert max(len(sample.input_ids) for sample in samples) <= 330
        assert all(count == 0 for count, _ in metrics(worker)["env/unscored"])

    def test_a_server_that_is_missing_is_an_error_before_the_training(self):
        with pytest.raises(EngineError, match="no vLLM server answers"):
            spec().rollout_worker(config("http://127.0.0.1:9"), tiny_tokenizer()).start()

    def test_raw_logprobs_are_refused_where_they_matter(self):
        with VLLMDouble(mode="raw_logprobs") as vllm:
            worker = spec().rollout_worker(config(vllm.url, temperature=0.5), tiny_tokenizer())
            with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
                worker.start()

    def test_adapters_that_trl_syncs_behind_the_workers_back_are_refused(self):
        class WithAdapter(VLLMDouble):
            def _about(self):
                about = super()._about()
                about["/v1/models"]["data"].append({"id": "trl-policy-v1", "max_model_len": None})
                return about

        with WithAdapter() as vllm:
            worker = spec().rollout_worker(config(vllm.url), tiny_tokenizer())
            worker.update_model_version(1)
            with pytest.raises(ConfigError, match="without --enable-lora"):
                worker.start()

    def test_stopping_hangs_up_on_the_server(self, started):
        with VLLMDouble(fault=lambda body, attempt: "hang" if len(body["prompt"]) > 1 else None) as vllm:
            worker = started(spec(), config(vllm.url), server=True)
            assert eventually(lambda: vllm.working == 8)
            begun = time.monotonic()
            worker.stop()
            assert time.monotonic() - begun < 5
            assert eventually(lambda: vllm.hung_up == 8)


def train(folder, **options):
    done = warm.run(SCRIPT, folder, json.dumps(options))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return train(tmp_path_factory.mktemp("async"))


class TestTheTrainer:
    pytestmark = needs_trl

    def test_on_fresh_samples_the_trainer_finds_the_engines_own_logprobs(self, report):
        """Laws 1, 2 and 4 at once: any other token, place or logprob would move the ratio away from one."""
        assert {(sample["taken_at"], sample["version"]) for sample in report["samples"][:8]} == {(1, 1)}
        assert report["ratios"][0] == pytest.approx(1.0, abs=1e-4)
        assert abs(report["kls"][0]) < 1e-5
        # Later steps train on what an older model said, and the trainer sees that it did.
        assert any(abs(kl) > 1e-4 for kl in report["kls"][1:])

    def test_it_trains_and_the_engine_gets_the_weights(self, report):
        assert report["changed"]
        assert report["in_sync"]
        assert report["transfers"] == report["version"] == 5  # before the first step, and after each of four

    def test_samples_say_how_old_they_are_and_none_is_older_than_allowed(self, report):
        versions = [sample["version"] for sample in report["samples"]]
        assert versions == sorted(versions)
        assert {1} < set(versions)
        dropped = sum(log.get("sample/dropped_stale_total") or 0 for log in report["logs"])
        late = [s for s in report["samples"] if s["taken_at"] - s["version"] > 4]
        assert dropped == len(late)

    def test_a_group_is_trained_as_one(self, report):
        groups: dict[int, list] = {}
        for sample in report["samples"]:
            groups.setdefault(sample["group"], []).append(sample)
        whole = [group for group in groups.values() if len(group) == 4]
        assert len(whole) >= 8
        for group in whole:
            assert len({json.dumps(sample["prompt"]) for sample in group}) == 1
            assert sum(sample["advantage"] for sample in group) == pytest.approx(0, abs=1e-4)
            rewards = [sample["reward"] for sample in group]
            best = group[rewards.index(max(rewards))]
            assert best["advantage"] == max(sample["advantage"] for sample in group)
        assert len({json.dumps(group[0]["prompt"]) for group in whole}) == len(whole)

    def test_what_is_trained_is_what_the_model_said(self, report):
        tokenizer = tiny_tokenizer()
        for sample in report["samples"]:
            said, run = [], []
            for id_, bit in zip([*sample["ids"], 0], [*sample["mask"], 0], strict=True):
                if bit:
                    run.append(id_)
                elif run:
                    said.append(tokenizer.decode(run, skip_special_tokens=True).strip())
                    run = []
            assert said == [message["content"] for message in sample["completion"] if message["role"] == "assistant"]
            assert [logprob == 0 for logprob in sample["logprobs"]] == [bit == 0 for bit in sample["mask"]]

    def test_the_logs_have_the_numbers_of_the_environment(self, report):
        first = report["logs"][0]
        assert first["reward"] == pytest.approx(
            np.mean([sample["reward"] for sample in report["samples"][:8]]), abs=0.1
        )
        assert first["env/return"] > 0
        assert (first["env/unscored"], first["env/stop/failure"], first["env/turns"]) == (0.0, 1.0, 3.0)
        assert not any(isinstance(value, float) and math.isnan(value) for value in first.values())

    def test_it_ends_and_leaves_nothing_behind(self, report):
        """The script itself waits for the threads."""
        assert report["closed"] == 1


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_the_real_trainer_trains_turns_with_advantages_of_their_own(tmp_path):
    """A sample of a turn ends with it, so its tokens are sampled as the engine sampled them."""
    report = train(
        tmp_path, spec={"credit": "return_to_go"}, config={"max_steps": 2, "per_device_train_batch_size": 16}
    )
    samples = [sample for sample in report["samples"] if sample["taken_at"] == 1][:16]
    assert {sample["version"] for sample in samples} == {1}
    assert report["ratios"][0] == pytest.approx(1.0, abs=1e-4)
    assert report["changed"]
    assert sum(sample["reward"] is None for sample in samples) > len(samples) / 2, (
        "an episode of three turns is logged once"
    )
    assert all(sample["mask"][-1] == 1 for sample in samples)


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_a_resumed_training_trains_on_the_groups_that_are_left(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    train(tmp_path, config={"max_steps": 2, **saving})
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    saved = state["stateful_callbacks"][TRAINED]
    before = set(range(saved["next"])) - set(saved["left_out"])
    assert len(before) >= 3
    assert saved["model_version"] == 2
    report = train(tmp_path, resume=True, config={"max_steps": 4, **saving})
    counted, *trained = report["groups"]
    assert counted == len(before)
    assert not before & set(trained)
    # The lowest of the others, as far as 16 episodes at once and a buffer of 32 let them come out of order.
    others = [number for number in range(100) if number not in before]
    assert {sample["group"] for sample in report["samples"]} <= set(others[:20])
    assert min(sample["version"] for sample in report["samples"]) == 3  # sent once more as it begins
    of = GymSpec("TrlEnv/Echo-v0", env_kwargs={"turns": 3}, num_tasks=40, action_format="plain")
    env = of.make("TrlEnv/Echo-v0")
    shown = [env.reset(seed=task.seed, options=dict(task.options) or None)[0] for task in of.tasks("train")]
    for sample in report["samples"]:
        assert sample["prompt"][-1]["content"].endswith(f"\n\n{shown[sample['group'] % 40]}")
    again = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    last = again["stateful_callbacks"][TRAINED]
    assert set(range(last["next"])) - set(last["left_out"]) == before | set(trained)


def a_trainer(worker):
    return SimpleNamespace(
        rollout_worker=worker, callback_handler=SimpleNamespace(callbacks=[]), _trained_groups=set(), model_version=3
    )


@pytest.mark.trl
def test_a_curriculum_goes_on_at_its_level():
    from gym_trl.grpo.resume import ExactResume

    levels = [{"high": 4}, {"high": 8}, {"high": 16}]
    state = SimpleNamespace(global_step=2, stateful_callbacks={})
    for level in (2, 0):
        made = spec(curriculum=Curriculum(levels, episodes=4))
        curriculum: Any = made.curriculum
        trainer = a_trainer(made.rollout_worker(config(), tiny_tokenizer()))
        ExactResume().attach(trainer)
        [callback] = trainer.callback_handler.callbacks
        if level:
            curriculum.report([(0, True)] * 4)
            curriculum.report([(1, True)] * 4)
            callback.on_step_end(None, state, None)
            state.stateful_callbacks = json.loads(json.dumps(state.stateful_callbacks))
        else:
            assert curriculum.level == 0
            callback.on_train_begin(None, state, None)
        assert curriculum.level == 2


def test_a_worker_remembers_in_its_state_which_environments_declare_success():
    first, second = (spec().rollout_worker(config(), tiny_tokenizer()) for _ in range(2))
    first.state = {DECLARING: ["TrlEnv/Echo-v0"]}
    second.state = json.loads(json.dumps(first.state))
    assert second.state[DECLARING] == ["TrlEnv/Echo-v0"]


@pytest.mark.trl
def test_a_checkpoint_without_groups_is_said_and_trls_own_worker_is_left_alone():
    from gym_trl.grpo.resume import ExactResume

    trainer = a_trainer(spec().rollout_worker(config(), tiny_tokenizer()))
    ExactResume().attach(trainer)
    with pytest.warns(UserWarning, match="saved without ExactResume"):
        trainer.callback_handler.callbacks[0].on_train_begin(
            None, SimpleNamespace(global_step=2, stateful_callbacks={}), None
        )
    trls = a_trainer(object())
    ExactResume().attach(trls)
    assert trls.callback_handler.callbacks == []


@pytest.mark.vllm
@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-full does it on Linux")
def test_it_trains_on_what_a_real_vllm_server_sampled(tmp_path):
    """All but the way of the weights, which is NCCL: with a learning rate of 0 they stay right as they are."""
    save_tiny(tmp_path / "tiny")
    server = Server(tmp_path / "tiny", *TRL)
    try:
        server.start()
        server.wait()
        report = train(tmp_path, server=server.url, model=str(tmp_path / "tiny"), config={"max_steps": 3})
        running = server.metric("num_requests_running")
    finally:
        server.close()
    assert report["ratios"] == pytest.approx([1.0] * len(report["ratios"]), abs=1e-4)
    assert len(report["ratios"]) >= 3
    assert {log["env/unscored"] for log in report["logs"] if "env/unscored" in log} == {0.0}
    assert running == 0


def test_a_worker_that_is_never_started_costs_nothing():
    before = threading.active_count()
    assert isinstance(spec().rollout_worker(config(), tiny_tokenizer()), RolloutWorker)
    assert threading.active_count() == before

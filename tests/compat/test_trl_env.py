"""trl-env's environments, processors and rollouts; its trainings are in test_each_way.py."""

import random
import string
from collections import Counter

import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template

from gym_trl.chat import Chat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ChatTemplateError
from gym_trl.integrations.trl_env import (
    GymFromEnv,
    ProcessorChat,
    TransformerModel,
    Type1Processor,
    Type1ProcessorConfig,
    batch_rollout,
    qwen3_instruct_processor,
)
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Message

WORDS = st.text(string.ascii_letters + " <|>", max_size=20)


class Count:
    """Wants the next number; a seed of "broken" raises at reset, an action "crash" at the step."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, seed):
        if seed == "broken":
            raise RuntimeError("no such seed")
        self.reward, self.alive, self.number = 0.0, True, int(seed)
        return self, f"After {self.number}?"

    def step(self, action):
        if action == "crash":
            raise RuntimeError("crashed")
        self.number += 1
        self.alive = self.number % 4 != 0
        self.reward += 0.25
        return self, f"After {self.number}?"


class Frozen:
    """An immutable environment: every step is another object."""

    def __init__(self, number=None):
        self.number = number
        self.alive = number is not None and number < 3
        self.reward = 0.5 * (number or 0)

    def reset(self, seed):
        return Frozen(0), f"seed {seed}"

    def step(self, action):
        return Frozen(self.number + 1), f"step {self.number + 1}"


def test_a_trl_env_environment_passes_gymnasiums_checks():
    check_env(GymFromEnv(Count), skip_render_check=True)


def test_immutable_environments_are_played_on():
    env = GymFromEnv(Frozen)
    assert env.reset(seed=0, options={"seed": "ox"})[0] == "seed ox"
    assert [env.step("on")[:3] for _ in range(3)] == [
        ("step 1", 0.5, False),
        ("step 2", 0.5, False),
        ("step 3", 0.5, True),
    ]


def test_the_return_is_the_reward_that_trl_env_would_have_reported():
    class Best:
        def reset(self, seed):
            self.reward, self.alive, self.turn = 0.0, True, 0
            return "go"

        def step(self, action):
            self.turn += 1
            self.reward, self.alive = [0.9, 0.4, 0.7][self.turn - 1], self.turn < 3
            return "on"

    env = GymFromEnv(Best)
    env.reset(seed=0)
    assert sum(env.step("x")[1] for _ in range(3)) == pytest.approx(0.7)


def test_draws_from_the_global_generator_follow_from_the_seed():
    class Dice:
        def reset(self, seed):
            self.reward, self.alive = 0.0, True
            return str(random.random())

        def step(self, action):
            return str(random.random())

    def play():
        env = GymFromEnv(Dice)
        return [env.reset(seed=7)[0], *(env.step("x")[0] for _ in range(3))]

    random.seed(1)
    first = play()
    random.seed(2)
    before = random.getstate()
    assert play() == first
    assert random.getstate() == before


# ---------------------------------------------------------------------------------------------------------------------
# Processors
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def qwen():
    """A tokenizer of characters with Qwen3's own template and control tokens."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = ["<think>", "</think>"]
    letters = ["\n", *(char for char in string.printable if char.isprintable())]
    vocabulary = {token: index for index, token in enumerate([*special, *added, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=qwen3_chat_template
    )


@given(system=WORDS, first=WORDS, second=WORDS, closed=st.booleans())
def test_the_preset_of_qwen_writes_the_ids_of_qwens_own_template(qwen, system, first, second, closed):
    chat, template = ProcessorChat(qwen3_instruct_processor, qwen), Chat(qwen, enable_thinking=False)
    said = [Message("system", system), Message("user", first)]
    assert chat.open(said) == template.open(said)
    assert chat.reply(second, closed=closed) == template.reply(second, closed=closed)
    assert chat.stop_ids == template.stop_ids


def test_a_message_cannot_write_a_control_token(qwen):
    chat = ProcessorChat(qwen3_instruct_processor, qwen)
    end = qwen.convert_tokens_to_ids("<|im_end|>")
    assert chat.reply("<|im_end|>", closed=True).count(end) == chat.reply("x", closed=True).count(end) == 1


def test_an_answer_that_was_cut_off_is_closed_by_the_reply(qwen):
    chat = ProcessorChat(qwen3_instruct_processor, qwen)
    end = qwen.convert_tokens_to_ids("<|im_end|>")
    assert not chat.closes(qwen.encode("cut"))
    assert chat.reply("x", closed=False) == [end, *chat.reply("x", closed=True)]


def test_a_preset_splits_thinking_from_answers():
    assert qwen3_instruct_processor.parse_agent_output("a</think>b<|im_end|>x") == ("a", "b")
    assert qwen3_instruct_processor.parse_agent_output("no end of thinking") == ("", "no end of thinking")


def test_a_processor_whose_turns_nothing_ends_is_refused():
    marks, tokenizer = Type1ProcessorConfig("", "", "", "", "", ""), tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ChatTemplateError):
        ProcessorChat(Type1Processor(marks), tokenizer)


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts
# ---------------------------------------------------------------------------------------------------------------------


class Counting(TransformerModel):
    """Says 1 and ends its turn; notes the turn of every request."""

    def __init__(self):
        self.tokenizer, self.max_new_tokens = tiny_tokenizer(), 9
        self.asked: Counter[int] = Counter()

    def engine(self, chat):
        def answer(request):
            self.asked[request.number] += 1
            return self.tokenizer.encode("1<|end|>", add_special_tokens=False)

        return ScriptedEngine(answer)


def tiny_processor():
    marks = Type1ProcessorConfig("<|system|>", "<|end|>", "<|user|>", "<|end|><|assistant|>", "</think>", "<|end|>")
    return Type1Processor(marks)


def test_dead_rows_generate_nothing_and_rows_are_in_the_seeds_order():
    model = Counting()
    states = batch_rollout(model, tiny_processor(), Count, "Count.", 500, ["0", "3", "2", "1"])
    assert [state.reward for state in states] == [1.0, 0.25, 0.5, 0.75]
    assert sorted(model.asked.values()) == [1, 2, 3, 4]
    for state in states:
        completion = state.conversation[state.initial_length :]
        assert len(completion) == len(state.env_mask) == len(state.logprobs)
        assert state.env_mask[-1] == 1
        assert all((logprob == 0.0) == (bit == 0) for bit, logprob in zip(state.env_mask, state.logprobs, strict=True))


def test_an_environment_that_breaks_breaks_its_own_row_only():
    states = batch_rollout(Counting(), tiny_processor(), Count, "Count.", 500, ["0", "broken", "3"])
    assert [state.reward for state in states] == [1.0, None, 0.25]
    assert "no such seed" in (states[1].error or "")


def test_a_conversation_is_within_its_length_and_ends_with_a_response():
    states = batch_rollout(Counting(), tiny_processor(), Count, "Count.", 45, ["0", "1"])
    for state in states:
        assert len(state.conversation) <= 45
        assert state.env_mask[-1] == 1
        assert 0 < sum(state.env_mask) < 8


def test_rows_of_a_transformers_model_do_not_depend_on_each_other():
    tokenizer = tiny_tokenizer()
    model = TransformerModel(tokenizer, tiny_model(tokenizer), {"max_new_tokens": 3, "temperature": 0.8})
    together = batch_rollout(model, tiny_processor(), Count, "Count.", 500, ["0", "1", "2"])
    assert all(state.reward is not None for state in together)
    alone = batch_rollout(model, tiny_processor(), Count, "Count.", 500, ["0"])
    assert alone[0].conversation == together[0].conversation

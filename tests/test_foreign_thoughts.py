"""Thoughts of models whose chat templates this library does not ship are told from their answers."""

import re
from typing import Any

import pytest
from support.foreign_templates import SUITES, Foreign, foreign, tokenizer_for
from support.plays import Counts

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ChatTemplateError
from gym_trl.executors.inline import InlinePool
from gym_trl.options import History
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.types import Answer, Message, Task, TokenIds

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:foreign's chat template begins responses with '<judge>'"),
]

# Responses of models that do not write <think>, by a part of their template's name; up to the end of the turn.
RESPONSES = {
    "Ministral": "[THINK]{t}[/THINK]{a}",
    "(?i)seed-oss": "<seed:think>{t}</seed:think>\n{a}",
    "Apertus": "<|inner_prefix|>{t}<|inner_suffix|>{a}",
    "Apriel-1.6": "{t}\n[BEGIN FINAL RESPONSE]\n{a}",
    "Apriel-1.5": "Here are my reasoning steps:\n{t}\n[BEGIN FINAL RESPONSE]\n{a}\n[END FINAL RESPONSE]",
    "Kimi-K3": "{t}<|close|>think<|sep|><|open|>response<|sep|>{a}<|close|>response<|sep|><|close|>message<|sep|>",
    "gpt-?oss": "<|channel|>analysis<|message|>{t}<|end|><|start|>assistant<|channel|>final<|message|>{a}",
    "muse": " to=self<|message|>{t}<|eom|><|start|>assistant to=user<|message|>{a}",
    "Cohere2MoE": "{t}<|END_THINKING|><|START_TEXT|>{a}<|END_TEXT|>",
    "command-r7b": "<|START_THINKING|>{t}<|END_THINKING|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "command_a": "<|START_THINKING|>{t}<|END_THINKING|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "MiniMax-M3": "<mm:think>{t}</mm:think>{a}",
    "Hy3": "<think:opensource>{t}</think:opensource>{a}",
    "Solar": "<|think|>{t}<|end|><|begin|>assistant<|content|>{a}",
    "gemma-?4": "<|channel>thought\n{t}\n<channel|>{a}",
    "functionary-medium-v3.2": "<think>{t}</think>all\n{a}",
    "KAT": "{t}\n</judge>\n\n<think_off>\n{a}",
}
FIELDS = {"gpt-?oss": "thinking", "Solar": "reasoning", "lfm2_2_5$": "thinking"}
TEMPLATES = {f"{suite}: {name}": found for suite in SUITES for name, found in foreign(suite).items()}


class Model:
    """Model that thinks as its template wants it."""

    def __init__(self, name: str, found: Foreign) -> None:
        self.tokenizer = tokenizer_for(*found)
        try:
            self.chat = TemplateChat(self.tokenizer, appends=False)
        except ChatTemplateError as error:
            pytest.skip(f"refused: {error}")
        self.field = next((field for part, field in FIELDS.items() if re.search(part, name)), "reasoning_content")
        self.form = next((form for part, form in RESPONSES.items() if re.search(part, name)), "")
        self.end = found.eos

    def respond(self, answer: str, thought: str, prompt: str) -> TokenIds:
        begun = prompt.rstrip().endswith("<think>")
        form = self.form or ("" if begun else "<think>\n") + "{t}\n</think>\n\n{a}"
        text = form.replace("{t}", thought).replace("{a}", answer) + self.end
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def test_there_are_templates() -> None:
    if not TEMPLATES:
        pytest.skip("make test-full downloads the packages with the templates")
    assert len(TEMPLATES) > 150


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_model_thinks_and_only_its_answer_is_an_action_and_history(name: str) -> None:
    model = Model(name, TEMPLATES[name])
    chat, prompts = model.chat, []
    assert chat.text(chat.say("x")) == Answer("", "x")

    def respond(request: Any) -> TokenIds:
        prompts.append(chat.decode(request.prompt_ids))
        return model.respond(f"a{len(prompts) - 1}", f"Hm {len(prompts) - 1}.", prompts[-1])

    episode = Episode(Task("Counts", 0), chat=chat, limits=Limits(tokens_per_turn=400), history=History(template=True))
    with InlinePool(lambda _: Counts(4)) as pool:
        [result] = run_episodes([episode], pool=pool, engine=ScriptedEngine(respond))
    answers = [turn.answer for turn in result.turns]
    extra = "<think_off>\n" if "KAT" in name else ""
    assert answers == [Answer(f"Hm {turn}.", f"{extra}a{turn}") for turn in range(4)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Count.\n\no0"}]
    for turn, prompt in enumerate(prompts):
        written = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if chat._facts.lists_parts
            else message
            for message in messages
        ]
        assert prompt == model.tokenizer.apply_chat_template(written, tokenize=False, add_generation_prompt=True)
        said = {"role": "assistant", "content": f"{extra}a{turn}", model.field: f"Hm {turn}."}
        messages += [said, {"role": "user", "content": f"o{turn + 1}"}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_response_that_is_cut_off_in_its_thought_is_no_answer(name: str) -> None:
    model = Model(name, TEMPLATES[name])
    prompt = model.chat.decode(model.chat.open([Message("user", "?")]))
    ids = model.respond("7 and 8", "~ Maybe 3?", prompt)
    answers = [model.chat.text(ids[:cut]).text for cut in range(len(ids))]
    assert not [answer for answer in answers if "~" in answer or "Maybe" in answer]

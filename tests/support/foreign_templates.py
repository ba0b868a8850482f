"""Chat templates that this library does not ship: those in the packages that requirements-templates.txt names."""

import json
import random
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import transformers

from gym_trl.chat.template import TemplateChat
from gym_trl.errors import ChatTemplateError
from gym_trl.options import History
from gym_trl.rollout.episode import Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.types import Completion, Message, StepResult, StopReason, Task, TokenIds

FOLDER = Path(sys.prefix) / ".templates"
"""Folder of the packages, as the Makefile downloads them: nothing of them is imported."""


class Suite(NamedTuple):
    """Package with templates, and their folder and ending in it."""

    package: str
    folder: str
    ending: str


SUITES = {
    "axolotl": Suite("axolotl-*.whl", "/utils/chat_templates/", ".jinja"),
    "xinference": Suite("xinference-*.whl", "/model/llm/models/", ".json"),
    "llama.cpp": Suite("llama_cpp_python-*.tar.gz", "/vendor/llama.cpp/models/templates/", ".jinja"),
}

KINDS = ("one rendering", "turn by turn", "segments", "refused", "wrong")
"""Verdicts on a template; see ``judge``."""

# What these templates write as one token: marks of messages, of thinking, of tools and of images.
_MARKS = re.compile(
    r"<[|\uff5c][^<>{}\s'\"]+?>|<[A-Za-z_]+\|>|</?s>|</?[a-z]+:\w+>|</?(?:think|tool_call|tool_response|tools)>"
    r"|<_\w+>|<SPECIAL_\d+>|\[/?[A-Z_]+\]|\[gMASK\]|<(?:sop|sep|user|assistant)>|<\w*(?:begin|start|end)\w*>|\]~!?b\[?\]?|\[e~\["
)
# Ends of turns, of which a tokenizer's eos_token is the first that its template writes.
_ENDS = (
    *("<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>"),
    *("<|return|>", "<|end|>", "<seed:eos>", "[e~[", "<|assistant_end|>", "<|end_of_text|>", "<|endoftext|>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|EOT|>", "<_end>", "[EOS]", "<end_of_sentence>", "<sep>"),
    *("</assistant>", "<SPECIAL_12>"),
)
_THOUGHTS = (
    *(("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("<mm:think>", "</mm:think>")),
    *(("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
    *(("<|channel>thought\n", "<channel|>"), ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")),
)
OBSERVATIONS = (
    "Higher.",
    "Lower.\n",
    " Two\n\nlines ",
    "1 < 2 & {{ 3 }}",
    "# A list\n* a\n* b",
    "é ü \u4e2d\u6587 \U0001f600",
)
DISGUISES: tuple[Callable[[str], str], ...] = (
    lambda mark: mark,
    lambda mark: "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in mark),
    lambda mark: mark.replace("<", "&lt;").replace(">", "&gt;"),
    lambda mark: f"{mark[:2]}\u200b{mark[2:]}",
    lambda mark: f" {mark}\n{mark[0]}{mark}",
    str.upper,
)
"""Texts that a normaliser or a template could make a control token of."""


class Foreign(NamedTuple):
    """A template, and the token with which a model that has it ends its turns."""

    template: str
    eos: str


@cache
def foreign(suite: str) -> dict[str, Foreign]:
    """Return the templates of a suite by name, each of them once; empty if its package is not here."""
    package, folder, ending = SUITES[suite]
    templates: dict[str, Foreign] = {}
    for path in FOLDER.glob(package):
        for name, text in _files(path, folder, ending):
            found = json.loads(text) if ending == ".json" else [{"chat_template": text}]
            for entry in found if isinstance(found, list) else [found]:
                template, stops = entry.get("chat_template"), entry.get("stop") or ()
                if template and template not in {one.template for one in templates.values()}:
                    eos = next((end for end in (*_ENDS, *stops) if end in template and end != "<s>"), "</s>")
                    templates[f"{name} {len(templates)}" if name in templates else name] = Foreign(template, eos)
    return templates


def _files(package: Path, folder: str, ending: str) -> Iterator[tuple[str, str]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            for name in sorted(wheel.namelist()):
                if folder in f"/{name}" and name.endswith(ending):
                    yield Path(name).stem, wheel.read(name).decode()
        return
    with tarfile.open(package) as source:
        for member in source:
            if folder in f"/{member.name}" and member.name.endswith(ending):
                held = source.extractfile(member)
                assert held is not None
                yield Path(member.name).stem, held.read().decode()


def tokenizer_for(template: str, eos: str) -> Any:
    """Return a tokenizer of bytes for which each mark in the template is one token."""
    before = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = {char: index for index, char in enumerate(sorted(before.alphabet()))}
    base = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    base.pre_tokenizer, base.decoder = before, tokenizers.decoders.ByteLevel()
    bos = "<s>" if "<s>" in template or eos == "</s>" else "<bos>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=base, bos_token=bos, eos_token=eos, chat_template=template, name_or_path="foreign"
    )
    marks = sorted(set(_MARKS.findall(template)) - {bos, eos})
    special = [mark for mark in marks if not re.fullmatch(r"</?\w+>", mark)]
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in special])
    tags = [mark for mark in marks if mark not in special]
    tokenizer.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in tags])
    return tokenizer


class Verdict(NamedTuple):
    """Outcome for a template; see ``judge``."""

    kind: str
    why: str = ""


class WrongError(AssertionError):
    """A template for which something is not what a law says."""


def judge(found: Foreign, *, conversations: int = 6, seed: int = 0) -> Verdict:
    """Play random conversations with a template and return the verdict.

    They have one to nine answers, with and without a system message and thinking.

    ``"one rendering"``: without thinking, every prompt of the engine is the rendering of the whole conversation.
    ``"turn by turn"``: every prompt adds to the one before what the template writes around the new message.
    ``"segments"``: this is refused. In all three cases every prompt is a rendering with ``History(template=True)``.
    ``"refused"``: this is refused, too. ``"wrong"``: something else.
    """
    tokenizer, kind, refusal = tokenizer_for(*found), "", ""
    for history in (None, History(template=True)):
        try:
            chat = TemplateChat(tokenizer, appends=history is None)
        except ChatTemplateError as error:
            refusal = refusal or str(error)
            continue
        try:
            plays = range(2 if kind else conversations)
            draws = (random.Random(f"{seed} {index}") for index in plays)
            whole = [Play(chat, tokenizer, found, draw, history).check() for draw in draws]
            _check_control(chat, tokenizer, found)
        except (WrongError, ChatTemplateError) as error:
            return Verdict("wrong", f"{type(error).__name__}: {error}")
        kind = kind or ("segments" if history else "one rendering" if all(whole) else "turn by turn")
    return Verdict(kind or "refused", refusal)


class Play:
    """One episode with random messages, checked at each turn."""

    def __init__(
        self, chat: TemplateChat, tokenizer: Any, found: Foreign, draw: random.Random, history: History | None
    ) -> None:
        self.chat, self.tokenizer, self.found, self.draw, self.history = chat, tokenizer, found, draw, history
        system = draw.random() < 0.5
        self.preamble = [Message("system", "Play well.")] if system else []
        self.folds = system and chat._facts.folds_system
        self.thinks = draw.random() < 0.5
        self.turns = draw.choice([1, 2, 4, 9])
        # A model that learned the template ends a turn with its eos, after all that the template writes before that.
        asked = [*self.preamble, Message("user", "2 + 2?"), Message("assistant", "It is 4.")]
        between = self.render([*asked, Message("user", "Sure?")]).rpartition("It is 4.")[2].partition("Sure?")[0]
        before, ends, _ = between.partition(found.eos)
        self.end = before + found.eos if ends else found.eos

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def encode(self, text: str) -> TokenIds:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def render(self, messages: Sequence[Message]) -> str:
        said: list[dict[str, Any]] = [message.as_dict() for message in messages]
        if self.folds:
            system, first, *others = said
            said = [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *others]
        if self.chat._facts.lists_parts:
            said = [{"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in said]
        return str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))

    def response(self, turn: int, prompt: str) -> TokenIds:
        answer = f"It is {turn}."
        said = self.decode(self.chat.say(answer)).rpartition(answer)[0] + answer + self.end
        if not self.thinks or self.draw.random() < 0.3:
            return self.encode(said)
        for opening, closing in _THOUGHTS:
            if opening in self.found.template and closing.partition("><")[0] in self.found.template:
                head = "" if prompt.rstrip().endswith(opening) else opening
                rest = said.partition(closing)[2] or said
                return self.encode(f"{head}Hm, 3?{closing}{rest}")
        return self.encode(said)

    def check(self) -> bool:
        """Play, and return whether each prompt was the rendering of the whole conversation."""
        episode = Episode(
            Task("TrlEnv/Echo-v0", 0),
            chat=self.chat,
            limits=Limits(context=10**6),
            preamble=self.preamble,
            history=self.history,
        )
        wanted = episode.started(StepResult("Guess a number."))
        messages = [*self.preamble, Message("user", "Guess a number.")]
        whole, prompts = True, []
        for turn in range(self.turns + 1):
            assert isinstance(wanted, Sample)
            prompt = wanted.prompt_ids
            rendered = self.render(self._shown(episode, messages))
            if self.decode(prompt) != rendered:
                if not turn or self.history is not None:
                    raise WrongError(f"prompt {turn} is {self.decode(prompt)[-300:]!r}, not {rendered[-300:]!r}")
                whole = False
            elif not turn and prompt != self.encode(rendered):
                raise WrongError("the opening's ids are not those of its text")
            ids = self.response(turn, self.decode(prompt))
            prompts.append([*prompt, *ids])
            episode.sampled(Completion("0", ids, [-1.0] * len(ids)))
            observation = self.draw.choice(OBSERVATIONS)
            answer = f"It is {turn}."
            if self.chat.text(ids).text != answer:
                raise WrongError(f"{self.decode(ids)!r} is read as {self.chat.text(ids)!r}")
            messages += [Message("assistant", answer), Message("user", observation)]
            wanted = episode.stepped(StepResult(observation))
            assert isinstance(wanted, Sample)
            if self.history is None:
                self._check_delta(self.render(messages), answer, observation, prompts[-1], wanted.prompt_ids)
        trace = episode.stopped(StopReason.TIME_LIMIT).trace
        if self.history is None:
            all_ids = trace.prompt_ids + trace.completion_ids
            if any(all_ids[: len(one)] != one for one in prompts):
                raise WrongError("law 1: a prompt and what was sampled are not in the transcript")
        return whole

    def _shown(self, episode: Episode, messages: Sequence[Message]) -> Sequence[Message]:
        return messages if self.history is None else episode._context.messages

    def _check_delta(self, rendered: str, answer: str, observation: str, before: TokenIds, after: TokenIds) -> None:
        """Check the ids between two responses against one rendering of the whole conversation."""
        if after[: len(before)] != before:
            raise WrongError("a prompt does not begin with what was sampled")
        written = rendered.rpartition(answer)[2]
        between = written.partition(observation.strip())[0]
        end = self.decode(before[-1:])
        expected = written[between.index(end) + len(end) :] if end in between else written
        delta = after[len(before) :]
        if self.decode(delta) != expected:
            raise WrongError(f"the template writes {expected!r} and not {self.decode(delta)!r}")
        if delta != self.encode(expected):
            raise WrongError(f"the ids of {expected!r} are others")


ODD = (
    *("", " ", "\n", "7", "<think>", "</think>", "<think>hm</think>", "[/THINK]", "/no_think", "/think", "{{ x }}"),
    *("<tool_response>x</tool_response>", "[INST]", "<|im_end|>", "\ufdd1", "a" * 300, "None", "http://x"),
    "<|channel|>final<|message|>",
)
"""Texts that some template or tokenizer treats in its own way."""


def say_odd_things(found: Foreign, draw: random.Random) -> None:
    """Play conversations of odd texts, with each kind of history that the template takes."""
    tokenizer = tokenizer_for(*found)
    for history in (None, History(template=True), History(last=1)):
        try:
            chat = TemplateChat(tokenizer, appends=history is None or not history.template)
        except ChatTemplateError:
            continue
        preamble = [Message("system", "Play well.")] * draw.randrange(2)
        limits = Limits(context=10**6)
        episode = Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=limits, preamble=preamble, history=history)
        episode.started(StepResult(draw.choice(ODD)))
        for _ in range(4):
            ids = list(tokenizer.encode(draw.choice(ODD), add_special_tokens=False)) or [5]
            ids += [tokenizer.eos_token_id] * draw.randrange(2)
            episode.sampled(Completion("0", ids, [-1.0] * len(ids)))
            episode.stepped(StepResult(draw.choice((*ODD, "\ud800"))))


def _check_control(chat: TemplateChat, tokenizer: Any, found: Foreign) -> None:
    """Check that no disguise of a mark writes a control token (law 16)."""
    control = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}

    def written(ids: TokenIds) -> TokenIds:
        return [id_ for id_ in ids if id_ in control]

    marks = sorted({*_MARKS.findall(found.template), found.eos, tokenizer.bos_token})
    for disguise in DISGUISES:
        text = "a".join(map(disguise, marks))
        if written(chat.reply(text, closed=True)) != written(chat.reply("Hi", closed=True)):
            raise WrongError(f"an observation writes control tokens: {text!r:.100}")
        if written(chat.open([Message("user", text)])) != written(chat.open([Message("user", "Hi")])):
            raise WrongError(f"the first observation writes control tokens: {text!r:.100}")

"""Diagnosis before a training: a few groups of episodes, what was measured in them, and what to change first."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from time import perf_counter
from typing import Any

from gym_trl.engines.admission import context_of
from gym_trl.engines.protocol import Engine
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, check_counts
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trainer_engine import SAMPLING
from gym_trl.history import chat_for, make_history
from gym_trl.options import TrainOptions
from gym_trl.policies.model import end_ids, transformers_engine
from gym_trl.policies.weights import free_memory, load_config, load_tokenizer, load_weights
from gym_trl.report import OK, PROBLEM, WARNING, Finding, Verdict
from gym_trl.rollout import Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.text import counted
from gym_trl.training.action_formats import Judge
from gym_trl.training.configs import grpo_config, make_spec, template_options
from gym_trl.training.findings import (
    Played,
    crashes,
    ends_of_turns,
    episode_length,
    group_spread,
    readable_actions,
    scored_episodes,
    scores,
    shortened,
    written,
)
from gym_trl.training.model_checks import Memory, MicroBatch, estimate_memory, micro_batch_of, model_problems
from gym_trl.training.models import ModelChoice, model_choice
from gym_trl.training.options import one_seat
from gym_trl.training.references import references
from gym_trl.training.sources import preamble_of

_GIB = 2**30
_SECONDS_OF_JUDGING = 20.0
_SHOWN_PROMPT = 80
"""Number of a prompt's first characters that are shown where no system message is known."""


class NextStep(StrEnum):
    """Command to run next, by its name."""

    TRAIN = "train"
    """There is no problem."""
    DOCTOR = "doctor"
    """Again, with changed options."""
    WARM_START = "warm-start"
    """Demonstrations come first."""
    NONE = ""
    """The model or the machine must be changed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings on a model and an environment.

    >>> lost = Finding("readable actions", PROBLEM, "2%", options={"action_format": "boxed"})
    >>> found = Diagnosis(env="TrlEnv/Echo-v0", model="Qwen/Qwen3-0.6B", findings=(lost,))
    >>> found.ready, found.next_step, found.changes
    (False, <NextStep.DOCTOR: 'doctor'>, {'action_format': 'boxed'})
    """

    env: str
    model: str
    findings: tuple[Finding, ...]
    """Findings, the most important first."""
    prompt: str = ""
    """Prompt of the first turn as the model sees it, with special tokens."""
    reply: str = ""
    """Text of the environment's tokens between the first two responses of an episode; empty if no episode had two."""

    @property
    def problems(self) -> list[Finding]:
        """Findings with which a training would fail or teach nothing."""
        return [one for one in self.findings if one.verdict is PROBLEM]

    @property
    def ready(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    @property
    def warnings(self) -> list[Finding]:
        """Findings with which a training works, but worse than it could."""
        return [one for one in self.findings if one.verdict is WARNING]

    @property
    def changes(self) -> dict[str, Any]:
        """Options of a training, by name, that solve the first problem that options solve."""
        return next((dict(one.options) for one in self.problems if one.options), {})

    @property
    def next_step(self) -> NextStep:
        """Command to run next."""
        if self.ready:
            return NextStep.TRAIN
        if self.changes:
            return NextStep.DOCTOR
        return NextStep.WARM_START if any(one.warm_start for one in self.problems) else NextStep.NONE

    def finding(self, name: str) -> Finding:
        """Return the finding of this name.

        Raises:
            KeyError: there is none.
        """
        return {one.name: one for one in self.findings}[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON values."""
        return {
            "version": 1,
            "env": self.env,
            "model": self.model,
            "ready": self.ready,
            "next": str(self.next_step),
            "changes": self.changes,
            "findings": [one.as_dict() for one in self.findings],
            "prompt": self.prompt,
            "reply": self.reply,
        }


def diagnose(
    options: TrainOptions,
    *,
    groups: int = 8,
    free: int | None = None,
    on_load: Callable[[], None] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> Diagnosis:
    """Play groups of training tasks as a training with these options would, and report what stands in its way.

    ::

        found = diagnose(choose("TrlEnv/GuessNumber-v0", model="Qwen/Qwen3-0.6B"))
        print(found.ready, found.finding("readable actions").got)

    The episodes have the tasks, limits, sampling options and action format of the training. Nothing is trained or
    written. The model is loaded by Transformers, also for a training with vLLM. Of a game whose seats are all trained,
    it plays one, against random play.

    Args:
        options: Options of the training; ``model`` is required.
        groups: Number of groups, each of ``options.num_generations`` episodes of one task.
        free: Free memory in bytes. Default: ``free_memory()``.
        on_load: Called before the model is loaded.
        on_episode: Called with each finished episode.

    Raises:
        ConfigError: an option is invalid, there is no such model, an adapter does not fit its base, or the environment
            plays no seat of a game whose seats are all trained.
        EngineError: the model cannot generate.
    """
    choice = model_choice(options)
    if options.model is None or choice is None:
        raise ConfigError("model must be a path or hub id, got None: the tiny model needs no diagnosis")
    check_counts(groups=groups)
    args = grpo_config(options)
    spec = make_spec(one_seat(options), args)
    template = template_options(options, args)
    of_model = model_problems(choice, template, options.history)
    steps = _Steps(options, args, choice, free_memory(cpu=bool(args.use_cpu)) if free is None else free)
    of_model += steps.too_large()
    if any(one.verdict is PROBLEM for one in of_model):
        return Diagnosis(env=options.env, model=options.model, findings=tuple(of_model))
    if on_load is not None:
        on_load()
    rehearsal = _rehearse(options, spec, args, choice=choice, template=template, groups=groups, on_episode=on_episode)
    played, tokenizer = rehearsal.played, rehearsal.tokenizer
    levels = references(options)
    here = spec.executor in ("inline", "thread") and options.step_timeout is options.reset_timeout is None
    with Judge(spec.env_spec, seconds=_SECONDS_OF_JUDGING) if here else nullcontext() as judge:
        readable = readable_actions(played, options.action_format, cut_actions=options.cut_actions, judge=judge)
    prompt = next((tokenizer.decode(one.row.prompt_ids) for one in played.results if one.turns), "")
    findings = [
        *scored_episodes(played),
        *crashes(played),
        readable,
        ends_of_turns(
            played,
            ends=rehearsal.ends,
            cut_actions=options.cut_actions,
            max_tokens=options.max_tokens_per_turn or options.max_completion_length,
        ),
        group_spread(
            played,
            best=levels["return_optimum"],
            group_size=options.num_generations,
            readable=readable.verdict,
            credit=one_seat(options).credit,
        ),
        episode_length(
            played, max_completion=args.max_completion_length, context=context_of(load_config(choice.model))
        ),
        steps.memory(played),
        *of_model,
        _system_message(tokenizer, template, options.system_prompt, prompt),
        scores(played, levels),
        _speed(played, rehearsal.seconds, options.episodes_per_step),
        *_lockstep(rehearsal.engine),
    ]
    findings.sort(key=lambda finding: finding.verdict is not PROBLEM)
    return Diagnosis(
        env=options.env,
        model=options.model,
        findings=tuple(findings),
        prompt=prompt,
        reply=next((text for one in played.results if (text := _reply(one, tokenizer))), ""),
    )


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """Episodes that were played as in a training, and what played them."""

    played: Played
    seconds: float
    tokenizer: Any
    engine: Engine
    ends: Mapping[int, str]
    """Token ids that end a response, with their texts."""


def _rehearse(
    options: TrainOptions,
    spec: GymSpec,
    args: Any,
    *,
    choice: ModelChoice,
    template: Mapping[str, Any],
    groups: int,
    on_episode: Callable[[Episode], None] | None,
) -> _Rehearsal:
    """Load the model, and play groups of training tasks with it."""
    tokenizer = load_tokenizer(choice.model)
    weights = _placed(load_weights(choice.model, dtype=choice.dtype or "float32"), args)
    chat = chat_for(tokenizer, options.history, **template)
    sampling = {name: getattr(args, name) for name in SAMPLING} | (args.generation_kwargs or {})
    engine = transformers_engine(weights, tokenizer, chat, sampling=sampling)
    limits = Limits(options.max_tokens_per_turn, args.max_completion_length, context_of(weights.config))
    tasks = [task for task in islice(spec.tasks("train"), groups) for _ in range(options.num_generations)]
    began = perf_counter()
    with spec.make_pool() as pool:
        games = run(
            rollout(
                tasks,
                pool=pool,
                engine=engine,
                chat=chat,
                seeds=[derive_seed(options.seed, "doctor", row) for row in range(len(tasks))],
                preambles=[preamble_of(spec)] * len(tasks),
                max_alive=options.max_alive,
                on_finish=lambda _, seats: on_episode(seats[0]) if on_episode else None,
                limits=limits,
                history=make_history(options.history),
                timeout=options.episode_timeout,
            )
        )
    results = [episode for [episode] in games]
    seconds = perf_counter() - began
    ends = {id_: tokenizer.decode([id_]) for id_ in end_ids(weights.generation_config, tokenizer, chat)}
    return _Rehearsal(Played(results, group_size=options.num_generations, ends=ends), seconds, tokenizer, engine, ends)


def _placed(weights: Any, args: Any) -> Any:
    import torch

    if args.use_cpu or not torch.accelerator.is_available():
        return weights
    return weights.to(torch.accelerator.current_accelerator())


def _reply(episode: Episode, tokenizer: Any) -> str:
    if len(episode.turns) < 2:
        return ""
    first, second = (turn.spans[-1] for turn in episode.turns[:2])
    if first.segment != second.segment:
        return ""
    return str(tokenizer.decode(episode.segments[first.segment].completion_ids[first.stop : second.start]))


def _system_message(tokenizer: Any, template: Mapping[str, Any], system_prompt: str | None, prompt: str) -> Finding:
    name = "system message"
    if system_prompt is not None:
        return Finding(name, OK, f"yours: {shortened(system_prompt)!r}")
    if own := default_system_message(tokenizer, **template):
        fix = "--system-prompt TEXT replaces it"
        return Finding(name, OK, f"the template's own: {shortened(own)!r}", fix=fix)
    # A template may write a header in any case, or a message that it extends: what it writes is in the prompt.
    return Finding(name, OK, f"none is known; prompts begin with {shortened(prompt[:_SHOWN_PROMPT])!r}")


def default_system_message(tokenizer: Any, **template: Any) -> str:
    """Return the system message that a chat template writes where a conversation has none; empty if it writes none.

    It is what the template writes in the place of a given one.
    """
    user = {"role": "user", "content": "\ufdd1"}
    system = {"role": "system", "content": "\ufdd2"}
    options = {**template, "tokenize": False, "add_generation_prompt": True}
    try:
        alone, both = (str(tokenizer.apply_chat_template(messages, **options)) for messages in ([user], [system, user]))
    except Exception:  # templates are programs and can raise anything, on a system message for example
        return ""
    before, _, after = both.partition("\ufdd1")[0].partition("\ufdd2")
    written = alone.partition("\ufdd1")[0]
    if not written.startswith(before) or not written.endswith(after) or len(written) < len(before) + len(after):
        return ""
    return written.removeprefix(before).removesuffix(after).strip()


def _lockstep(engine: Engine) -> list[Finding]:
    """Return a warning if whole prompts are generated in lockstep."""
    from gym_trl.engines.transformers import TransformersEngine

    if not isinstance(engine, TransformersEngine) or engine.lockstep is None:
        return []
    got = f"in lockstep, several times as slow as with keys and values kept: {engine.lockstep}"
    return [Finding("generation", WARNING, got, "generate with vLLM (use_vllm=True)")]


def _speed(played: Played, seconds: float, episodes: int) -> Finding:
    tokens = sum(one.tokens for one in played.responses)
    step = seconds * episodes / max(1, len(played.results))
    got = (
        f"{counted(len(played.results), 'episode')} in {seconds:.0f} s, {tokens / max(seconds, 1e-9):.0f} sampled "
        f"tokens a second; the {episodes} of a step take about {step:.0f} s, and the gradient comes on top"
    )
    numbers = {"seconds": seconds, "tokens": tokens, "rollout_seconds": step}
    return Finding("speed", OK, got, numbers=numbers)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Training steps whose memory is compared with the free memory."""

    options: TrainOptions
    args: Any
    choice: ModelChoice
    free: int

    def too_large(self) -> list[Finding]:
        """Return a problem if not even the weights and the optimizer fit; the model is then not loaded."""
        fixed = self._estimate(self.choice, 1, checkpointing=True).fixed
        if fixed <= self.free:
            return []
        got = f"weights, gradients and optimizer need about {fixed / _GIB:.1f} GiB; {self._free} are free"
        return [self._finding(PROBLEM, got, 1, {"needed": fixed, "free": self.free})]

    def memory(self, played: Played) -> Finding:
        """Return the estimate for episodes as long as those that were played, and for the longest that are allowed."""
        segments = [segment for one in played.results for segment in one.segments]
        prompt = max((len(segment.prompt_ids) for segment in segments), default=0)
        now = max((len(segment.ids) for segment in segments), default=0)
        context = context_of(load_config(self.choice.model))
        longest = max(now, min(prompt + self.args.max_completion_length, context or math.inf))
        batch = self._batch(self.choice, longest)
        needed, most = (self._needed(self.choice, tokens, batch) for tokens in (now, longest))
        again = " with gradient checkpointing" if batch.checkpointing else ""
        got = (
            f"a step needs about {needed / _GIB:.1f} GiB with {counted(batch.rows, 'row')} of {now} tokens at once"
            f"{again}, {most / _GIB:.1f} GiB with rows of {longest}, the longest allowed; {self._free} are free"
        )
        numbers = {"tokens": now, "needed": needed, "longest": longest, "most": most, "free": self.free}
        numbers |= {"rows": batch.rows, "checkpointing": batch.checkpointing}
        if most <= self.free:
            return Finding("memory", OK, got, numbers=numbers)
        verdict = PROBLEM if needed > self.free else WARNING
        return self._finding(verdict, got, longest if verdict is WARNING else now, numbers)

    @property
    def _free(self) -> str:
        return f"{self.free / _GIB:.1f} GiB"

    def _finding(self, verdict: Verdict, got: str, tokens: int, numbers: Mapping[str, Any]) -> Finding:
        options = self._smaller(tokens)
        fix = written(options) or (
            "take a smaller model or a larger machine, shorten episodes (--max-completion-length), or generate fewer "
            "at once (--episodes-per-step)"
        )
        return Finding("memory", verdict, got, fix, options=options, numbers=numbers)

    def _smaller(self, tokens: int) -> dict[str, Any]:
        """Return options with which a step fits, the smallest change first; empty if none do."""
        changes: list[dict[str, Any]] = [{"dtype": "bfloat16"}]
        if not self.choice.trains_adapter:
            changes = [{"lora": 16}, {"lora": 16, "dtype": "bfloat16"}]
        for change in changes:
            choice = replace(self.choice, **change)
            if self._estimate(choice, 1, checkpointing=True).fixed > self.free:
                continue
            if self._needed(choice, tokens, self._batch(choice, tokens)) <= self.free:
                return change
        return {}

    def _batch(self, choice: ModelChoice, tokens: int) -> MicroBatch:
        """Return the micro-batch that the training would use, whose sizes ``--grpo`` may set."""
        own = MicroBatch(self.args.per_device_train_batch_size, bool(self.args.gradient_checkpointing), 0)
        return micro_batch_of(self.options, self.args, choice, tokens=tokens, free=self.free) or own

    def _needed(self, choice: ModelChoice, tokens: int, batch: MicroBatch) -> int:
        memory = self._estimate(choice, tokens, checkpointing=batch.checkpointing)
        return memory.needed(batch.rows, generated=0 if self.args.use_vllm else self.options.episodes_per_step)

    def _estimate(self, choice: ModelChoice, tokens: int, *, checkpointing: bool) -> Memory:
        return estimate_memory(choice, tokens=tokens, checkpointing=checkpointing, reference=bool(self.args.beta))

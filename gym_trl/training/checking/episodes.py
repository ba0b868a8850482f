"""Stages of a step's episodes: seeds, environment, tokens, returns and groups."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from gym_trl.chat.template import TemplateChat
from gym_trl.errors import GymTRLError
from gym_trl.evaluation.replay import replay
from gym_trl.options import History
from gym_trl.policies.weights import load_tokenizer
from gym_trl.records.schema import Record, task_id
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.seeding import derive_seed
from gym_trl.training.checking.step import (
    CheckedStep,
    Difference,
    Found,
    UncheckedError,
    first_difference,
    is_scored,
    own_turns,
)
from gym_trl.types import Completion, EpisodeResult, Message, StepResult, StopReason, Task

_FLOAT_32 = 1e-6  # relative error of a 32-bit number


def check_seeds(step: CheckedStep) -> Iterator[Found]:
    """Yield names of tasks that are not those of their seeds, places out of order, and wrong seeds of the sampling."""
    for index, record in enumerate(step.records):
        task = record["task"]
        name = task_id(task["env_id"], task["seed"], env_kwargs=task["env_kwargs"], options=task["options"])
        if name != task["id"]:
            yield Difference.of(index, "", "the task", name, task["id"])
        if record["step"] != step.step:
            yield Difference.of(index, "", "the step", step.step, record["step"])
    if step.data is None:
        yield "seeds of the sampling, which only a full record has"
        return
    about, size = step.data.about, step.data.about["group_size"]
    for index, (record, row) in enumerate(zip(step.records, step.data.episodes, strict=True)):
        if row["number"] != index:
            yield Difference.of(index, "", "the place in the batch", index, row["number"])
        place = record["group"], record["attempt"]
        if place != divmod(index, size):
            yield Difference.of(index, "", "the group and the place in it", divmod(index, size), place)
        again = (row["attempt"],) if row["attempt"] else ()
        seed = derive_seed(about["seed"], "sampling", "train", about["step"] - 1, about["call"], row["number"], *again)
        if seed != row["sampling_seed"]:
            yield Difference.of(index, "", "the seed of its sampling", seed, row["sampling_seed"])


def check_environment(step: CheckedStep) -> Iterator[Found]:
    """Yield what environments answer otherwise to the recorded actions."""
    played = [
        index
        for index, record in enumerate(step.records)
        if record["opponent"] is None or record["opponent_turns"] is not None
    ]
    if len(played) < len(step.records):
        yield f"{len(step.records) - len(played)} episodes against opponents whose turns are not recorded"
    with_names = replay([step.records[index] for index in played], trust=step.trust)
    for index, replayed in zip(played, with_names, strict=True):
        for difference in replayed.differences:
            yield Difference(index, difference)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------


def check_tokens(step: CheckedStep) -> Iterator[Found]:
    """Yield ids, masks and texts that rendering and tokenizing the recorded texts gives otherwise."""
    if step.options is None:
        raise UncheckedError("the folder has no config.json, which says how texts are rendered")
    if all(record["prompt_ids"] is None for record in step.records):
        raise UncheckedError("no token ids are recorded")
    tokenizer = load_tokenizer(str(step.folder / "tokenizer"))
    about, options = step.about, step.options
    template = None if about is None else about["template"]
    if template not in (None, tokenizer.chat_template):
        yield Difference.of(None, "", "the chat template of the tokenizer", tokenizer.chat_template, template)
        return
    chat, limits = _chat(step, tokenizer), _limits(step)
    pictured = 0
    for index, record in enumerate(step.records):
        if record["prompt_ids"] is None or record["completion_ids"] is None:
            continue
        if record["images"] is not None:
            pictured += 1
            continue
        wrong = list(_shape(record)) or list(_retraced(record, chat, limits, options.history))
        yield from (Difference(index, text) for text in wrong)
    if pictured:
        yield f"{pictured} episodes with images"


def _chat(step: CheckedStep, tokenizer: Any) -> TemplateChat:
    assert step.options is not None
    if step.about is not None:
        template_options: dict[str, Any] = dict(step.about["template_options"])
        ends = step.about["end_ids"]
    else:
        template_options = dict(step.options.grpo.get("chat_template_kwargs") or {})
        ends = [tokenizer.eos_token_id]
    config = RolloutConfig(
        history=step.options.history,
        chat_template_kwargs=step.options.chat_template_kwargs,
        max_tokens_per_turn=step.options.max_tokens_per_turn,
    )
    return config.template_chat(tokenizer, template_options | _clock(step, tokenizer), end_ids=ends)


def _clock(step: CheckedStep, tokenizer: Any) -> dict[str, Any]:
    """Return the option with which a chat template that writes the date writes that of the step.

    Raises:
        UncheckedError: The date is not known.
    """
    if "strftime_now" not in str(tokenizer.chat_template):
        return {}
    time = None if step.about is None else step.about["time"]
    try:
        return {"strftime_now": datetime.fromisoformat(time or "").strftime}
    except ValueError as error:
        raise UncheckedError("the chat template writes the date, and that of the step is not recorded") from error


def _limits(step: CheckedStep) -> Limits:
    """Return the limits on tokens; those on texts are already in the record."""
    assert step.options is not None
    if step.about is None:
        return Limits(step.options.max_tokens_per_turn, step.options.max_completion_length)
    return Limits(step.about["max_tokens_per_turn"], step.about["max_tokens"], step.about["max_context"])


def _shape(record: Record) -> Iterator[str]:
    """Yield what is wrong with the mask by the turns' places alone, without a chat."""
    mask, logprobs = record["mask"] or [], record["logprobs"] or []
    length = len(record["completion_ids"] or [])
    if not len(mask) == len(logprobs) == length:
        yield f"there are {length} ids, {len(mask)} entries of the mask and {len(logprobs)} log-probabilities"
        return
    first, ends = own_turns(record), [0]
    for number, turn in enumerate(record["turns"][first:], start=first):
        start, stop = turn["start"] or 0, turn["stop"] or 0
        if not ends[-1] <= start < stop <= length:
            yield f"turn {number}: its tokens [{start}, {stop}) are not after those before it"
            return
        ends.append(stop)
        if 0 in mask[start:stop]:
            at = start + mask[start:stop].index(0)
            yield f"turn {number}: token {at} was sampled, and is not in the mask"
    for at, (bit, logprob) in enumerate(zip(mask, logprobs, strict=True)):
        if not bit and logprob != 0.0:
            yield f"{_where(record, at)}: token {at} was not sampled, and has the log-probability {logprob}"
            return
        if bit and logprob is not None and not logprob <= _FLOAT_32:
            yield f"{_where(record, at)}: token {at} has the log-probability {logprob}, which is above 0"
            return


def _where(record: Record, at: int) -> str:
    """Return the turn of a token of the completion."""
    for number, turn in enumerate(record["turns"]):
        if at < (turn["stop"] or 0):
            return f"turn {number}"
    return "the end"


def _spans(record: Record) -> list[tuple[int, int]]:
    """Return where the model sampled: its turns, and what the mask has outside of them (summaries, an unplayed one)."""
    own = record["turns"][own_turns(record) :]
    turns = [(turn["start"] or 0, turn["stop"] or 0) for turn in own]
    mask, spans = record["mask"] or [], list(turns)
    edges = [0, *(edge for span in turns for edge in span), len(mask)]
    for begin, end in list(pairwise(edges))[::2]:
        at = begin
        while at < end:
            if mask[at]:
                stop = next((place for place in range(at, end) if not mask[place]), end)
                spans.append((at, stop))
                at = stop
            at += 1
    return sorted(spans)


def _retraced(record: Record, chat: TemplateChat, limits: Limits, history: History | None) -> Iterator[str]:
    """Yield differences of the transcript of the recorded texts and sampled ids from the recorded one."""
    try:
        made = _retrace(record, chat, limits, history)
    except (GymTRLError, ValueError, IndexError, OverflowError, TypeError) as error:
        yield f"the transcript cannot be made: {error}"
        return
    trace, ids = made.trace, record["completion_ids"] or []
    if trace.prompt_ids != record["prompt_ids"]:
        at, now, then = _first(trace.prompt_ids, record["prompt_ids"] or [])
        yield f"the opening: id {at} is {now}, and was recorded as {then}"
        return
    for number, (turn, then_turn) in enumerate(zip(made.turns, record["turns"], strict=False)):
        texts = {
            "answer": (turn.answer.text, then_turn["answer"]),
            "thinking": (turn.answer.thinking, then_turn["thinking"]),
        }
        for name, (now_text, then_text) in texts.items():
            if now_text != then_text:
                yield Difference.of(None, f"turn {number}", f"the {name}", now_text, then_text).text
                return
    for name, mine, theirs in (
        ("id", trace.completion_ids, ids),
        ("the mask of token", trace.mask, record["mask"] or []),
    ):
        if mine != theirs:
            at, now, then = _first(mine, theirs)
            yield f"{_where(record, at)}: {name} {at} is {now}, and was recorded as {then}"
            return
    borders = [(one.start, one.stop, one.turn, one.left_out) for one in trace.borders]
    recorded = [(one["start"], one["stop"], one["turn"], one["left_out"]) for one in record["segments"] or []]
    if borders != recorded:
        yield Difference.of(None, "", "the list of segments", borders, recorded).text


def _first(now: Sequence[Any], then: Sequence[Any]) -> tuple[int, Any, Any]:
    """Return the place of the first difference, with both values; ``None`` where a list has ended."""
    at = first_difference(now, then)
    return at, now[at] if at < len(now) else None, then[at] if at < len(then) else None


def _retrace(record: Record, chat: TemplateChat, limits: Limits, history: History | None) -> EpisodeResult:
    """Return the episode whose environment said what is recorded, and whose model sampled the recorded ids."""
    turns, own = record["turns"], own_turns(record)
    *before, last = record["opening"]
    first = turns[0]["observation"] if turns else last["content"]
    if not last["content"].endswith(first):
        raise ValueError("the opening does not end with the first observation")
    instructions = last["content"].removesuffix(first).removesuffix("\n\n")
    task = Task(record["task"]["env_id"] or "", record["task"]["seed"] or 0)
    episode = Episode(
        task,
        chat=chat,
        limits=limits,
        preamble=[Message(one["role"], one["content"]) for one in before],
        history=history,
        opening=[turn["answer"] for turn in turns[:own]],
    )
    reason, ids = StopReason(record["stop_reason"]), record["completion_ids"] or []
    logprobs, spans, number = record["logprobs"] or [], iter(_spans(record)), 0
    todo: Any = episode.started(StepResult(first, instructions=instructions))
    while not isinstance(todo, EpisodeResult):
        if isinstance(todo, Sample):
            if (span := next(spans, None)) is None:
                return episode.stopped(reason)
            todo = episode.sampled(Completion("", ids[slice(*span)], logprobs[slice(*span)]))
            continue
        assert isinstance(todo, Act)
        number += 1
        observation = record["last_observation"] if number >= len(turns) else turns[number]["observation"]
        if number > len(turns) or observation is None:
            # The answer of a step that failed is in no turn of the log, and is compared all the same.
            return episode.stopped(reason)
        ended = number == len(turns) and record["terminated"]
        todo = episode.stepped(StepResult(observation, terminated=ended))
    return todo


# ---------------------------------------------------------------------------------------------------------------------
# Returns and groups
# ---------------------------------------------------------------------------------------------------------------------


def check_returns(step: CheckedStep) -> Iterator[Found]:
    """Yield returns, successes and counts that do not follow from the turns, and rewards that are not the returns."""
    for index, record in enumerate(step.records):
        for what, now, then in _facts(record):
            if now != then:
                yield Difference.of(index, "", what, now, then)
    if step.data is None:
        yield "rewards of the reward functions, which only a full record has"
        return
    for index, (record, row) in enumerate(zip(step.records, step.data.episodes, strict=True)):
        for what, now, then in _paid(record, row["rewards"], step.data.about["functions"]):
            yield Difference.of(index, "", what, now, then)
        own = own_turns(record)
        rewards = [turn["reward"] for turn in record["turns"][own:]]
        if own and rewards:
            rewards[0] += math.fsum(turn["reward"] for turn in record["turns"][:own])
        if record["prompt_ids"] is not None and rewards != row["turn_rewards"]:
            at, now_reward, then_reward = _first(rewards, row["turn_rewards"])
            yield Difference.of(index, f"turn {own + at}", "the reward for credit", now_reward, then_reward)


def _facts(record: Record) -> Iterator[tuple[str, object, object]]:
    """Yield what follows from a record's turns, with what is recorded."""
    turns, reason, scored = record["turns"], StopReason(record["stop_reason"]), is_scored(record)
    yield "the return", math.fsum(turn["reward"] for turn in turns) if scored else None, record["return"]
    if not scored or reason.success is not None:
        yield "the success", reason.success if scored else None, record["success"]
    yield "the number of turns", len(turns), record["num_turns"]
    yield "the number of invalid actions", sum(not turn["action_valid"] for turn in turns), record["invalid_actions"]
    yield "the number of actions cut off", sum(turn["action_cut"] for turn in turns), record["cut_actions"]
    yield "truncated", scored and not record["terminated"], record["truncated"]
    if record["mask"] is not None and record["prompt_ids"] is not None:
        yield "the number of sampled tokens", sum(record["mask"]), record["sampled_tokens"]
        yield "the number of tokens of the prompt", len(record["prompt_ids"]), record["prompt_tokens"]
        yield "the number of tokens after it", len(record["mask"]), record["completion_tokens"]


def _paid(
    record: Record, rewards: Sequence[float | None], functions: Sequence[str]
) -> Iterator[tuple[str, object, object]]:
    """Yield differences of the rewards of functions from the return."""
    if len(rewards) != len(functions):
        yield "the number of rewards", len(functions), len(rewards)
        return
    worth = record["return"]
    for name, paid in zip(functions, rewards, strict=True):
        if worth is None and paid is not None:
            yield f"the reward of {name} of an unscored episode", None, paid
        elif worth is not None and name == "env_reward" and (paid is None or not near(paid, worth)):
            yield f"the reward of {name}", worth, paid


def near(one: float, other: float) -> bool:
    """Return whether two numbers are equal up to the precision of 32 bits.

    >>> near(0.10000000149011612, 0.1), near(0.1, 0.1001)  # the first is 0.1 in 32 bits
    (True, False)
    """
    return abs(one - other) <= _FLOAT_32 * max(1.0, abs(one), abs(other))


def check_groups(step: CheckedStep) -> Iterator[Found]:
    """Yield members of a group that play another task than its first, and groups of different tasks with one seed."""
    if step.group_size is None:
        raise UncheckedError("the size of a group is not known: the folder has no config.json")
    firsts: dict[tuple[Any, ...], tuple[int, Record]] = {}
    for index, record in enumerate(step.records):
        key = record["group"], record.get("replaced", False)
        first = firsts.setdefault(key, (index, record))[1]
        for name in ("env_id", "seed", "options", "env_kwargs"):
            if record["task"][name] != first["task"][name]:
                now, then = first["task"][name], record["task"][name]
                yield Difference.of(index, "", f"the {name} of its group", now, then)
        if not 0 <= record["attempt"] < step.group_size:
            yield Difference.of(index, "", "the size of its group", step.group_size, record["attempt"] + 1)

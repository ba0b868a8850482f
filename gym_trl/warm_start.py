"""Warm start: a model imitates episodes of another policy, in exactly the ids that its own rollouts would have."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from gym_trl.chat import ChatLike
from gym_trl.errors import ChatTemplateError, ConfigError
from gym_trl.grpo.speed import compute_shared
from gym_trl.play import History, Limits, play
from gym_trl.players import TextPlayer, play_all
from gym_trl.random_play import random_play, solve
from gym_trl.records import read_records, record_of
from gym_trl.rollout import run
from gym_trl.seeding import derive_seed
from gym_trl.setting import Setting
from gym_trl.terminal import Progress
from gym_trl.types import Completion, FinishReason, Message, StepResult, Task, TokenIds

Row: TypeAlias = Mapping[str, Sequence[int]]
"""``input_ids`` and ``labels`` of equal length."""
NOT_TRAINED = -100
"""Label of an id without loss, by PyTorch's convention."""
POLICIES = ("random", "solver")
ROWS_AT_ONCE = 8
"""Rows of a forward pass of a pretrained model; more take more memory and are not faster."""
_BATCH = 16  # rows of an update


def demonstrations(
    setting: Setting, source: str, count: int, *, seed: int = 0, held_out: int = 0
) -> list[dict[str, Any]]:
    """Return the records of episodes to imitate.

    Args:
        setting: How the environment is played.
        source: ``"random"`` or ``"solver"``, which play tasks of the training; or a file or folder of records, of which
            the successful episodes count, or the better half where success is not declared.
        count: Number of episodes.
        seed: Seed of the tasks.
        held_out: Number of evaluation tasks, whose episodes are left out.

    Raises:
        ConfigError: There is no such source, or it has no episode to imitate.
    """
    if source in POLICIES:
        tasks = setting.tasks(count, split="train", seed=seed)
        player = TextPlayer(random_play if source == "random" else solve)
        games = play_all(setting.make, tasks, [player] * setting.num_seats, seed=seed, preamble=setting.preamble)
        episodes = [one for game in games for one in game.episodes]
        records = [record_of(one, env_kwargs=setting.env_kwargs) for one in episodes if one.scored]
        why = next((one.error for one in episodes if one.error), "none was played")
    else:
        tasks = setting.tasks(held_out, seed=seed) if held_out else []
        evaluated = {_instance(task.seed, task.options) for task in tasks}
        scored = [one for one in read_records(source) if one["turns"] and one["return"] is not None]
        new = [one for one in scored if _instance(one["task"]["seed"], one["task"]["options"]) not in evaluated]
        middle = sorted(one["return"] for one in new)[len(new) // 2] if new else 0.0
        declared = any(one["success"] is not None for one in new)
        records = [one for one in new if (one["success"] if declared else one["return"] >= middle)][:count]
        why = f"{len(scored)} episodes are scored, {len(scored) - len(new)} of them of the evaluation's tasks"
    if not records:
        raise ConfigError(f"warm_start={source!r} has no episode to imitate: {why}")
    return records


def _instance(seed: int | None, options: Mapping[str, Any]) -> Any:
    """Return what tasks of the same game have in common."""
    return options.get("instance", f"seed {seed}")


def rows_of(
    record: Mapping[str, Any], chat: ChatLike, *, limits: Limits | None = None, history: History | None = None
) -> list[Row]:
    """Return the rows of an episode, one for each segment: its ids, and as labels those of the valid answers.

    They are those of a rollout in which the model says the same, because the same function plays.

    Args:
        record: Record of the episode, whose answers are imitated without thoughts.
        chat: Converts messages to ids.
        limits: Limits on the tokens, at which answers are cut off.
        history: Changes what the model is shown.

    Raises:
        ChatTemplateError: The model cannot write one of the answers.
    """
    *preamble, first = [Message(one["role"], one["content"]) for one in record["opening"]]
    turns = record["turns"]
    shown = [*(turn["observation"] for turn in turns[1:]), record["last_observation"] or ""]
    answers, steps = iter(turns), iter(zip(turns, shown, strict=True))

    async def step(work: Task | str) -> StepResult:
        if isinstance(work, Task):
            return StepResult(first.content)
        turn, observation = next(steps)
        over = turn is turns[-1]
        return StepResult(observation, terminated=over, info={"action_valid": turn["action_valid"]})

    async def say(ids: TokenIds, max_tokens: int, seat: int) -> Completion:
        whole = chat.say(next(answers)["answer"])  # type: ignore[attr-defined]  # Chat and ByteChat have it
        said = whole[:max_tokens]
        finish = FinishReason.STOP if len(said) == len(whole) else FinishReason.LENGTH
        return Completion("", said, [0.0] * len(said), finish)

    task = Task(record["task"]["env_id"], record["task"]["seed"])
    [episode] = run(play(task, step, chat, say, limits=limits or Limits(), preamble=preamble, history=history))
    labels = [[NOT_TRAINED] * len(one.ids) for one in episode.segments]
    for turn in episode.turns:
        for span in turn.spans if turn.action_valid else ():
            segment = episode.segments[span.segment]
            before = len(segment.prompt_ids)
            labels[span.segment][before + span.start : before + span.stop] = segment.completion_ids[
                span.start : span.stop
            ]
    return [{"input_ids": one.ids, "labels": own} for one, own in zip(episode.segments, labels, strict=True)]


def rows_of_all(records: Sequence[Mapping[str, Any]], chat: ChatLike, **options: Any) -> list[Row]:
    """Return the rows of episodes; those with an answer that the model cannot write are left out.

    Raises:
        ConfigError: It can write none.
    """
    rows: list[Row] = []
    for record in records:
        with suppress(ChatTemplateError):
            rows += rows_of(record, chat, **options)
    rows = [row for row in rows if any(label != NOT_TRAINED for label in row["labels"])]
    if not rows:
        raise ConfigError(
            "none of the episodes to imitate has a valid answer that the model can write. Random play has some where "
            'the rules name a range of numbers, info lists "admissible_actions", or there is a random_policy(seed)'
        )
    return rows


def imitate(model: Any, rows: Sequence[Row], *, pad_id: int, rate: float, updates: int, seed: int = 0) -> list[float]:
    """Train a model on demonstrations with AdamW and a falling learning rate; return the loss of each update.

    Args:
        model: Transformers model, of which the weights that require a gradient are trained.
        rows: What ``rows_of`` returns.
        pad_id: Id of padding.
        rate: Learning rate of the first update.
        updates: Least number of updates; each row is seen at least once.
        seed: Seed of the order.
    """
    import torch

    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    batches = list(_batches(rows, updates, seed))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 - done / (len(batches) + 1))
    losses, was_training, began, progress = list[float](), model.training, time.monotonic(), Progress()
    model.train()
    for batch in batches:
        count, loss = sum(label != NOT_TRAINED for row in batch for label in row["labels"][1:]), 0.0
        for at in range(0, len(batch), ROWS_AT_ONCE):
            part = _loss(model, batch[at : at + ROWS_AT_ONCE], pad_id) / count
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        losses.append(loss)
        done = len(losses)
        left = (time.monotonic() - began) / done * (len(batches) - done)
        progress.say(f"warm start: update {done} of {len(batches)}, loss {loss:.3f}, {left:.0f} s left")
    model.train(was_training)
    return losses


def _batches(rows: Sequence[Row], updates: int, seed: int) -> Iterator[list[Row]]:
    """Yield at least so many batches, each with other rows until all were seen."""
    import numpy as np

    size = min(_BATCH, len(rows))
    for epoch in range(math.ceil(updates / math.ceil(len(rows) / size))):
        order = np.random.default_rng(derive_seed(seed, "imitation", epoch)).permutation(len(rows))
        yield from ([rows[number] for number in order[at : at + size]] for at in range(0, len(rows), size))


def _loss(model: Any, rows: Sequence[Row], pad_id: int) -> Any:
    """Return the summed loss of the labels of rows."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)

    def padded(name: str, filler: int) -> Any:
        return torch.tensor([[*row[name], *[filler] * (longest - len(row[name]))] for row in rows], device=model.device)

    ids, wanted = padded("input_ids", pad_id), padded("labels", NOT_TRAINED)[:, 1:]
    mask = torch.arange(longest, device=model.device) < torch.tensor(
        [[len(row["input_ids"])] for row in rows], device=model.device
    )
    used = (wanted != NOT_TRAINED).any(0).nonzero().squeeze(1)  # positions before a label: no others need the head
    shared, begun = compute_shared(model, ids, mask, before=int(used[0]))
    logits = model(input_ids=ids[:, shared:], attention_mask=mask.long(), logits_to_keep=used - shared, **begun).logits
    labels = wanted[:, used].flatten()
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels, ignore_index=NOT_TRAINED, reduction="sum"
    )


def check_source(source: str | None) -> None:
    """Check that there is something to imitate.

    Raises:
        ConfigError: ``source`` is neither a policy nor an existing file or folder.
    """
    if source is not None and source not in POLICIES and not Path(source).exists():
        raise ConfigError(f"warm_start must be random, solver, or a file or folder of records, got {source!r}")

"""Data sets from recorded episodes: conversations for supervised training, and preference pairs."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import MessageRecord, Record, messages_of


def is_held_out(record: Record) -> bool:
    """Return whether an episode evaluated a training, so that nothing may be trained on it.

    >>> from gym_trl.records import as_record
    >>> from gym_trl.episode import Episode
    >>> from gym_trl.types import Task
    >>> played = Episode(Task("TrlEnv/Echo-v0", 0))
    >>> [is_held_out(as_record(played, split=split, step=0)) for split in ("train", "eval")]
    [False, True]
    """
    return record["split"] == "eval" and record["step"] is not None


def sft_rows(
    records: Iterable[Record], *, min_return: float | None = None, successes: bool = False, thinking: bool = False
) -> list[dict[str, Any]]:
    """Return conversations for TRL's ``SFTTrainer``, each ending with the model's last response.

    >>> from gym_trl.evaluation import evaluate
    >>> kept = []
    >>> _ = evaluate("TrlEnv/Echo-v0", "solver", episodes=2, on_episode=lambda record, board: kept.append(record))
    >>> [[message["role"] for message in row["messages"]] for row in sft_rows(kept, min_return=1.0)]
    [['user', 'assistant'], ['user', 'assistant']]

    Args:
        records: Episodes; unscored ones and a training's evaluation episodes are left out.
        min_return: Leave out episodes with a lower return.
        successes: Leave out episodes that were not solved.
        thinking: Put the thinking before the answer, between ``<think>`` and ``</think>``.

    Returns:
        Rows ``{"messages": [{"role", "content"}, ...]}``, for ``datasets.Dataset.from_list``.
    """
    rows = []
    for record in records:
        value = record["return"]
        if is_held_out(record):
            continue
        if value is None or (min_return is not None and value < min_return) or (successes and not record["success"]):
            continue
        rows.append({"messages": _said(record, thinking=thinking)})
    return rows


def preference_rows(records: Iterable[Record], *, min_gap: float = 0.0, thinking: bool = False) -> list[dict[str, Any]]:
    """Return pairs for TRL's ``DPOTrainer``: the best and the worst episode of each task, if their returns differ.

    In games of several seats these are the best and the worst episode of a seat.

    Only the best and the worst episode of each task are kept in memory.

    Args:
        records: Episodes; unscored ones and a training's evaluation episodes are left out.
        min_gap: The returns must differ by more than this.
        thinking: As in ``sft_rows``.

    Returns:
        Rows ``{"prompt", "chosen", "rejected"}``, each a list of ``{"role", "content"}``, for
        ``datasets.Dataset.from_list``.
    """
    games: dict[str, tuple[_Side, _Side]] = {}
    for record in records:
        if record["return"] is None or not record["turns"] or is_held_out(record):
            continue
        task = record["task"]
        if task["seed"] is None and "instance" not in task["options"]:
            continue  # the task is unknown
        # Only conversations with the same opening can be compared, and in a game those of one seat.
        key = to_json([record["task"]["id"], record["seat"], record["opening"]])
        side = _Side(record["return"], record["opening"], _said(record, thinking=thinking))
        best, worst = games.get(key, (side, side))
        games[key] = (side if side.value > best.value else best, side if side.value < worst.value else worst)
    rows = []
    for best, worst in games.values():
        if best.value - worst.value > min_gap:
            start = len(best.opening)
            rows.append({"prompt": best.opening, "chosen": best.messages[start:], "rejected": worst.messages[start:]})
    return rows


class _Side(NamedTuple):
    value: float
    opening: list[MessageRecord]
    messages: list[MessageRecord]


def _said(record: Record, *, thinking: bool) -> list[MessageRecord]:
    """Return the conversation up to the model's last response that the environment executed."""
    messages = messages_of({**record, "last_observation": None, "unanswered": None})
    responses = messages[len(record["opening"]) :: 2]  # an observation stands between two of them
    for message, turn in zip(responses, record["turns"], strict=True):
        if thinking and turn["thinking"]:
            message["content"] = f"<think>\n{turn['thinking']}\n</think>\n\n{message['content']}"
    return messages

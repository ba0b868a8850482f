"""Records as logs of Inspect, and logs of Inspect as records."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_trl.errors import needs
from gym_trl.records.json_lines import plain
from gym_trl.records.schema import Record
from gym_trl.types import StopReason

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

NO_MODEL = "none/none"
"""Inspect's name of the model in logs without one."""
_METRICS = {"return": ("mean", "stderr"), "success": ("accuracy", "stderr")}
_DETAILS = (
    "stop_reason",
    "split",
    "step",
    "greedy",
    "group",
    "attempt",
    "game",
    "seat",
    "opponent",
    "invalid_actions",
    "cut_actions",
    "spec",
)


def write_inspect_logs(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write episodes as Inspect's ``.eval`` files for ``inspect view --log-dir FOLDER``, and return the files.

    ::

        from gym_trl.records import read_records, write_inspect_logs

        write_inspect_logs(read_records(Path("evals/guess")), Path("logs"))

    A log has the episodes of one environment, policy, split and training step. Its samples have the conversation with
    thinking, the scores ``return`` and ``success``, the task with its seed as metadata, and the model's usage if tokens
    were counted. The reward and the action of each turn are metadata of the response. An unscored episode is a
    sample with an error and an unscored ``return``; where success is not declared, ``success`` is unscored. Inspect
    computes the metrics. All episodes are held in memory, without token ids and logprobs, which logs do not have.

    Args:
        records: Episodes.
        folder: Folder for the logs; it is made if it does not exist.

    Raises:
        MissingDependencyError: the extra ``inspect`` is not installed.
    """
    with needs("inspect", "A log of Inspect"):
        from inspect_ai.log import recompute_metrics, write_eval_log

    folder.mkdir(parents=True, exist_ok=True)
    logs: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = (record["task"]["env_id"], record["policy"], record["split"], record["step"])
        logs.setdefault(key, []).append(_without_tokens(record))
    files: list[Path] = []
    for key in list(logs):
        log = _log(logs.pop(key))
        recompute_metrics(log)
        name = "_".join(_slug(part) for part in key if part is not None) or "records"
        path = folder / f"{name}.eval"
        if path in files:  # names that differ only in characters that files do not have
            path = folder / f"{name}_{len(files)}.eval"
        write_eval_log(log, str(path.resolve()))
        files.append(path)
    return files


def _without_tokens(record: Record) -> Record:
    ids: Any = dict.fromkeys(("prompt_ids", "completion_ids", "mask", "logprobs", "token_texts"))
    return {**record, **ids}


def _slug(part: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(part)).strip("-.")[:60] or "x"


def _log(records: Sequence[Record]) -> "EvalLog":
    """Return a log of episodes of one environment, policy, split and step."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec
    from inspect_ai.scorer import accuracy, mean, stderr

    _ = accuracy, mean, stderr  # importing them registers them, as recompute_metrics requires
    samples, played = [], Counter[str]()
    for record in records:
        name = record["task"]["id"] if record["seat"] is None else f"{record['task']['id']}#seat{record['seat']}"
        played[name] += 1
        samples.append(_sample(record, name, played[name]))
    first = records[0]
    known = {name: first[name] for name in ("split", "step") if first[name] is not None}
    spec = EvalSpec.model_validate(
        {
            "created": datetime.now(UTC).isoformat(),
            "task": first["task"]["env_id"] or "records",
            "dataset": EvalDataset(samples=len(played), sample_ids=list(played)),
            "model": first["policy"] or NO_MODEL,
            "config": EvalConfig(epochs=max(played.values()), fail_on_error=False),
            "packages": {"gym-trl": version("gym-trl")},
            "metadata": known or None,
            "scorers": [
                {"name": name, "metrics": [{"name": metric} for metric in metrics]}
                for name, metrics in _METRICS.items()
            ],
        }
    )
    log = EvalLog(status="success", eval=spec, samples=samples)
    for sample in samples:
        for model, usage in sample.model_usage.items():
            total = log.stats.model_usage.get(model)
            log.stats.model_usage[model] = usage if total is None else total + usage
    return log


def _sample(record: Record, name: str, epoch: int) -> "EvalSample":
    from inspect_ai.log import EvalSample

    model, scored = record["policy"] or NO_MODEL, record["return"] is not None
    messages = _messages(record, model)
    usage = _usage(record)
    failed = {"message": record["error"] or record["stop_reason"], "traceback": "", "traceback_ansi": ""}
    error = record["error"]
    return EvalSample.model_validate(
        {
            "id": name,
            "epoch": epoch,
            "input": messages[: len(record["opening"])],
            "target": "",
            "messages": messages,
            "output": _output(record, model, messages, usage),
            "scores": {"return": _return(record), "success": _success(record)},
            "metadata": {
                "task": plain(record["task"]),
                **{field: plain(record.get(field)) for field in _DETAILS if record.get(field) not in (None, {})},
                **({"error": error} if error and scored else {}),
            },
            "model_usage": {model: usage} if usage else {},
            "total_time": _sum(record["model_seconds"], record["env_seconds"]),
            "working_time": _sum(record["model_seconds"], record["env_seconds"]),
            "error": None if scored or record["stop_reason"] == StopReason.UNPLAYED else failed,
            "turn_count": record["num_turns"],
        }
    )


def _sum(*values: float | None) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _messages(record: Record, model: str) -> list["ChatMessage"]:
    """Return the conversation; ids are those of its order, so that a sample's input and messages share them."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser

    roles = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant, "tool": ChatMessageTool}
    said: list[ChatMessage] = [
        roles.get(message["role"], ChatMessageUser)(content=message["content"], id=str(index))
        for index, message in enumerate(record["opening"])
    ]

    def observe(text: str) -> None:
        said.append(ChatMessageUser(content=text, id=str(len(said))))

    def respond(thinking: str, text: str, metadata: dict[str, Any]) -> None:
        content = [{"type": "reasoning", "reasoning": thinking}, {"type": "text", "text": text}] if thinking else text
        fields = {"content": content, "model": model, "source": "generate", "metadata": metadata, "id": str(len(said))}
        said.append(ChatMessageAssistant.model_validate(fields))

    for index, turn in enumerate(record["turns"]):
        if index:
            observe(turn["observation"])
        details = {name: turn[name] for name in ("reward", "action", "action_valid", "action_cut")}
        respond(turn["thinking"], turn["answer"], details)
    if record["turns"] and record["last_observation"] is not None:
        observe(record["last_observation"])
    if record["unanswered"] is not None:
        respond("", record["unanswered"], {"executed": False})
    return said


def _output(record: Record, model: str, messages: Sequence["ChatMessage"], usage: "ModelUsage | None") -> "ModelOutput":
    from inspect_ai.model import ModelOutput

    responses = [message for message in messages if message.role == "assistant"]
    cut = bool(record["turns"]) and record["turns"][-1]["action_cut"]
    choices = [{"message": message, "stop_reason": "max_tokens" if cut else "stop"} for message in responses[-1:]]
    return ModelOutput.model_validate({"model": model, "choices": choices, "usage": usage})


def _usage(record: Record) -> "ModelUsage | None":
    from inspect_ai.model import ModelUsage

    sampled, read, whole = record["sampled_tokens"], record["prompt_tokens"], record["completion_tokens"]
    if sampled is None or read is None or whole is None:
        return None
    given = read + whole - sampled  # each token once
    return ModelUsage(input_tokens=given, output_tokens=sampled, total_tokens=given + sampled)


def _return(record: Record) -> "Score":
    from inspect_ai.scorer import Score

    value, reason = record["return"], record["stop_reason"]
    said = StopReason(reason).description if reason in StopReason.__members__.values() else reason
    if value is None:
        return Score.unscored(reason=reason, explanation=record["error"] or said)
    answer = record["turns"][-1]["answer"] if record["turns"] else None
    return Score(value=value, answer=answer, explanation=said, metadata={"stop_reason": reason})


def _success(record: Record) -> "Score":
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    if record["success"] is None:
        return Score.unscored(reason="not declared" if record["return"] is not None else record["stop_reason"])
    return Score(value=CORRECT if record["success"] else INCORRECT)

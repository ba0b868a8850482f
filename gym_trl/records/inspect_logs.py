"""Records as logs of Inspect, and logs of Inspect as records."""

import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

from gym_trl.errors import ConfigError, needs
from gym_trl.files import open_to_read, read_bytes, replaced
from gym_trl.records.files import read_records
from gym_trl.records.foreign import (
    Importer,
    Outcome,
    Said,
    finite,
    foreign_record,
    foreign_task,
    text_of,
    with_calls,
)
from gym_trl.records.json_lines import plain
from gym_trl.records.schema import DETAILS, Record, describe_end, given_tokens, without_tokens
from gym_trl.text.textify import counted
from gym_trl.types import StopReason

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalSpec
    from inspect_ai.model import ChatMessage, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

NO_MODEL = "none/none"
"""Inspect's name of the model in logs without one."""
LARGEST = 512 * 2**20
"""Bytes of the largest sample, or log in JSON, that is read."""
_METRICS = {"return": ("mean", "stderr"), "success": ("accuracy", "stderr")}
_DETAILS = (*DETAILS, "spec")


def write_inspect_logs(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write episodes as Inspect's ``.eval`` files for ``inspect view --log-dir FOLDER``, and return the files.

    ::

        from gym_trl.records import read_records
        from gym_trl.records.inspect_logs import write_inspect_logs

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
        logs.setdefault(key, []).append(without_tokens(record))
    files: list[Path] = []
    for key in list(logs):
        log = _log(logs.pop(key))
        recompute_metrics(log)
        name = "_".join(_slug(part) for part in key if part is not None) or "records"
        path = folder / f"{name}.eval"
        if path in files:  # names that differ only in characters that files do not have
            path = folder / f"{name}_{len(files)}.eval"
        with TemporaryDirectory(prefix="gym-trl-") as private, replaced(path) as file:  # Inspect writes through links
            written = Path(private, path.name)
            write_eval_log(log, str(written))
            with written.open("rb") as content:
                copyfileobj(content, file)
        files.append(path)
    return files


def export_inspect_logs(source: Path, out: Path) -> str:
    """Write records as ``write_inspect_logs`` does, and return the sentence that ``gym-trl export`` prints."""
    logs = write_inspect_logs(read_records(source), out)
    return f"Wrote {counted(len(logs), 'log')} to {out}; look at them with: inspect view --log-dir {out}"


def read_inspect_log(path: Path) -> Iterator[Record]:
    """Yield the samples of a log of Inspect, a ``.eval`` file or one in JSON, as episodes.

    ::

        for record in read_inspect_log(Path("logs/2026-01-01_gsm8k.eval")):
            print(record["task"]["id"], record["return"], record["success"])

    The return is the score ``return``, or else the first score that is a number or one of Inspect's grades (``C`` is
    1, ``P`` 0.5, ``I`` and ``N`` 0); ``scores`` has all of them. Success is declared by a grade or a truth value, and
    ``None`` for numbers. A sample with an error or without such a score is unscored. Tool calls are written in
    responses as ``Tools`` reads them. A log has no token ids, and no rewards of turns unless ``write_inspect_logs`` has
    written it: the last turn has the return.

    The file may come from anybody. Nothing in it is executed or unpacked to disk, one sample is in memory at a time
    (of a log in JSON all are), and no sample may be larger than ``LARGEST``.

    Raises:
        ConfigError: the file is no log of Inspect, is damaged, or is too large.
        MissingDependencyError: the extra ``inspect`` is not installed.
    """
    with needs("inspect", "A log of Inspect"):
        from inspect_ai.log import EvalSample, EvalSpec, resolve_sample_attachments
        from pydantic import ValidationError

    groups: dict[str, int] = {}
    spec: EvalSpec | None = None
    for name, held in _parts(path):
        try:
            if spec is None:
                spec = EvalSpec.model_validate(held["eval"])
                continue
            for unused in ("events", "events_data", "store", "timelines"):  # much, and no part of a record
                held.pop(unused, None)
            record = _record(resolve_sample_attachments(EvalSample.model_validate(held), "full"), spec, groups)
        except (ValidationError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path} is a damaged log of Inspect: {name}: {reason}") from error
        yield record
    if spec is None:
        raise ConfigError(f"{path} is not a log of Inspect: it has no header")


def _parts(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the header of a log and then its samples, each with its name."""
    with open_to_read(path) as file:
        if not zipfile.is_zipfile(file):
            yield from _parts_of_json(path)
            return
        yield from _parts_of_archive(path, file)


# Encrypted members raise RuntimeError, names that are no text UnicodeDecodeError.
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, UnicodeDecodeError)


def _parts_of_archive(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}  # the last of a name counts
            header = next((entries[name] for name in ("header.json", "_journal/start.json") if name in entries), None)
            if header is None:
                raise ConfigError(f"{path} is not a log of Inspect: it has no header.json")
            yield header.filename, _json_in(archive, header, path)
            for name, entry in entries.items():
                if name.startswith("samples/") and name.endswith(".json"):
                    yield name, _json_in(archive, entry, path)
    except _DAMAGED as error:
        raise ConfigError(f"{path} is a damaged log of Inspect: {error}") from error


def _json_in(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Any:
    """Return a file of an archive, without trust in the size that the archive says it has."""
    with archive.open(entry) as file:
        assert isinstance(file, zipfile.ZipExtFile)
        # A small piece at a time: what a piece becomes is in memory before its size is known.
        pieces, size = [], 0
        while piece := file.read1(4096):
            pieces.append(piece)
            if (size := size + len(piece)) > LARGEST:
                raise ConfigError(f"{entry.filename} in {path} is larger than {LARGEST} bytes and was not read")
    return _json(b"".join(pieces), f"{entry.filename} in {path}")


def _parts_of_json(path: Path) -> Iterator[tuple[str, Any]]:
    if (size := path.stat().st_size) > LARGEST:
        raise ConfigError(
            f"{path} has {size} bytes, and at most {LARGEST} are read; convert it with: inspect log convert --to eval"
        )
    log = _json(read_bytes(path), str(path))
    if "eval" not in log:
        raise ConfigError(f"{path} is not a log of Inspect: it has {', '.join(sorted(log))[:200] or 'nothing'}")
    yield "eval", log
    if not isinstance(samples := log.get("samples") or [], list):
        raise ConfigError(f"{path} is a damaged log of Inspect: samples must be a list, got {samples!r:.80}")
    for number, sample in enumerate(samples):
        yield f"sample {number}", sample


def _json(text: bytes, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON ({error}), so it is no log of Inspect") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a JSON object, so it is no log of Inspect")
    return value


def _record(sample: "EvalSample", spec: "EvalSpec", groups: dict[str, int]) -> Record:
    """Return the episode of a sample."""
    known, model = sample.metadata, spec.model
    task = _task(known.get("task"))
    if task is None:
        task = foreign_task(spec.task, sample.id)
    name = task.get("id") or json.dumps(task, sort_keys=True)
    scores = sample.scores or {}
    outcome = _outcome(sample)
    usage = sample.model_usage.get(model)
    whole = {field: known[field] for field in ("step", "game", "seat") if isinstance(known.get(field), int)}
    return foreign_record(
        [_said(message) for message in sample.messages],
        outcome,
        source="Inspect",
        task=task,
        given=1 if isinstance(sample.input, str) else len(sample.input),
        policy=None if model == NO_MODEL else model,
        split=known["split"] if isinstance(known.get("split"), str) else "eval",
        group=groups.setdefault(name, len(groups)),
        attempt=sample.epoch - 1,
        scores={name: score.value for name, score in scores.items()},
        sampled_tokens=usage.output_tokens if usage else None,
        total_time=sample.total_time,
        **whole,
    )


def _task(held: Any) -> dict[str, Any] | None:
    """Return the task that ``write_inspect_logs`` has written, if it has."""
    if not isinstance(held, Mapping) or not isinstance(held.get("env_id"), str) or ":" in held["env_id"]:
        return None
    kwargs, options, seed = held.get("env_kwargs"), held.get("options"), held.get("seed")
    if not isinstance(kwargs, dict) or not isinstance(options, dict) or not isinstance(seed, int | None):
        return None
    return {"env_id": held["env_id"], "env_kwargs": kwargs, "seed": seed, "options": options}


_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_LIMITS = {
    "context": StopReason.CONTEXT_OVERFLOW,
    "time": StopReason.TIME_LIMIT,
    "working": StopReason.TIME_LIMIT,
    "message": StopReason.TURN_LIMIT,
    "turn": StopReason.TURN_LIMIT,
}
"""Stop reasons of Inspect's limits; the others limit what may be used up, as tokens and money."""


def _outcome(sample: "EvalSample") -> Outcome:
    scores = {name: _number(score.value) for name, score in (sample.scores or {}).items()}
    value = scores.get("return")
    if value is None and "return" not in scores:
        value = next((score for score in scores.values() if score is not None), None)
    written = sample.metadata.get("stop_reason")
    told = StopReason(written) if written in StopReason.__members__.values() else None
    if sample.error is not None or value is None:
        said = sample.error.message if sample.error is not None else "no score is a number"
        unscored = told if told is not None and not told.scored else StopReason.ENV_ERROR
        return Outcome(unscored, None, error=None if unscored is StopReason.UNPLAYED else said)
    success = _declared(sample)
    if told is not None and told.scored:
        return Outcome(told, value, success)
    if sample.limit is not None:
        return Outcome(_LIMITS.get(sample.limit.type, StopReason.TOKEN_LIMIT), value, success)
    ends = {True: StopReason.SUCCESS, False: StopReason.FAILURE, None: StopReason.TERMINATED}
    return Outcome(ends[success], value, success)


def _number(value: Any) -> float | None:
    return _GRADES.get(value) if isinstance(value, str) else finite(value)


def _declared(sample: "EvalSample") -> bool | None:
    """Return the success that a score declares: the one of that name, or the first that is a grade or truth value."""
    scores = sample.scores or {}
    held = [scores["success"]] if "success" in scores else list(scores.values())
    grades = {"C": True, "I": False, "N": False}
    said = (score.value if isinstance(score.value, bool) else grades.get(str(score.value)) for score in held)
    return next((one for one in said if one is not None), None)


def _said(message: "ChatMessage") -> Said:
    content = message.content
    parts: Any = content if isinstance(content, str) else [part.model_dump() for part in content]
    thinking, text = text_of(parts)
    calls = getattr(message, "tool_calls", None) or []
    text, action = with_calls(text, [(call.function, call.arguments) for call in calls])
    known = message.metadata or {}
    valid = not any(call.parse_error for call in calls)
    said = Said(message.role, text, thinking, action, valid=valid)
    if not {"reward", "action_valid"} <= known.keys():  # not ours
        return said._replace(executed=known.get("executed") is not False)
    action = known.get("action")
    return said._replace(
        action=action if isinstance(action, str) else None,
        reward=finite(known["reward"]),
        valid=known["action_valid"] is not False,
        cut=known.get("action_cut") is True,
    )


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
    said: list[ChatMessage] = []

    def observe(text: str, role: str = "user") -> None:
        said.append(roles.get(role, ChatMessageUser).model_validate({"content": text, "id": str(len(said))}))

    def respond(thinking: str, text: str, metadata: dict[str, Any]) -> None:
        content = [{"type": "reasoning", "reasoning": thinking}, {"type": "text", "text": text}] if thinking else text
        fields = {"content": content, "model": model, "source": "generate", "metadata": metadata, "id": str(len(said))}
        said.append(ChatMessageAssistant.model_validate(fields))

    for message in record["opening"]:
        observe(message["content"], message["role"])
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

    given, sampled = given_tokens(record), record["sampled_tokens"]
    if given is None or sampled is None:
        return None
    return ModelUsage(input_tokens=given, output_tokens=sampled, total_tokens=given + sampled)


def _return(record: Record) -> "Score":
    from inspect_ai.scorer import Score

    value, reason, said = record["return"], record["stop_reason"], describe_end(record)
    if value is None:
        return Score.unscored(reason=reason, explanation=record["error"] or said)
    answer = record["turns"][-1]["answer"] if record["turns"] else None
    return Score(value=value, answer=answer, explanation=said, metadata={"stop_reason": reason})


def _success(record: Record) -> "Score":
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    if record["success"] is None:
        return Score.unscored(reason="not declared" if record["return"] is not None else record["stop_reason"])
    return Score(value=CORRECT if record["success"] else INCORRECT)


IMPORTER = Importer("a log of Inspect (.eval, .json)", lambda path: path.suffix in (".eval", ".json"), read_inspect_log)

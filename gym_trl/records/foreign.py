"""Records of episodes that other tools have played."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
from gym_trl.leaves import load, offered
from gym_trl.records.fields import as_number
from gym_trl.records.json_lines import plain
from gym_trl.records.schema import VERSION, Record, TurnRecord, complete, token_fields
from gym_trl.types import StopReason, TokenTrace


class Said(NamedTuple):
    """Message of another tool's conversation."""

    role: str
    text: str
    thinking: str = ""
    action: str | None = None
    reward: float | None = None
    """Reward of the step that a response caused, where the tool has one."""
    valid: bool = True
    cut: bool = False
    executed: bool = True
    """False for a last response that caused no step."""
    sampled: tuple[int, int] | None = None
    """Range of a response's ids in ``TokenTrace.completion_ids``, where the tool has them."""
    """PNG files in base64."""


class Outcome(NamedTuple):
    """End of another tool's episode."""

    stop_reason: StopReason
    value: float | None
    """Return; ``None`` if the episode is unscored."""
    success: bool | None = None
    error: str | None = None


class Importer(NamedTuple):
    """Reader of another tool's files."""

    files: str
    """Names of the files, for messages."""
    fits: Callable[[Path], bool]
    """Function that returns True for a file or folder of the tool, by its name alone."""
    read: Callable[[Path], Iterator[Record]]


def read_foreign(path: Path) -> Iterator[Record]:
    """Return an iterator over the episodes in a file of another tool, which is told by the file's name.

    Args:
        path: ``.eval`` or ``.json`` of Inspect; ``traces.jsonl``, ``results.jsonl`` or their folder of verifiers.

    Raises:
        ConfigError: there is no such file, or it is of another kind.
    """
    importers: list[Importer] = [load("importers", name) for name in offered("importers")]
    readable = " or ".join(importer.files for importer in importers)
    if not path.exists():
        raise ConfigError(f"there is no {path}; give {readable}")
    for importer in importers:
        if importer.fits(path):
            return importer.read(path)
    raise ConfigError(f"{path} cannot be imported: give {readable}")


def foreign_record(
    said: Sequence[Said],
    outcome: Outcome,
    *,
    source: str,
    task: Mapping[str, Any],
    given: int = 0,
    trace: TokenTrace | None = None,
    **fields: Any,
) -> Record:
    """Return the record of an episode that another tool has played.

    >>> said = [Said("user", "2 + 2?"), Said("assistant", "4")]
    >>> won = Outcome(StopReason.SUCCESS, 1.0, success=True)
    >>> record = foreign_record(said, won, source="Inspect", task=foreign_task("sums", "first"), policy="tiny")
    >>> record["task"]["id"], [(turn["observation"], turn["answer"], turn["reward"]) for turn in record["turns"]]
    ('sums#first', [('2 + 2?', '4', 1.0)])
    >>> record["prompt_ids"], record["source"]  # what is not known is None
    (None, 'Inspect')

    Every response is a turn, and what stands between two of them is one observation. Where the tool has no rewards of
    turns, the last turn has the return.

    Args:
        said: Messages.
        outcome: End of the episode.
        source: Name of the tool, a field of the record.
        task: The task, as ``foreign_task`` returns it.
        given: Number of messages that the model was given at first; responses among them are examples.
        trace: Token ids, if the tool has them. None are invented where it has not.
        fields: Further fields of the record.

    Raises:
        RecursionError: a field or the task is nested too deeply to be written again.
    """
    conversation = _Conversation.of(said, given)
    scored = outcome.value is not None
    ended = outcome.stop_reason in (StopReason.SUCCESS, StopReason.FAILURE, StopReason.TERMINATED)
    record: dict[str, Any] = {
        **plain(fields),
        "version": VERSION,
        "source": source,
        "task": plain(task),
        "opening": [{"role": message.role, "content": message.text} for message in conversation.opening],
        "turns": conversation.turns(outcome.value, traced=trace is not None),
        "last_observation": conversation.last_observation,
        "unanswered": conversation.unanswered,
        "return": outcome.value,
        "success": outcome.success if scored else None,
        "terminated": scored and ended,
        "truncated": scored and not ended,
        "stop_reason": outcome.stop_reason.value,
        "error": outcome.error,
    }
    if trace:
        record |= token_fields(trace)
    return complete(record, f"an episode of {source}")


class _Conversation(NamedTuple):
    """Messages of an episode, cut after each response."""

    exchanges: list[list[Said]]
    """Messages that end with a response."""
    rest: list[Said]
    """Messages after the last response."""
    unanswered: str | None

    @classmethod
    def of(cls, said: Sequence[Said], given: int) -> "_Conversation":
        messages = list(said)
        unanswered = None
        if messages and messages[-1].role == "assistant" and not messages[-1].executed:
            unanswered = messages.pop().text
        ends = [index + 1 for index, message in enumerate(messages) if message.role == "assistant" and index >= given]
        *exchanges, rest = [messages[start:stop] for start, stop in pairwise([0, *ends, len(messages)])]
        return cls(exchanges, rest, unanswered)

    @property
    def opening(self) -> list[Said]:
        return self.exchanges[0][:-1] if self.exchanges else self.rest

    @property
    def last_observation(self) -> str | None:
        return _joined(self.rest) if self.exchanges and self.rest else None

    def turns(self, value: float | None, *, traced: bool) -> list[TurnRecord]:
        """Return the turns; the last has the return where the tool has no rewards of turns."""
        observations = [_joined(exchange[:-1]) for exchange in self.exchanges]
        observations[:1] = [_joined([one for one in self.opening[-1:] if one.role != "assistant"])]
        responses = [exchange[-1] for exchange in self.exchanges]
        spans = [(response.sampled if traced else None) or (None, None) for response in responses]
        rewards = [response.reward for response in responses]
        if rewards and all(reward is None for reward in rewards):
            rewards[-1] = value
        return [
            {
                "observation": observation,
                "thinking": response.thinking,
                "answer": response.text,
                "action": response.action,
                "reward": reward or 0.0,
                "action_valid": response.valid,
                "action_cut": response.cut,
                "start": start,
                "stop": stop,
            }
            for response, observation, reward, (start, stop) in zip(
                responses, observations, rewards, spans, strict=False
            )
        ]


def _joined(messages: Sequence[Said]) -> str:
    return "\n".join(message.text for message in messages)


def foreign_task(environment: str, instance: str | int) -> dict[str, Any]:
    """Return the task of another tool's episode, whose seed is not known: its name there is an option.

    >>> foreign_task("os:gsm8k", 7)
    {'id': 'os-gsm8k#7', 'env_id': 'os-gsm8k', 'env_kwargs': {}, 'seed': None, 'options': {'instance': 7}}

    ``gym.make`` imports the module before a colon, so a name from a file of somebody else must not have one.
    """
    name = environment.replace(":", "-")
    options = {"instance": instance}
    return {"id": f"{name}#{instance}", "env_id": name, "env_kwargs": {}, "seed": None, "options": options}


def text_of(content: Any) -> tuple[str, str]:
    """Return the thinking and the text of a message's content, which is a string or a list of parts.

    >>> text_of([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "4"}, {"type": "image"}])
    ('Hm.', '4[image]')
    """
    if not isinstance(content, list):
        return "", "" if content is None else str(content)
    thinking, texts = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "reasoning":
            thinking.append(str(part.get("reasoning") or part.get("summary") or ""))
        elif kind == "text":
            texts.append(str(part.get("text") or ""))
        else:
            texts.append(f"[{kind}]" if kind else str(part))
    return "\n".join(thinking), "".join(texts)


def with_calls(text: str, calls: Iterable[tuple[str, Any]]) -> tuple[str, str | None]:
    r"""Return a response with its tool calls in the form that ``Tools`` reads, and the calls alone.

    >>> with_calls("Let me see.", [("add", {"a": 2})])
    ('Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', '{"name": "add", "arguments": ...')
    >>> with_calls("4", [])
    ('4', None)
    """
    written = [json.dumps({"name": name, "arguments": arguments}, default=str) for name, arguments in calls]
    if not written:
        return text, None
    marked = [f"<tool_call>{call}</tool_call>" for call in written]
    return "\n".join([text, *marked] if text else marked), "\n".join(written)


def finite(value: Any) -> float | None:
    """Return a number or truth value as a float, and ``None`` for anything else, as ``as_number``.

    >>> finite(True), finite(float("nan")), finite(10**400), finite("1")
    (1.0, None, None, None)
    """
    number = int(value) if isinstance(value, bool) else as_number(value)
    return None if number is None else float(number)

"""Records of episodes that other tools have played."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gym_trl.records.fields import as_number
from gym_trl.records.json_lines import plain
from gym_trl.records.schema import MAX_IMAGE_BYTES, VERSION, MessageRecord, Record, complete, limited, token_fields
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
    images: tuple[str, ...] = ()
    """PNG files in base64."""


class Outcome(NamedTuple):
    """End of another tool's episode."""

    stop_reason: StopReason
    value: float | None
    """Return; ``None`` if the episode is unscored."""
    success: bool | None = None
    error: str | None = None


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
    said = list(said)
    unanswered = said.pop().text if said and said[-1].role == "assistant" and not said[-1].executed else None
    spoken = [index for index, message in enumerate(said) if message.role == "assistant" and index >= given]
    opening: list[MessageRecord] = [
        {"role": message.role, "content": message.text} for message in said[: spoken[0] if spoken else len(said)]
    ]
    paid = [said[index].reward for index in spoken]
    known = any(reward is not None for reward in paid)
    turns, before = [], opening[-1]["content"] if opening and opening[-1]["role"] != "assistant" else ""
    borders = [0, *(index + 1 for index in spoken), len(said)]
    images = [[code for one in said[start:stop] for code in one.images] for start, stop in pairwise(borders)]
    for number, index in enumerate(spoken):
        response, last = said[index], number + 1 == len(spoken)
        ids = response.sampled if trace else None
        turns.append(
            {
                "observation": before,
                "thinking": response.thinking,
                "answer": response.text,
                "action": response.action,
                "reward": (response.reward or 0.0) if known else (outcome.value or 0.0) if last else 0.0,
                "action_valid": response.valid,
                "action_cut": response.cut,
                "start": ids[0] if ids else None,
                "stop": ids[1] if ids else None,
            }
        )
        after = said[index + 1 : None if last else spoken[number + 1]]
        before = "\n".join(message.text for message in after)
    scored = outcome.value is not None
    ended = outcome.stop_reason in (StopReason.SUCCESS, StopReason.FAILURE, StopReason.TERMINATED)
    record: dict[str, Any] = {
        **plain(fields),
        "version": VERSION,
        "source": source,
        "task": plain(task),
        "opening": opening,
        "turns": turns,
        "last_observation": before if spoken and said[spoken[-1] + 1 :] else None,
        "unanswered": unanswered,
        "return": outcome.value,
        "success": outcome.success if scored else None,
        "terminated": scored and ended,
        "truncated": scored and not ended,
        "stop_reason": outcome.stop_reason.value,
        "error": outcome.error,
        "images": limited(images) if any(images) else None,
    }
    if trace:
        record |= token_fields(trace)
    return complete(record, f"an episode of {source}")


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


def apart(content: Any) -> tuple[tuple[str, ...], Any]:
    """Return the PNG files among the parts of a message's content, in base64, and the other parts.

    >>> parts = [{"type": "image", "image": "data:image/png;base64,iVBORw=="}, {"type": "text", "text": "Look."}]
    >>> apart(parts)
    (('iVBORw==',), [{'type': 'text', 'text': 'Look.'}])

    Addresses, files and other formats are no such parts; nothing is fetched.
    """
    if not isinstance(content, list):
        return (), content
    found, others = [], []
    for part in content:
        held = part.get(part.get("type")) if isinstance(part, Mapping) else None
        url = held.get("url") if isinstance(held, Mapping) else held  # OpenAI's part, and Inspect's
        if isinstance(url, str) and len(url) <= 2 * MAX_IMAGE_BYTES and (png := _PNG.fullmatch(url)):
            found.append(png[1])
        else:
            others.append(part)
    return tuple(found), others


_PNG = re.compile(r"data:image/png;base64,((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)")


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

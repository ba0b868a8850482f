"""Messages and tokens of an episode, as the page shows them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError, needs
from gym_trl.records import Record, is_number

_LARGEST: Final = 2**53  # largest exact integer in JavaScript
_SHOWN: Final = frozenset(
    {
        *(
            "version",
            "task",
            "spec",
            "policy",
            "split",
            "step",
            "group",
            "seat",
            "opening",
            "turns",
            "last_observation",
        ),
        *("return", "success", "terminated", "truncated", "stop_reason", "error", "num_turns", "invalid_actions"),
        *("prompt_tokens", "completion_tokens", "sampled_tokens", "prompt_ids", "completion_ids", "mask", "logprobs"),
        *("token_texts", "segments", "advantages"),
    }
)
"""Fields that the page shows in places of their own; all others are details."""


class Decoder:
    """Decoder of ids one by one; a character made of several ids belongs to the last of them."""

    def __init__(self, file: Path) -> None:
        with needs("train", "the text of token ids"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except OSError:
            raise
        except Exception as error:  # tokenizers raises no specific exception
            raise ConfigError(f"{file} is not a tokenizer: {error}") from error

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        pieces = []
        for index in ids:
            try:
                pieces.append(stream.step(self._tokenizer, index) or "")
            except Exception:  # an id that is not in the vocabulary
                pieces.append(f"<{index}>")
        return pieces


def body(record: Record, decoder: Decoder | None = None) -> dict[str, Any]:
    """Return the messages of an episode, with the names that the page expects.

    >>> from gym_trl.episode import Episode
    >>> from gym_trl.records import completed, record_of
    >>> from gym_trl.types import StepResult, Task
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> episode.begin(StepResult("Say ox."))
    >>> episode.answer("ox")
    >>> episode.step(StepResult("Yes.", reward=1.0, terminated=True))
    >>> body(completed(record_of(episode)))["turns"][0]
    {'observation': 'Say ox.', 'thinking': '', 'answer': 'ox', 'reward': 1.0, 'valid': True, 'action': None}
    """
    task, turns, advantages = record["task"], record["turns"], record["advantages"] or []
    others = {name: value for name, value in record.items() if name not in _SHOWN}
    last, error = record["last_observation"], record["error"]
    return {
        "turns": [_turn(turn) for turn in turns],
        "opening": _opening(record),
        "last": last if last is None else text(last),
        "error": error if error is None else text(error),
        "options": shown({**task["env_kwargs"], **task["options"]}),
        "counts": {name: _exact(record[f"{name}_tokens"]) for name in ("prompt", "completion")},
        "more": shown({**record["spec"], **others}),
        "advantages": [_exact(value) for value in advantages] if turns and len(advantages) == len(turns) else None,
        "tokens": _tokens(record, decoder),
        "segments": [shown(one) for one in record["segments"] or ()],
    }


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    action, place = turn["action"], [turn["start"], turn["stop"]]
    return {
        **{name: turn[name] for name in ("observation", "thinking", "answer", "reward")},
        "valid": bool(turn["action_valid"]),
        "action": action if action is None else text(action),
        **({} if None in place else {"start": place[0], "stop": place[1]}),
    }


def _opening(record: Record) -> list[dict[str, str]]:
    """Return the messages before the first observation."""
    opening = [{"role": text(message["role"]), "text": message["content"]} for message in record["opening"]]
    if opening and record["turns"]:
        opening[-1]["text"] = opening[-1]["text"].removesuffix(record["turns"][0]["observation"]).rstrip()
    return [message for message in opening if message["text"]]


def _tokens(record: Record, decoder: Decoder | None) -> dict[str, Any] | None:
    ids, mask, prompt = (record[name] or [] for name in ("completion_ids", "mask", "prompt_ids"))
    if not ids or len(mask) != len(ids) or not all(type(one) is int and 0 <= one < _LARGEST for one in [*ids, *prompt]):
        return None
    logprobs, texts = record["logprobs"] or [], record["token_texts"]
    recorded = [text(one) for one in texts] if isinstance(texts, list) and len(texts) == len(ids) else None
    return {
        "ids": ids,
        "texts": decoder.pieces(ids) if decoder else recorded,
        "mask": [1 if one else 0 for one in mask],
        "logprobs": [_exact(value) for value in logprobs] if len(logprobs) == len(ids) else None,
        "prompt": "".join(decoder.pieces(prompt)) if decoder else None,
        "prompt_ids": None if decoder else prompt,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Values in the types that the page expects, whatever a file has
# ---------------------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Return a text itself, and anything else as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:  # a file can nest deeper than it can be written
        return "..."


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def shown(values: Any) -> dict[str, str | float | bool | None]:
    """Return a mapping's values in a form that can be shown in one line."""
    simple = {name: value is None or isinstance(value, str | bool) or is_exact(value) for name, value in values.items()}
    return {str(name): value if simple[name] else text(value) for name, value in values.items()}


def is_exact(value: Any) -> bool:
    """Return whether a value is a number that JavaScript shows as it is."""
    return is_number(value) and abs(value) < _LARGEST


def _exact(value: Any) -> float | None:
    """Return a number with four digits after the point, and ``None`` for anything else."""
    return round(value, 4) + 0 if is_exact(value) else None

"""Files with everything that a training step was computed from, which ``gym-trl check`` reads.

A file is a NumPy archive without pickles: ``about`` is JSON (the settings of the step, and the episodes without their
tokens), and each other array has the values of all episodes or rows one after the other, with their numbers in
``NAME.lengths``.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from gym_trl.errors import ConfigError
from gym_trl.files import read_bytes
from gym_trl.records.fields import Fields
from gym_trl.records.json_lines import as_object, to_json
from gym_trl.records.schema import Record, complete

STEPS = "steps"
"""Folder of a run with the files."""
VERSION = 1
_MOST_UNPACKED = 2**31
EPISODE_ARRAYS: Mapping[str, str] = {
    "prompt_ids": "int32",
    "completion_ids": "int32",
    "mask": "int8",
    "logprobs": "float32",
}
"""Types of the values of each episode, as its engine and its environment gave them."""
ROW_ARRAYS: Mapping[str, str] = {
    "row_prompt_ids": "int32",
    "row_completion_ids": "int32",
    "row_mask": "int8",
    "row_advantages": "float32",
    "row_sampled": "float32",
    "row_old": "float32",
    "row_reference": "float32",
    "row_ratios": "float32",
}
"""Types of the values of each row, as the trainer's loss gets them; of the last four, those that a trainer has."""
Ragged = list[NDArray[Any]]


class StepSettings(TypedDict):
    """Fields of ``GRPOConfig`` on which advantages, log-probabilities or losses depend."""

    beta: float | None
    delta: float | None
    entropy_coef: float | None
    epsilon: float | None
    epsilon_high: float | None
    gradient_accumulation_steps: int
    importance_sampling_level: str
    loss_type: str
    max_completion_length: int | None
    min_p: float | None
    multi_objective_aggregation: str
    num_iterations: int
    off_policy_mask_threshold: float | None
    repetition_penalty: float | None
    sapo_temperature_neg: float | None
    sapo_temperature_pos: float | None
    scale_rewards: str
    steps_per_generation: int
    temperature: float
    top_entropy_quantile: float
    top_k: int | None
    top_p: float | None
    use_adaptive_entropy: bool | None
    use_vllm: bool
    vllm_importance_sampling_clip_max: float | None
    vllm_importance_sampling_clip_min: float | None
    vllm_importance_sampling_correction: bool | None
    vllm_importance_sampling_mode: str | None


class RoleMean(TypedDict):
    """Baseline of a role, with ``credit="rae"``."""

    role: str
    before: float
    """Baseline by which the step's episodes were judged."""
    after: float
    """Baseline after they were counted."""


class StepCredit(TypedDict):
    """Estimator of credit per turn."""

    credit: str | None
    """Its name, ``"function"`` for a user's; null without credit per turn."""
    role_decay: float | None
    """Weight of earlier returns in the baselines of ``credit="rae"``; null with others."""
    role_means: list[RoleMean]
    """Baselines of ``credit="rae"``; none with others."""


class StepAbout(StepCredit):
    """Settings of a step that its numbers depend on."""

    version: int
    step: int
    call: int
    time: str | None
    """Local time in ISO 8601, which a chat template may write; null in files of an earlier release."""
    generation: int
    seed: int
    rows_by_process: list[int]
    """Number of episodes of each process."""
    group_size: int
    functions: list[str]
    """Names of the reward functions."""
    weights: list[float]
    """Their weights."""
    masks_cut_off: bool
    segments: bool
    """The history makes each segment a row."""
    items: float | None
    """Number of trained tokens that the loss is divided by."""
    template: str | None
    """Chat template."""
    template_options: dict[str, Any]
    end_ids: list[int]
    max_tokens_per_turn: int | None
    max_tokens: int | None
    max_context: int | None
    settings: StepSettings


class StepEpisode(TypedDict):
    """Row of a rollout beside its episode: its place and its seed, what it was paid, and its turns for credit."""

    number: int
    attempt: int
    sampling_seed: int
    rewards: list[float | None]
    """Reward of each function; null for none."""
    turn_rewards: list[float]
    turn_spans: list[list[int]]
    turn_keys: list[str]
    markov_keys: bool
    turns_left: list[int]
    turn_places: list[str]
    task_key: str
    turn_penalties: list[float]
    unplayed_costs: float
    role: str | None


_ABOUT, _EPISODE = Fields(StepAbout, {"role_decay": None, "role_means": [], "time": None}), Fields(StepEpisode, {})
_SETTINGS = Fields(StepSettings, {"sapo_temperature_neg": None, "sapo_temperature_pos": None})
_NEEDED = ("row_prompt_ids", "row_completion_ids", "row_mask", "row_advantages")


@dataclass(frozen=True)
class StepData:
    """Step of a training as it was recorded."""

    about: StepAbout
    episodes: Sequence[StepEpisode]
    """Rows of the rollout, those of all processes in their order."""
    records: Sequence[Record]
    """Their episodes, with tokens."""
    rows: Mapping[str, Ragged]
    """Values of the rows of the loss, by the names of ``ROW_ARRAYS``."""


def step_name(step: int, call: int) -> str:
    """Return the name of a file; a step may have several rollouts, of which the first has call 0.

    >>> step_name(51, 0), step_name(51, 4)
    ('step-51.npz', 'step-51-4.npz')
    """
    return f"step-{step}-{call}.npz" if call else f"step-{step}.npz"


def step_files(folder: Path) -> dict[Path, int]:
    """Return the files of a run and the step of each, in order.

    >>> step_files(Path("/nowhere"))
    {}
    """
    numbered = []
    for path in (folder / STEPS).glob("step-*.npz"):
        step, _, call = path.stem.removeprefix("step-").partition("-")
        if step.isdecimal() and (call or "0").isdecimal():
            numbered.append((int(step), int(call or 0), path))
    return {path: step for step, _, path in sorted(numbered)}


def pack_step(
    about: StepAbout, episodes: Sequence[Mapping[str, Any]], records: Sequence[Record], rows: Mapping[str, Ragged]
) -> bytes:
    """Return the content of a file.

    Args:
        about: Settings of the step.
        episodes: Objects as ``StepEpisode``.
        records: Records of the episodes, with tokens.
        rows: Arrays of rows, by the names of ``ROW_ARRAYS``.
    """
    whole = {"about": about, "episodes": episodes, "records": [{**one, **_NO_TOKENS} for one in records]}
    arrays = {"about": np.frombuffer(to_json(whole).encode(), dtype=np.uint8)}
    plain: Sequence[Mapping[str, Any]] = records
    ragged: dict[str, Sequence[Any]] = {name: [one[name] or () for one in plain] for name in EPISODE_ARRAYS}
    ragged |= rows
    for name, values in ragged.items():
        kind = {**EPISODE_ARRAYS, **ROW_ARRAYS}[name]
        parts = [np.asarray([np.nan if v is None else v for v in one], dtype=kind) for one in values]
        arrays[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=kind)
        arrays[f"{name}.lengths"] = np.array(list(map(len, parts)), dtype=np.int32)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


_NO_TOKENS = dict.fromkeys(EPISODE_ARRAYS)


def read_step(path: Path) -> StepData:
    """Return the step in a file, which may be anybody's.

    Raises:
        ConfigError: It is not such a file; the message says what is wrong with it.
        OSError: It cannot be read.
    """
    try:
        arrays = _arrays(read_bytes(path))
        whole = as_object(arrays.pop("about").tobytes())
        if whole is None:
            raise ValueError("about is not a JSON object")
        return _step(whole, arrays)
    except (
        ValueError,  # also of a pickle
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        EOFError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ConfigError(f"{path} is not a recorded step: {str(error) or type(error).__name__}") from error


def _arrays(content: bytes) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _MOST_UNPACKED:
        raise ValueError(f"it has {size} bytes, more than {_MOST_UNPACKED}")
    with np.load(io.BytesIO(content), allow_pickle=False) as archived:
        return {name: archived[name] for name in archived.files}


def _step(whole: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> StepData:
    about = _checked_settings(whole["about"])
    _check_episodes(whole["episodes"])
    columns = {name: _ragged(name, kind, arrays) for name, kind in EPISODE_ARRAYS.items()}
    records = [dict(one) for one in whole["records"]]
    if not len(records) == len(whole["episodes"]) == sum(about["rows_by_process"]):
        raise ValueError(f"it has {len(records)} records of {len(whole['episodes'])} episodes")
    for name, values in columns.items():
        for record, value in zip(records, values, strict=True):
            record[name] = _plain(value) if len(columns["prompt_ids"]) and record["prompt_tokens"] is not None else None
    rows = {name: _ragged(name, kind, arrays) for name, kind in ROW_ARRAYS.items() if name in arrays}
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ValueError(f"it has no {missing[0]}")
    if len({*map(len, rows.values())}) > 1:
        raise ValueError("its arrays have different numbers of rows")
    checked = [complete(record, f"records[{number}]") for number, record in enumerate(records)]
    return StepData(about, whole["episodes"], checked, rows)


def _checked_settings(about: Any) -> StepAbout:
    """Return the settings of a file, with defaults for what an earlier release did not write."""
    if about["version"] != VERSION:
        raise ValueError(f"it is of version {about['version']!r:.40}, but this release reads version {VERSION}")
    about = _ABOUT.completed(about)
    if problem := _ABOUT.problem(about):
        raise ValueError(problem[1])
    about["settings"] = _SETTINGS.completed(about["settings"])
    if problem := _SETTINGS.problem(about["settings"]):
        raise ValueError(f"settings.{problem[1]}")
    if about["group_size"] < 1 or not about["rows_by_process"] or not about["settings"]["temperature"] > 0:
        raise ValueError("a group, a process and a temperature must be above 0")
    if about["role_decay"] is not None and not 0 <= about["role_decay"] < 1:
        raise ValueError("role_decay must be from 0 to below 1")
    if len(about["weights"]) != len(about["functions"]):
        raise ValueError("each reward function must have a weight")
    return cast(StepAbout, about)


def _check_episodes(episodes: Any) -> None:
    if problem := _EPISODE.problem(*map(_EPISODE.completed, episodes)):
        raise ValueError(f"episodes[{problem[0]}].{problem[1]}")
    if any(len(span) != 2 for one in episodes for span in one["turn_spans"]):
        raise ValueError("turn_spans must be pairs")


def _plain(values: NDArray[Any]) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124 -- NaN


def _ragged(name: str, kind: str, arrays: Mapping[str, NDArray[Any]]) -> Ragged:
    """Return the values of each episode or row."""
    values, lengths = arrays[name], arrays[f"{name}.lengths"]
    if values.ndim != 1 or lengths.ndim != 1 or values.dtype != np.dtype(kind) or lengths.dtype != np.int32:
        raise ValueError(f"{name} is not a list of {kind}")
    if (lengths < 0).any() or int(lengths.sum(dtype=np.int64)) != len(values):
        raise ValueError(f"{name}.lengths do not add up to {len(values)}")
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []

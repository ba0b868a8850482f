"""Folders for the Hugging Face Hub: episodes, conversations and preference pairs as a data set with its card."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.files import make_folder, replace_text
from gym_trl.records.export import preference_rows, sft_rows
from gym_trl.records.files import read_records
from gym_trl.records.parquet import TableSize, as_row, episode_columns, write_table
from gym_trl.records.schema import Record

CARD = "README.md"
_ABOUT = {
    "episodes": "whole episodes, unscored ones among them, with the fields of gym-trl's records as columns",
    "conversations": "`messages` of scored episodes for supervised training, each ending with the last response",
    "preferences": "`prompt`, `chosen` and `rejected`: the best and the worst episode of a task",
}


def write_hub_folder(
    source: Path,
    folder: Path,
    *,
    license: str = "unknown",  # noqa: A002, the Hub's name for it
    min_return: float | None = None,
    successes: bool = False,
    min_gap: float = 0.0,
    thinking: bool = False,
) -> dict[str, dict[str, int]]:
    """Write a data set that ``datasets.load_dataset`` and the Hub read, and return its rows by configuration and split.

    ::

        write_hub_folder(Path("runs/first"), Path("data/first"), license="apache-2.0")
        datasets.load_dataset("data/first", "conversations", split="train")

    There are up to three configurations: ``episodes``, ``conversations`` (as ``sft_rows``) and ``preferences`` (as
    ``preference_rows``). Episodes of the split ``"eval"`` are in the split ``test``, all others in ``train``, so that
    no row to train on is of an evaluation's task. The card, ``README.md``, has the licence, tasks, configurations,
    columns and sizes in its front matter, and a table of the environments. The records are read several times, with a
    thousand episodes in memory at most, and the best and worst of each task.

    Args:
        source: Records, as for ``read_records``.
        folder: Folder to write to; it is made if it does not exist.
        license: Licence by its id on the Hub.
        min_return: As in ``sft_rows``.
        successes: As in ``sft_rows``.
        min_gap: As in ``preference_rows``.
        thinking: As in both.

    Raises:
        ConfigError: there are no episodes.
        OSError: the folder cannot be written, or a folder in it is a link.
        MissingDependencyError: the extra ``train`` is not installed.
    """
    with needs("train", "A data set for the Hub"):
        from datasets import Features, List, Value
        from datasets.info import DatasetInfosDict
        from datasets.utils.metadata import MetadataConfigs
        from huggingface_hub import DatasetCardData

    messages = List({"role": Value("string"), "content": Value("string")})
    conversations = partial(sft_rows, min_return=min_return, successes=successes, thinking=thinking)
    pairs = partial(preference_rows, min_gap=min_gap, thinking=thinking)
    configurations = [
        _Configuration("episodes", episode_columns(), partial(map, as_row)),
        _Configuration("conversations", Features({"messages": messages}), conversations),
        _Configuration("preferences", Features(dict.fromkeys(("prompt", "chosen", "rejected"), messages)), pairs),
    ]
    about = _about(read_records(source))
    if not about:
        raise ConfigError(f"{source} has no episodes")
    folder.mkdir(parents=True, exist_ok=True)
    infos, configs = DatasetInfosDict(), MetadataConfigs()
    counts: dict[str, dict[str, int]] = {}
    for one in configurations:
        if sizes := one.write(source, folder / one.name):
            counts[one.name] = {split: size.rows for split, size in sizes.items()}
            infos[one.name] = one.info(sizes, folder / one.name)
            configs[one.name] = one.config(sizes)
    title = f"Episodes of {', '.join(sorted({_cell(line.env_id) for line in about}))[:100]}"
    card = DatasetCardData(
        license=license,
        pretty_name=title,
        task_categories=["reinforcement-learning", "text-generation"],
        tags=["gym-trl", "gymnasium", "trl"],
        size_categories=[_size(sum(counts["episodes"].values()))],
    )
    infos.to_dataset_card_data(card)
    configs.to_dataset_card_data(card)
    page = _text(about, counts, title)
    replace_text(folder / CARD, f"---\n{card.to_yaml()}\n---\n\n{page}")
    return counts


@dataclass(frozen=True)
class _Configuration:
    """Columns and rows of one configuration of the data set, which has a file for each split with rows."""

    name: str
    columns: Any
    rows: Callable[[Iterator[Record]], Iterator[dict[str, Any]]]

    def write(self, source: Path, folder: Path) -> dict[str, TableSize]:
        """Write the files, and return their sizes by split; without any, there is no folder."""
        make_folder(folder)
        sizes: dict[str, TableSize] = {}
        for split in ("train", "test"):
            records = (record for record in read_records(source) if _split(record) == split)
            path = folder / f"{split}.parquet"
            size = write_table(self.rows(records), self.columns, path)
            if size.rows:
                sizes[split] = size
            else:
                path.unlink()
        if not sizes:
            folder.rmdir()
        return sizes

    def info(self, sizes: Mapping[str, TableSize], folder: Path) -> Any:
        """Return the ``DatasetInfo``."""
        from datasets import DatasetInfo, SplitDict, SplitInfo

        splits = SplitDict(dataset_name=self.name)
        for split, size in sizes.items():
            splits.add(SplitInfo(split, num_bytes=size.bytes, num_examples=size.rows, dataset_name=self.name))
        return DatasetInfo(
            features=self.columns,
            splits=splits,
            download_size=sum((folder / f"{split}.parquet").stat().st_size for split in sizes),
            dataset_size=sum(size.bytes for size in sizes.values()),
        )

    def config(self, sizes: Iterable[str]) -> dict[str, Any]:
        """Return the entry of the front matter that names the files."""
        files = [{"split": split, "path": f"{self.name}/{split}.parquet"} for split in sizes]
        return {"data_files": files} | ({"default": True} if self.name == "episodes" else {})


def _split(record: Record) -> str:
    return "test" if record["split"] == "eval" else "train"


@dataclass
class _Line:
    """Numbers of the episodes of one environment, policy and split."""

    env_id: str
    policy: str
    split: str
    episodes: int = 0
    scored: int = 0
    returns: float = 0.0
    declared: int = 0
    solved: int = 0
    tokens: bool = False


def _about(records: Iterable[Record]) -> list[_Line]:
    lines: dict[tuple[str, str, str], _Line] = {}
    for record in records:
        key = (record["task"]["env_id"] or "unknown", record["policy"] or "unknown", _split(record))
        line = lines.setdefault(key, _Line(*key))
        line.episodes += 1
        line.tokens = line.tokens or record["completion_ids"] is not None
        if record["return"] is not None:
            line.scored += 1
            line.returns += record["return"]
        if record["success"] is not None:
            line.declared += 1
            line.solved += record["success"]
    return [lines[key] for key in sorted(lines)]


def _text(about: list[_Line], counts: dict[str, dict[str, int]], title: str) -> str:
    """Return the page of a card."""
    lines = [
        f"# {title}",
        "",
        "Episodes of language models and other policies in text environments, recorded with `gym-trl`.",
        "",
        "| configuration | rows | content |",
        "|---|---|---|",
        *(
            f"| `{name}` | {', '.join(f'{rows:,} {split}' for split, rows in splits.items())} | {_ABOUT[name]} |"
            for name, splits in counts.items()
        ),
        "",
        "The split `test` has the episodes of evaluations, whose tasks no training had; `train` has all others.",
        "",
        "| environment | policy | split | episodes | unscored | mean return | success | token ids |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(line) for line in about),
        "",
        "Success is the share of the scored episodes of environments that declare it; unscored episodes are those that "
        "the infrastructure ended, and have no return. Where there are no token ids, none were recorded.",
        "",
    ]
    return "\n".join(lines)


def _row(line: _Line) -> str:
    mean = f"{line.returns / line.scored:.3f}" if line.scored else ""
    solved = f"{line.solved / line.declared:.1%}" if line.declared else ""
    cells: list[Any] = [_cell(line.env_id), _cell(line.policy), line.split, line.episodes, line.episodes - line.scored]
    cells += [mean, solved, "yes" if line.tokens else "no"]
    return f"| {' | '.join(map(str, cells))} |"


def _cell(text: str) -> str:
    """Return text for a cell of a table, without markup, links and images; names may come from files of others.

    >>> _cell("a|b ![c](http://d) <img>")
    'a/b !(c)(http://d) (img>'
    """
    return " ".join(text.translate(_MARKUP).split())[:100]


_MARKUP = str.maketrans({"|": "/", "<": "(", "[": "(", "]": ")", "`": "'"})


def _size(rows: int) -> str:
    """Return the Hub's name of a size.

    >>> _size(999), _size(1_000), _size(2_000_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    names = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B"]
    return names[min(max(len(str(rows)) - 3, 0), len(names) - 1)]

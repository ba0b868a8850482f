"""``gym-trl export``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, check_empty, check_other
from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.leaves import load, offered
from gym_trl.text.textify import counted

EXAMPLES = """
gym-trl export runs/first --to sft --min-return 1 --out sft.jsonl
gym-trl export evals/guess --to preferences --out pairs.jsonl
gym-trl export evals/guess --to parquet --out guess.parquet
gym-trl export evals/guess --to inspect --out logs
gym-trl export evals/guess --to otel --out spans.jsonl
gym-trl export runs/first --to hub --license apache-2.0 --out data/first
gym-trl export runs/first --to model --out models/first
"""


ExportFormat = StrEnum(  # type: ignore[misc]  # the members of other tools are those of the table of leaves
    "ExportFormat",
    [name.upper() for name in ("sft", "preferences", "parquet", *offered("exporters"), "hub", "model")],
)


@clear_errors
def export(
    path: Annotated[Path, Argument(metavar="FILE", help="Folder or file of records, or a run or model.")],
    *,
    to: Annotated[
        ExportFormat,
        Option(
            help="Conversations for SFTTrainer, pairs for DPOTrainer, a table, logs of Inspect, traces of "
            "OpenTelemetry, a folder for the Hugging Face Hub, or a whole model."
        ),
    ],
    out: Annotated[Path, Option(help="Output file, replaced if it exists; for inspect, hub and model a new folder.")],
    min_return: Annotated[float | None, Option(help="sft, hub: omit lower returns. Default: none.")] = None,
    successes: Annotated[bool, Option("--successes", help="sft, hub: omit conversations without success.")] = False,
    min_gap: Annotated[
        float, Option(min=0.0, help="preferences, hub: omit pairs of which the returns do not differ by more.")
    ] = 0.0,
    thinking: Annotated[bool, Option("--thinking", help="All data sets: include thinking, in <think>.")] = False,
    license_: Annotated[
        str | None, Option("--license", help="hub: licence, by its id on the Hub. Default: unknown.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Convert records to data sets or other tools' files.

    An adapter is converted to a model.

    --to sft writes conversations, --to preferences pairs, and --to parquet a table of whole episodes.

    --to hub writes all three and a card to a folder that datasets loads and the Hugging Face Hub shows.

    --to inspect writes a .eval log for each environment, policy, split and training step, for inspect view --log-dir.

    --to otel writes a trace for each episode as OTLP JSON lines, which OpenTelemetry's Collector and tools that show
    traces read. Records have no times of day: those of the spans are estimates.

    --to model merges the adapter of a run with --lora, or of another folder, into its base, and writes a folder with
    whole weights that Transformers and vLLM load.
    """
    allowed = {
        "--min-return": (min_return is not None, ["sft", "hub"]),
        "--successes": (successes, ["sft", "hub"]),
        "--min-gap": (bool(min_gap), ["preferences", "hub"]),
        "--thinking": (thinking, ["sft", "preferences", "hub"]),
        "--license": (license_ is not None, ["hub"]),
    }
    for option, (given, formats) in allowed.items():
        if given and to.value not in formats:
            raise ConfigError(f"{option} requires --to {' or '.join(formats)}, got --to {to.value}")
    rows = _Rows(min_return, successes, min_gap, thinking)
    if to.value == "model":
        _export_model(path, out)
    elif to.value == "hub":
        _export_hub(path, out, license_ or "unknown", rows)
    else:
        check_other(path, out)
        if to.value in offered("exporters"):
            if out.is_dir():
                check_empty(out)
            say(load("exporters", to.value)(path, out))
        else:
            _export_rows(path, out, to.value, rows)


class _Rows(NamedTuple):
    """Options of data sets."""

    min_return: float | None
    successes: bool
    min_gap: float
    thinking: bool


def _export_rows(path: Path, out: Path, to: str, rows: _Rows) -> None:
    from gym_trl.records.export import preference_rows, sft_rows
    from gym_trl.records.files import read_records
    from gym_trl.records.json_lines import write_json_lines
    from gym_trl.records.parquet import write_parquet

    records = read_records(path)
    if to == "parquet":
        count = write_parquet(records, out)
    elif to == "sft":
        conversations = sft_rows(records, min_return=rows.min_return, successes=rows.successes, thinking=rows.thinking)
        count = write_json_lines(conversations, out)
    else:
        count = write_json_lines(preference_rows(records, min_gap=rows.min_gap, thinking=rows.thinking), out)
    say(f"Wrote {counted(count, 'row')} to {out}.")


def _export_hub(path: Path, out: Path, license_: str, rows: _Rows) -> None:
    from gym_trl.records.hub import write_hub_folder

    check_empty(out)
    written = write_hub_folder(path, out, license=license_, **rows._asdict())
    tables = ", ".join(f"{counted(sum(splits.values()), 'row')} of {name}" for name, splits in written.items())
    say(f"Wrote {tables} to {out}; upload it with: hf upload USER/NAME {out} --repo-type dataset")


def _export_model(path: Path, out: Path) -> None:
    from gym_trl.policies.model import find_model
    from gym_trl.policies.weights import save_merged

    model = find_model(str(path))
    check_empty(out)
    save_merged(model, out)
    say(f"Wrote the model to {out}.")

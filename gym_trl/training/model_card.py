"""Card of a trained model, the ``README.md`` beside its weights, which the Hub shows."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_trl.evaluation.levels import LEVELS, levels_of
from gym_trl.options import NO_FLAG
from gym_trl.policies.model import is_hub_id
from gym_trl.policies.weights import Adapter
from gym_trl.records.fields import as_number
from gym_trl.text import counted
from gym_trl.training.progress import evaluation_of

CARD = "README.md"
WARM_START = "warm_start"
"""Key in ``config.json`` of the options of a warm start, beside those of the training that may follow."""


def model_card(
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    *,
    adapter: Adapter | None = None,
    citations: str = "",
) -> str:
    r"""Return the card of the model of a run, in Markdown.

    >>> config = {"options": {"env": "TrlEnv/Echo-v0", "model": "a/b", "env_kwargs": {"turns": 2}}, "versions": {}}
    >>> card = model_card(config, {"success_after": 0.75, "return_after": 0.5, "episodes_after": 64})
    >>> print(next(line for line in card.splitlines() if "after it" in line))
    | after it | 0.750 [0.628, 0.842] | 0.500 | 64 |

    Texts of the run's options are in code spans and blocks, where they are neither links nor HTML. Paths are shortened
    to their names, and keys, passwords and addresses for reports are left out.

    Args:
        config: Content of the run's ``config.json``.
        summary: Content of its ``summary.json``.
        adapter: The adapter that was trained. Default: all weights were.
        citations: Section of Markdown with what to cite; see ``trl_citations``.
    """
    options, demonstrated = config["options"], config.get(WARM_START)
    model, env = options.get("model"), options["env"]
    name = "a tiny model" if model is None else _code(_model_name(model))
    trainer = "GRPOTrainer" if demonstrated is None else "SFTTrainer"
    steps = counted(round(as_number(summary.get("steps")) or 0), "step")
    ended = ", interrupted" if summary.get("interrupted") else ""
    blocks = [
        _front_matter(model if adapter is None else adapter.base, trainer, adapter=adapter is not None),
        f"# {name[0].upper()}{name[1:]} trained on {_code(env)}",
        f"Trained with [TRL](https://github.com/huggingface/trl)'s `{trainer}` on a text environment of "
        f"`gym-trl` for {steps}{ended}.",
        "## Environment",
        "\n".join(_table(("", ""), _environment(options))),
        "## Results",
        *_results(summary),
        "## Training",
        *_command(options, demonstrated),
        "\n".join(
            _table(("package", "version"), ((_code(key), _code(one)) for key, one in config["versions"].items()))
        ),
        *([citations] if citations else []),
    ]
    return "\n\n".join(blocks) + "\n"


def trl_citations(trainer: Any) -> str:
    """Return the section on citations of TRL's own card of a model; empty if it cannot be made, such as offline."""
    usual = trainer.args.output_dir
    with TemporaryDirectory(prefix="gym-trl-") as folder:
        trainer.args.output_dir = folder
        try:
            trainer.create_model_card()
            text = Path(folder, CARD).read_text(encoding="utf-8")
        except Exception:  # of any type: it asks trackers of experiments, and its template is TRL's
            return ""
        finally:
            trainer.args.output_dir = usual
    _, heading, section = text.rpartition("\n## Citations\n")  # the last one, because names of models come before
    return f"{heading}{section}".strip()


def _front_matter(base: str | None, trainer: str, *, adapter: bool) -> str:
    fields: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gym-trl", "gymnasium", "reinforcement-learning", "trl", trainer.removesuffix("Trainer").lower()],
    }
    if base is not None and is_hub_id(base):
        fields["base_model"] = base
    lines = (f"{name}: {json.dumps(value)}" for name, value in fields.items())  # JSON is YAML
    return "\n".join(["---", *lines, "---"])


def _environment(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    given = _published(options.get("env_kwargs") or {})
    yield "environment", _code(options["env"])
    yield "arguments", ", ".join(_code(f"{name}={value!r}") for name, value in given.items()) or "the defaults"
    if options.get("success") is not None:
        yield "success", _code(_published(options["success"]))


def _results(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of scores, and a sentence on them."""
    levels = levels_of(summary)
    if not levels:
        yield "Not evaluated: `gym-trl eval` does it."
        return
    declared = any(one.success.mean is not None for one in levels.values())
    head = ("", *(["success [95% interval]"] if declared else []), "mean return", "episodes")
    rows = [
        (LEVELS[when], *([str(one.success)] if declared else []), _number(one.mean_return), one.size)
        for when, one in levels.items()
    ]
    yield "\n".join(_table(head, rows))
    counts = {name: value for name, value in summary.items() if type(value) is int}
    played = f"{evaluation_of(counts)}. " if "eval_episodes" in counts else ""
    yield f"{played}A blind baseline is the best score without looking at observations.{'' if declared else _RETURNS}"


_RETURNS = " The environment declares no success, so there are returns only."


def _command(options: Mapping[str, Any], demonstrated: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the command of the training, and its options."""
    named = {name: _published(value) for name, value in options.items() if name not in NO_FLAG}
    grpo = options.get("grpo") or {}
    named["grpo"] = {name: _published(grpo[name]) for name in grpo if not _PLACES.search(name)}
    named["model"] = None if options.get("model") is None else _model_name(options["model"])
    command = ["gym-trl", "train", "--config", "options.json"]
    if demonstrated is not None:
        command = ["gym-trl", "warm-start", str(_published(options["env"]))]
        given = {"model": named["model"], **{name: _published(value) for name, value in demonstrated.items()}}
        for name, value in given.items():
            command += [] if value is None else [f"--{name}", str(value)]
    yield _block("console", f"$ {shlex.join(_line(word) for word in command)}")
    yield ("`options.json` has these options:" if demonstrated is None else "The options of a training after it:")
    yield _block("json", json.dumps(named, indent=2, default=str))


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else f"{value:{form}}"


def _table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


# Texts of others


def _line(text: object) -> str:
    """Return a text in one line, without characters that have no picture of their own."""
    return " ".join("".join(one if one.isprintable() else " " for one in str(text)).split())


def _code(text: object) -> str:
    """Return a text as a code span, which has neither links nor HTML, for a cell of a table as well.

    >>> print(_code("a|b [c](http://d)" + chr(10) + "# <img> `x`"))
    `a/b [c](http://d) # <img> 'x'`
    """
    return f"`{_line(_published(text)).translate(_MARKS)[:200] or ' '}`"


_MARKS = str.maketrans({"`": "'", "|": "/"})


def _block(language: str, text: str) -> str:
    """Return a code block; no line of the text is only backticks."""
    return f"```{language}\n{text}\n```"


def _model_name(model: str) -> str:
    """Return the name of a model: its hub id, or the name of its folder, that of the run for the model of a run.

    >>> _model_name("/home/me/models/small"), _model_name("runs/first/model"), _model_name("Qwen/Qwen3-0.6B")
    ('small', 'first', 'Qwen/Qwen3-0.6B')
    """
    if is_hub_id(model):
        return model
    path = Path(model)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def _published(value: Any) -> Any:
    """Return a value of an option without folders of this machine, keys and passwords.

    >>> _published({"files": ["/data/me/a.txt", "python ~/games/b.py"], "url": "http://me:pw@c/d", "api_key": "sk-1"})
    {'files': ['a.txt', 'python b.py'], 'url': 'http://***@c/d', 'api_key': '***'}
    """
    if isinstance(value, Mapping):
        return {
            str(_published(str(name))): "***" if isinstance(one, str) and _KEY.search(str(name)) else _published(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_published(one) for one in value]
    if not isinstance(value, str):
        return value
    with suppress(OSError, ValueError, RuntimeError):  # of a text that is no path
        if "/" in value and Path(value).expanduser().exists():  # perhaps with spaces
            return Path(value).name or value
    return _CREDENTIALS.sub("***@", _FOLDERS.sub("", value.replace("file://", "")))


_KEY = re.compile(r"(api_?key|token|password|secret)$", re.IGNORECASE)
_PLACES = re.compile(r"hub|server|url|host|port|dir|path|space")
"""Fields of ``GRPOConfig`` that name places of this machine or its network."""
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+@")
_FOLDERS = re.compile(r"(?<![\w:/.~-])(?:~|\.{1,2})?/(?:[^\s/\"']+/)+|\b[A-Za-z]:\\(?:[^\s\\\"']+\\)+")
"""Folders of a path that is absolute or relative to a working directory; not those of an address."""

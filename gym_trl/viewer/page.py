"""Single-file HTML page, assembled from its parts and the run's episodes in compressed chunks."""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, Final

from gym_trl.errors import ConfigError
from gym_trl.records import replaced
from gym_trl.types import StopReason
from gym_trl.viewer.run import Run

_CHUNK_EPISODES: Final = 128
_CHUNK_BYTES: Final = 1_000_000
_POLICY: Final = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def write_page(run: Path, out: Path, *, tokenizer: Path | None = None, refresh: int | None = None) -> dict[str, int]:
    r"""Write the page of the run at ``run`` to ``out``, and return counts of its content.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0}\n')
    ...     write_page(path, Path(folder, "run.html"))["episodes"]
    1

    The content of episodes is embedded as base64 of compressed JSON, and the page's script inserts it as text, so it
    cannot inject HTML.

    Args:
        run: Folder of a run, or a file of its episodes.
        out: Path of the page, which is replaced as a whole.
        tokenizer: Path of the tokenizer for the ids. Default: the run's own.
        refresh: Seconds after which an open page reads the file again.

    Raises:
        ConfigError: The run does not exist, or no line of the file is a record of an episode.
        OSError: The file cannot be written.
    """
    read = Run(run, tokenizer=tokenizer)
    if out.exists() and out.samefile(run):
        raise ConfigError(f"{out} has the records that are read; name another file")
    with replaced(out) as file:
        before, after = _frame(f"{read.about()['name']} · gym-trl", refresh)
        file.write(before)
        chunks = _write_chunks(file, read)
        index = {"about": read.about(), "columns": read.columns, "metrics": read.metrics, "chunks": chunks}
        _write_data(file, "index", _json(index))
        file.write(after)
        size = file.tell()
        if not len(read) and (read.broken or run.is_file()):
            raise ConfigError(f"{run} has no episodes: none of its {len(read.broken)} lines is a record")
    return {"episodes": len(read), "chunks": len(chunks), "broken": len(read.broken), "bytes": size}


def policy() -> str:
    """Return the content security policy: only the page's own script, and no requests."""
    script, style = (_digest(_part(name)) for name in ("page.js", "page.css"))
    return _POLICY.format(script=script, style=style)


def _frame(title: str, refresh: int | None) -> tuple[bytes, bytes]:
    parts = {
        "refresh": f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else "",
        "policy": html.escape(policy()),
        "title": html.escape(title),
        "style": _part("page.css"),
        "script": _part("page.js"),
    }
    before, after = (
        re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], half) for half in _part("page.html").split("[[data]]")
    )
    return before.encode("utf-8", "replace"), after.encode("utf-8", "replace")


@cache
def _part(name: str) -> str:
    text = files("gym_trl.viewer").joinpath(name).read_text(encoding="utf-8")
    return text.replace('["STOP_REASONS"]', json.dumps(list(StopReason)))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write_chunks(file: BinaryIO, run: Run) -> list[int]:
    """Write the episodes in chunks, separately from their tokens, and return the first episode of each chunk."""
    firsts: list[int] = []
    for first, chunk in _chunks(run.read()):
        # A search reads the messages of all episodes, but not the tokens.
        for kind, parts in zip(("chunk", "tokens"), zip(*chunk, strict=True), strict=True):
            _write_data(file, f"{kind}-{len(firsts)}", b"[" + b",".join(parts) + b"]")
        firsts.append(first)
    return firsts


def _chunks(bodies: Iterator[dict[str, Any]]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    first, chunk, size = 0, [], 0
    for said in bodies:
        tokens = said.pop("tokens")
        chunk.append((_json(said), _json(tokens)))
        size += sum(map(len, chunk[-1]))
        if len(chunk) == _CHUNK_EPISODES or size > _CHUNK_BYTES:
            yield first, chunk
            first, chunk, size = first + len(chunk), [], 0
    if chunk:
        yield first, chunk


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _write_data(file: BinaryIO, name: str, content: bytes) -> None:
    packed = base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0))
    file.write(b'<script type="application/gzip" id="%s">%s</script>\n' % (name.encode(), packed))

"""Conversion of spaces with any number of parts to text and back: sequences, graphs, and one of several spaces."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from gym_trl.text.action_description import example, of_space
from gym_trl.text.textify import each, field, from_plain, inside, item, jsonable, render, whole


@render.register
def _(space: spaces.Sequence, value: Any, names: Sequence[str] = ()) -> str:
    return "\n".join(item(render(space.feature_space, part)) for part in _parts(space, value)) or "(none)"


@render.register
def _(space: spaces.Graph, value: Any, names: Sequence[str] = ()) -> str:
    nodes = _unstacked(space.node_space, value.nodes)
    lines = [field(f"node {place}", render(space.node_space, node)) for place, node in enumerate(nodes)]
    links = [] if value.edge_links is None else [f"edge {int(start)} to {int(end)}" for start, end in value.edge_links]
    if space.edge_space is not None and value.edges is not None:
        edges = _unstacked(space.edge_space, value.edges)
        links = [field(link, render(space.edge_space, edge)) for link, edge in zip(links, edges, strict=True)]
    return "\n".join([*lines, *links]) or "(none)"


@render.register(spaces.OneOf)
def _(space: Any, value: Any, names: Sequence[str] = ()) -> str:
    chosen = int(value[0])
    name = names[chosen] if chosen < len(names) else f"kind {chosen}"
    return field(name, render(space.spaces[chosen], value[1]))


@jsonable.register
def _(space: spaces.Sequence, action: Any) -> Any:
    return [jsonable(space.feature_space, part) for part in _parts(space, action)]


@jsonable.register
def _(space: spaces.Graph, action: Any) -> Any:
    nodes = [jsonable(space.node_space, node) for node in _unstacked(space.node_space, action.nodes)]
    if space.edge_space is None or action.edges is None:
        return {"nodes": nodes, "edges": None, "edge_links": None}
    edges = [jsonable(space.edge_space, edge) for edge in _unstacked(space.edge_space, action.edges)]
    return {"nodes": nodes, "edges": edges, "edge_links": np.asarray(action.edge_links).tolist()}


@jsonable.register(spaces.OneOf)
def _(space: Any, action: Any) -> Any:
    return [int(action[0]), jsonable(space.spaces[int(action[0])], action[1])]


@from_plain.register
def _(space: spaces.Sequence, plain: Any, names: Sequence[str] = ()) -> Any:
    if not isinstance(plain, list):
        raise ValueError(plain)
    parts = tuple(from_plain(space.feature_space, part) for part in plain)
    return _stacked(space.feature_space, parts) if space.stack else parts


@from_plain.register
def _(space: spaces.Graph, plain: Any, names: Sequence[str] = ()) -> Any:
    nodes = _stacked(space.node_space, [from_plain(space.node_space, node) for node in _list(plain["nodes"])])
    edges = links = None
    if space.edge_space is not None and plain.get("edges") is not None:
        parts = [from_plain(space.edge_space, edge) for edge in _list(plain["edges"])]
        edges = _stacked(space.edge_space, parts)
        links = np.asarray(each(whole, plain["edge_links"]), dtype=np.int32).reshape(len(parts), 2)
    return inside(space, spaces.GraphInstance(nodes=nodes, edges=edges, edge_links=links))


@from_plain.register(spaces.OneOf)
def _(space: Any, plain: Any, names: Sequence[str] = ()) -> Any:
    if not isinstance(plain, list) or len(plain) != 2:
        raise ValueError(plain)
    chosen = whole(plain[0])
    if not 0 <= chosen < len(space.spaces):
        raise ValueError(plain)
    return np.int64(chosen), from_plain(space.spaces[chosen], plain[1])


@of_space.register
def _(space: spaces.Sequence) -> Any:
    return [example(space.feature_space)]


@of_space.register
def _(space: spaces.Graph) -> Any:
    return {"nodes": [example(space.node_space)], "edges": [], "edge_links": []}


@of_space.register(spaces.OneOf)
def _(space: Any) -> Any:
    return [0, example(space.spaces[0])]


def _parts(space: spaces.Sequence, value: Any) -> Sequence[Any]:
    return _unstacked(space.feature_space, value) if space.stack else value


def _unstacked(space: spaces.Space[Any], stacked: Any) -> Sequence[Any]:
    """Return the values that Gymnasium's ``concatenate`` has stacked: a Dict of arrays becomes a list of Dicts."""
    return [_row(space, stacked, place) for place in range(_rows(space, stacked) or 0)]


def _rows(space: spaces.Space[Any], stacked: Any) -> int | None:
    """Return the number of stacked values, or None if the space has no elements to count."""
    if isinstance(space, spaces.Dict):
        counts = [_rows(inner, stacked[name]) for name, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        counts = list(map(_rows, space.spaces, stacked))
    else:
        return len(stacked)
    return next((count for count in counts if count is not None), None)


def _row(space: spaces.Space[Any], stacked: Any, place: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _row(inner, stacked[name], place) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(inner, part, place) for inner, part in zip(space.spaces, stacked, strict=True))
    return stacked[place]


def _stacked(space: spaces.Space[Any], parts: Sequence[Any]) -> Any:
    empty: Any = create_empty_array(space, len(parts))
    return concatenate(space, parts, empty) if parts else empty


def _list(plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise ValueError(plain)
    return plain

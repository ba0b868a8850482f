"""Text space that, unlike Gymnasium's ``Text``, contains any Unicode up to a maximum length."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils as space_functions
from gymnasium.vector.utils import shared_memory as vector_memory, space_utils as vector_spaces
from gymnasium.wrappers.utils import create_zero_array

from gym_trl.errors import ConfigError, NotTextError, check_counts, raise_interrupt

MAX_LENGTH = 65_536
"""Default maximum number of characters in an observation or an action."""

_SAMPLE_LENGTH = 16
_PRINTABLE = 0x20, 0x7F
# UTF-8 needs at most this many bytes per character, so every text of a space fits its slot.
_BYTES_PER_CHARACTER = 4
_SHARED_BYTES_LIMIT = 2**32

_NOT_TEXT = (
    spaces.Box,
    spaces.Dict,
    spaces.Discrete,
    spaces.Graph,
    spaces.MultiBinary,
    spaces.MultiDiscrete,
    spaces.OneOf,
    spaces.Sequence,
    spaces.Tuple,
)


class AnyText(spaces.Space[str]):
    r"""Space of all Unicode strings of at most ``max_length`` characters, lone surrogates and NUL included.

    >>> space = AnyText(max_length=5)
    >>> "¡olé!" in space, "" in space, "too long" in space, 5 in space
    (True, True, False, False)
    >>> space
    AnyText(max_length=5)

    Samples are short texts of printable ASCII characters; they are not uniform.

    In an asynchronous vector environment with shared memory, each environment has a slot of four bytes per character of
    ``max_length``: 256 KiB by default.

    Raises:
        ConfigError: ``max_length`` is not a positive integer.
    """

    def __init__(self, max_length: int = MAX_LENGTH, *, seed: int | np.random.Generator | None = None) -> None:
        check_counts(max_length=max_length)
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Return False: a text is no array."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Sample a text of at most 16 printable ASCII characters.

        >>> AnyText(seed=0).sample().isprintable()
        True

        Raises:
            ConfigError: a mask or probabilities were given, which need a finite alphabet.
        """
        if mask is not None or probability is not None:
            raise ConfigError("AnyText cannot sample under a mask or probabilities: it has no finite alphabet")
        rng = self.np_random
        length = rng.integers(min(self.max_length, _SAMPLE_LENGTH) + 1)
        return "".join(map(chr, rng.integers(*_PRINTABLE, size=length)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((AnyText, self.max_length))

    def __repr__(self) -> str:
        return f"AnyText(max_length={self.max_length})"


def holds_text(space: spaces.Space[Any]) -> bool:
    """Return whether the elements of ``space`` can be strings.

    >>> holds_text(AnyText()), holds_text(spaces.Discrete(4))
    (True, False)

    A space that is not one of Gymnasium's is assumed to be a text space, because many projects define their own.

    Raises:
        NotTextError: It is no ``gymnasium.Space``, such as a type or a space of the old Gym.
    """
    if not isinstance(space, spaces.Space):
        raise NotTextError(f"a space must be a gymnasium.Space, got {space!r:.80}")
    return not isinstance(space, _NOT_TEXT)


def sample_allowed(space: spaces.Space[Any], mask: Any | None = None) -> Any:
    """Return a sample that a mask allows, whatever numbers or truth values the mask is made of.

    >>> int(sample_allowed(spaces.Discrete(3, start=5), np.array([False, False, True])))
    7
    >>> sample_allowed(spaces.MultiDiscrete([2, 2]), [[0, 1], [1, 0]]).tolist(), sample_allowed(spaces.Discrete(1), "?")
    ([1, 0], np.int64(0))

    ``Space.sample`` takes arrays of ``int8`` only, and many environments have masks of another type. A mask of another
    shape is ignored.
    """
    try:
        return space.sample(_as_mask(space, mask))
    except (AssertionError, IndexError, KeyError, TypeError, ValueError):
        return space.sample()


def _as_mask(space: spaces.Space[Any], mask: Any) -> Any:
    """Return a mask in the form that ``Space.sample`` takes."""
    if mask is None or isinstance(space, spaces.MultiBinary):
        return mask if mask is None else np.asarray(mask, np.int8)
    if isinstance(space, spaces.Discrete):
        return (np.asarray(mask) != 0).astype(np.int8)
    if isinstance(space, spaces.Dict):
        return {name: _as_mask(inner, mask[name]) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_mask(inner, part) for inner, part in zip(space.spaces, mask, strict=True))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        if np.size(mask[0]) == 1:  # all in one row
            mask = np.split(np.asarray(mask), np.cumsum(space.nvec)[:-1])
        return tuple((np.asarray(part) != 0).astype(np.int8) for part in mask)
    return mask


def holds(space: spaces.Space[Any], value: Any) -> bool:
    """Return whether a space holds a value, apart from texts, the precision of numbers and the type of arrays.

    >>> box = spaces.Box(-1, 1, (2,), np.float32)
    >>> holds(box, [0.5, 1.0]), holds(box, np.array([0.5, 1.5])), holds(spaces.Dict(place=box), {"place": None})
    (True, False, False)
    >>> pixels = spaces.Box(0, 255, (2,), np.uint8)
    >>> holds(pixels, [0, 255]), holds(pixels, [0, 256]), holds(pixels, [0.5, 1.0])
    (True, False, False)

    Texts are not compared, because hardly any environment declares the lengths and characters of its texts as they are.
    """
    try:
        while isinstance(space, spaces.OneOf):
            space, value = space.spaces[int(value[0])], value[1]
        if isinstance(space, spaces.Sequence):  # Gymnasium fails to look into some stacked ones
            return space.stack or (isinstance(value, tuple) and all(holds(space.feature_space, one) for one in value))
        if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            return _holds_array(space, np.asarray(value))
        if isinstance(space, spaces.Dict):
            return value.keys() == space.spaces.keys() and all(holds(space[name], value[name]) for name in value)
        if isinstance(space, spaces.Tuple):
            return len(value) == len(space) and all(map(holds, space.spaces, value))
        return holds_text(space) or bool(space.contains(value))
    except BaseException as error:  # of a value, or of another project's space
        raise_interrupt(error)
        return False


def _holds_array(space: spaces.Space[Any], array: np.ndarray[Any, Any]) -> bool:
    whole = np.issubdtype(space.dtype, np.integer)
    if not (array.dtype.kind in "iub" if whole else np.can_cast(array.dtype, space.dtype, "same_kind")):
        return False
    converted = array.astype(space.dtype)
    return bool(space.contains(converted)) and not (whole and (converted != array).any())  # as bytes, 256 becomes 0


class SharedValues(Sequence[Any]):
    """View of the values in shared memory, which are read on access.

    Gymnasium reads the shared memory once, when the vector environment is made, and copies the result after every step.
    Arrays are views of the memory, but strings are not. This class is a view, and its copy is a tuple of values.
    """

    def __init__(self, read: Callable[[], tuple[Any, ...]]) -> None:
        self._read = read

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return deepcopy(self._read(), memo)

    def __repr__(self) -> str:
        return f"SharedValues{self._read()}"


@vector_memory.create_shared_memory.register(AnyText)
def _create_shared_texts(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> tuple[Any, Any]:
    size = n * space.max_length * _BYTES_PER_CHARACTER
    if size > _SHARED_BYTES_LIMIT:
        raise ConfigError(
            f"{n} texts of up to {space.max_length} characters need {size} bytes of shared memory; "
            "use a smaller max_length or pass shared_memory=False"
        )
    # Without locks: Gymnasium's pipes order the accesses.
    return ctx.RawArray("q", n), ctx.RawArray("B", size)


@vector_memory.read_from_shared_memory.register(AnyText)
def _read_shared_texts(space: AnyText, shared_memory: tuple[Any, Any], n: int = 1) -> SharedValues:
    lengths, data = shared_memory
    slot, view = len(data) // n, memoryview(data).cast("B")

    def read() -> tuple[str, ...]:
        slots = zip(range(0, len(data), slot), lengths, strict=True)
        return tuple(bytes(view[start : start + length]).decode("utf-8", "surrogatepass") for start, length in slots)

    return SharedValues(read)


@vector_memory.write_to_shared_memory.register(AnyText)
def _write_shared_text(space: AnyText, index: int, value: str, shared_memory: tuple[Any, Any]) -> None:
    lengths, data = shared_memory
    # The buffer defines the slots, not the space: with observation_mode="different", spaces differ in length.
    slot, encoded = len(data) // len(lengths), value.encode("utf-8", "surrogatepass")
    if len(encoded) > slot:
        raise ConfigError(
            f"an observation of {len(value)} characters does not fit its environment's {slot} bytes of shared memory; "
            "give its space a larger max_length or pass shared_memory=False"
        )
    memoryview(data).cast("B")[index * slot : index * slot + len(encoded)] = encoded
    lengths[index] = len(encoded)


def _read_after_every_step(kind: type[spaces.Space[Any]]) -> None:
    """Mend Gymnasium's reader for a class of spaces, which returns no view but the values before the first reset."""
    read = vector_memory.read_from_shared_memory.dispatch(kind)

    def read_on_access(space: spaces.Space[Any], shared_memory: Any, n: int = 1) -> Any:
        return SharedValues(lambda: tuple(read(space, shared_memory, n)))

    vector_memory.read_from_shared_memory.register(kind, read_on_access)


_read_after_every_step(spaces.Text)
_read_after_every_step(spaces.OneOf)


@vector_spaces.create_empty_array.register(AnyText)
def _create_empty_texts(space: AnyText, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    return ("",) * n


@vector_spaces.batch_differing_spaces.register(AnyText)
def _batch_differing_texts(texts: Any) -> spaces.Space[Any]:  # type: ignore[misc]  # dispatched by hand, on an element
    return spaces.Tuple([deepcopy(space) for space in texts], seed=deepcopy(texts[0].np_random))


@space_functions.is_space_dtype_shape_equiv.register(AnyText)
def _is_text_equivalent(space_1: AnyText, space_2: spaces.Space[Any]) -> bool:
    return isinstance(space_2, AnyText)


@create_zero_array.register(AnyText)
def _create_no_text(space: AnyText) -> str:  # type: ignore[misc]  # Gymnasium's type variable is not AnyText's
    return ""

"""Reads the variables of a dataset together, when xarray loads all of them.

xarray loads one variable after the other, and tells no array that others follow. So an array that is asked for its
items looks for ``Dataset.load`` among its callers. If it finds that call, it makes the other variables of the dataset
ask for their items as well, and delays their answers; one `read_many` reads everything; then each variable gets its
answer.
If xarray loads variables in other ways, each variable is read separately.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import xarray as xr
from xarray.core import indexing

from b2array import threads
from b2array.array.array import NDArray
from b2array.array.many import read_many
from b2array.errors import B2ArrayError

__all__ = ["MOST_NBYTES", "open_together", "read"]

T = TypeVar("T")
R = TypeVar("R")

MOST_NBYTES = 2**28
"""The maximum size, in bytes, of variables read together: all are in memory before the first one is decoded."""

_OPENED_AT_ONCE = 16
"""The number of remote members to open at a time. Each waits for a request, and hardly computes."""
_LOADS_VARIABLE = xr.Variable.load.__code__
_LOADS_DATASET = xr.Dataset.load.__code__
_LOADS_TREE = xr.DataTree.load.__code__


class Lazy(Protocol):
    """An array of xarray's that is read lazily."""

    @property
    def handle(self) -> NDArray:
        """The array; it may be opened now."""


class _Question(NamedTuple):
    """The items that a variable requests."""

    lazy: Lazy
    key: indexing.ExplicitIndexer

    def is_same(self, other: _Question) -> bool:
        return self.lazy is other.lazy and self.key.tuple == other.key.tuple


class _AskedError(Exception):
    """Carries a question through xarray's code to the caller that collects questions."""

    def __init__(self, question: _Question) -> None:
        super().__init__(question)
        self.question = question


class _State(threading.local):
    """Records whether this thread collects questions, or the answer for the variable that is being loaded."""

    collecting = False
    answered: tuple[_Question, Any] | None = None


_state = _State()


def read(lazy: Lazy, key: indexing.ExplicitIndexer) -> Any:
    """Return items of an array. If xarray is loading a dataset, load more of its variables in the same step."""
    question = _Question(lazy, key)
    if _state.collecting:
        raise _AskedError(question)
    # `read_many` takes plain keys only.
    if not isinstance(key, indexing.BasicIndexer):
        return _read_alone(question)
    if _state.answered is not None:
        asked, answer = _state.answered
        return answer if question.is_same(asked) else _read_alone(question)
    return _read_with_others(question)


def open_together(arrays: Sequence[NDArray]) -> None:
    """Open remote members with one wave of requests, before xarray reads one after the other.

    An error does not matter here: xarray meets the error again if it reads the array.
    """
    _at_once(_try_to_open, arrays)


def _at_once(task: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a task that opens a member for each item, several at a time; return the results in order."""
    return list(threads.ahead(task, items, min(len(items), _OPENED_AT_ONCE)))


def _try_to_open(array: NDArray) -> None:
    # A ValueError says that a transaction of the array is under way.
    with suppress(B2ArrayError, OSError, ValueError):
        array._handle.pinned()


def _read_alone(question: _Question) -> Any:
    array, key = question.lazy.handle, question.key
    if isinstance(key, indexing.VectorizedIndexer):
        return np.asarray(array.vindex[key.tuple])
    if isinstance(key, indexing.OuterIndexer):
        return np.asarray(array.oindex[key.tuple])
    return np.asarray(array[key.tuple])


def _read_with_others(question: _Question) -> Any:
    others = _list_others_to_load()
    if not others:
        return _read_alone(question)
    # Members of a remote group are opened only now; each open waits for requests.
    questions = [question, *(other for _, other in others)]
    arrays = _at_once(_open, questions)
    selections = []
    for array, each in zip(arrays, questions, strict=True):
        # `read_many` takes plain selections only. Variables with another one load themselves later.
        if isinstance(each.key, indexing.BasicIndexer):
            selections.append((array, each.key.tuple))
    own_answer, *answers = read_many(selections)
    plain_others = [pair for pair in others if isinstance(pair[1].key, indexing.BasicIndexer)]
    try:
        for (variable, other), answer in zip(plain_others, answers, strict=True):
            _state.answered = other, np.asarray(answer)
            variable.load()
    finally:
        _state.answered = None
    return np.asarray(own_answer)


def _open(question: _Question) -> NDArray:
    return question.lazy.handle


def _list_others_to_load() -> list[tuple[xr.Variable, _Question]]:
    """Return the variables that xarray will load after the present one, and the items that they request."""
    present, variables = _find_load_under_way()
    others: list[tuple[xr.Variable, _Question]] = []
    if present is None:
        return others
    seen = {id(present)}
    nbytes = present.nbytes
    for variable in variables:
        # dask loads its variables itself, in its own threads.
        if id(variable) in seen or variable.chunks is not None:
            continue
        seen.add(id(variable))
        question = _ask(variable)
        if question is None:
            continue
        nbytes += variable.nbytes
        # The next array that xarray asks starts over with the remaining variables.
        if nbytes > MOST_NBYTES:
            break
        others.append((variable, question))
    return others


def _find_load_under_way() -> tuple[xr.Variable | None, Iterator[xr.Variable]]:
    """Return the variable that xarray is loading, and all variables of its dataset or tree."""
    present: xr.Variable | None = None
    frame = inspect.currentframe()
    try:
        while frame is not None:
            code: CodeType = frame.f_code
            if code is _LOADS_VARIABLE and present is None:
                present = frame.f_locals["self"]
            elif code is _LOADS_DATASET:
                return present, iter(frame.f_locals["self"].variables.values())
            elif code is _LOADS_TREE:
                nodes = frame.f_locals["self"].subtree
                return present, (variable for node in nodes for variable in node.variables.values())
            frame = frame.f_back
    finally:
        del frame  # it refers to this call, and so to itself
    return None, iter(())


def _ask(variable: xr.Variable) -> _Question | None:
    """Return the array and the key that a variable will read, or None if it reads no array of ours."""
    _state.collecting = True
    try:
        variable.load()
    except _AskedError as asked:
        return asked.question
    finally:
        _state.collecting = False
    return None  # it is in memory, or another library's

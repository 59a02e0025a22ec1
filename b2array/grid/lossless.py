"""Values that are added to an array, for example by `append`: converted to the array's type without loss, or refused.

Assignment is different: it casts as NumPy does (see `b2array.grid.assignment`). NumPy also cuts text, and lets integers
and times wrap, where the types are "of the same kind". That suits an assignment, whose author sees the array. Here,
every value is kept, except that floats are rounded to the precision of the array.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array.grid.assignment import check_plain
from b2array.grid.partition import boxes
from b2array.grid.text_items import as_text, refuse_missing

__all__ = ["lossless", "require_same_kind", "require_same_order"]

Array = npt.NDArray[Any]

WIDER = 'a.astype("{wider}") holds it'
"""The advice for values that do not fit the items of an array `a`."""

_PIECE = 2**18
"""The number of items to compare at a time."""
_PYTHON = (list, tuple, bool, int, float, complex, str, bytes)


def lossless(
    values: Any,
    dtype: np.dtype[Any],
    advice: str = WIDER,
) -> Array:
    """Return values as an array that can be cast to `dtype` without loss; raise an error if no such array exists.

    The fields of records go by name. Floats may be rounded, but finite numbers remain finite.

    Parameters
    ----------
    values : array-like
        The values; Python's objects are converted as `numpy.asarray` does.
    dtype : numpy.dtype
        The type of the array to which they are added.
    advice : str
        The last part of error messages: what users can do. It may contain ``{wider}``, a type for all items, and
        ``{dtype}``.

    Returns
    -------
    numpy.ndarray
        The values. The type may still differ from `dtype`, so that large arrays need not be copied.

    Raises
    ------
    TypeError
        The type of the values does not cast to `dtype` as "same_kind", or records have other fields. Some items are
        masked.
    OverflowError
        A number is out of the range of `dtype`.
    ValueError
        A text is too long, or a time or duration is no multiple of the unit.

    Examples
    --------
    >>> lossless([1, 2], np.dtype("u1"))
    array([1, 2])
    >>> lossless(["long"], np.dtype("U2"))
    Traceback (most recent call last):
    ValueError: 'long' does not fit items of type <U2; a.astype("<U4") holds it
    """
    check_plain(values)
    if dtype.kind == "T":
        return _as_text(values, dtype)
    if isinstance(values, _PYTHON):
        return _of_objects(values, dtype, advice)
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "O":
        return _of_objects(array.tolist(), dtype, advice)
    if dtype.names is not None:
        return _by_name(array, dtype, advice)
    require_same_kind(array.dtype, dtype)
    _require_fit(array, dtype, advice)
    return array


def _as_text(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return values for an array of text of any length; objects must be text, or missing where items can be."""
    array = np.asarray(values)
    if isinstance(values, _PYTHON) and array.dtype.kind in "SU":
        # As text of one size, NaN would be the text "nan", and the end of a text with NUL would be lost.
        array = np.asarray(values, object)
    if array.dtype.kind == "O":
        array = as_text(array)
    refuse_missing(array, dtype)
    require_same_kind(array.dtype, dtype)
    return array


def require_same_kind(old: np.dtype[Any], new: np.dtype[Any]) -> None:
    """Raise TypeError unless items cast to another type as "same_kind"; records need the same names of fields."""
    if old.names is not None and new.names is not None:
        if {*old.names} != {*new.names}:
            raise TypeError(f"expected records with the fields {new.names}, found {old.names}")
        for name in new.names:
            require_same_kind(old[name], new[name])
    elif not np.can_cast(old, new, "same_kind"):
        raise TypeError(f"Cannot cast array data from {old!r} to {new!r} according to the rule 'same_kind'")


def require_same_order(old: np.dtype[Any], new: np.dtype[Any]) -> None:
    """Raise TypeError if records of two types have the same names of fields in another order.

    NumPy converts records by position, which is right for new names. But equal names would change places.
    """
    if old.names is None or new.names is None:
        return
    if old.names != new.names and {*old.names} == {*new.names}:
        raise TypeError(
            f"expected records with the fields in the order {new.names}, found {old.names}: NumPy would convert them "
            f"by position, so bring them into order first, as items[{[*new.names]}] does"
        )
    for one, other in zip(old.names, new.names, strict=False):
        inner, _ = _parts(old[one])
        wanted, _ = _parts(new[other])
        require_same_order(inner, wanted)


def _by_name(
    array: Array,
    dtype: np.dtype[Any],
    advice: str,
) -> Array:
    """Convert records, each field by its name."""
    # NumPy would cast by position, so that latitudes could become longitudes.
    require_same_kind(array.dtype, dtype)
    result = np.zeros(array.shape, dtype)
    for name in dtype.names or ():
        base, inner = _parts(dtype[name])
        items = array[name]
        if items.shape != array.shape + inner:
            found = items.shape[array.ndim :]
            raise TypeError(f"expected items of shape {inner} in the field {name!r}, found {found}")
        result[name] = lossless(items, base, advice)
    return result


def _parts(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type of the items of a field, and the shape of the arrays that it consists of."""
    return dtype.subdtype or (dtype, ())


# Python's objects.


def _of_objects(
    values: Any,
    dtype: np.dtype[Any],
    advice: str,
) -> Array:
    """Convert lists and other objects of Python."""
    if dtype.names is not None:
        if any(_leaves_with_names(values)):
            return _by_name(np.asarray(values), dtype, advice)
        return _of_tuples(values, dtype, advice)
    with warnings.catch_warnings():
        # A number that becomes infinite raises an error below.
        warnings.filterwarnings("ignore", "overflow", RuntimeWarning)
        wide = _widest(values, dtype)
        if wide is None or not wide.size:
            return np.asarray(values, dtype)
        kind = wide.dtype.kind
        if dtype.kind in "biu":
            # NumPy would cut Python's floats. Python's integers may become any integers that hold them.
            both_integers = kind in "iu" and dtype.kind in "iu"
            if not both_integers and kind != "b":
                np.asarray(values, dtype)  # raises the error of NumPy if there is one
                require_same_kind(wide.dtype, dtype)
        elif kind in "biufc":
            require_same_kind(wide.dtype, dtype)
        _require_fit(wide, dtype, advice)
        # NumPy converts objects more exactly than numbers of a common type.
        return wide if dtype.kind in "biu" else np.asarray(values, dtype)


def _times_of_text(texts: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return texts as times in the finest unit that one of them has; None for durations, whose texts have no unit."""
    if dtype.kind == "m":
        return None
    # NaT has no unit.
    times = [text for text in texts.ravel().tolist() if text.lower() not in ("", "nat")]
    units = [np.datetime64(time).dtype for time in times]
    if not units:
        return texts.astype(dtype)
    finest = np.result_type(*units)
    return texts.astype(finest)


def _widest(values: Any, dtype: np.dtype[Any]) -> Array | None:
    """Return objects as items of a type that loses nothing; None if conversion to `dtype` loses nothing either."""
    kind = dtype.kind
    if kind in "SU":
        # NumPy chooses the width, but converts numbers and other objects as it does for the type.
        return np.asarray(values, kind)
    natural = np.asarray(values)
    if kind in "fc" and natural.dtype.kind not in "biufc":
        return np.asarray(values, "f8" if kind == "f" else "c16")
    if kind in "mM" and natural.dtype.kind != kind:
        if natural.dtype.kind == "U":
            return _times_of_text(natural, dtype)
        # NumPy chooses the unit, but integers have none.
        return None if natural.dtype.kind in "biu" else np.asarray(values, kind)
    if kind == "V" and dtype.type is np.void:
        return np.asarray(values, "V")
    return natural


def _of_tuples(
    values: Any,
    dtype: np.dtype[Any],
    advice: str,
) -> Array:
    """Convert tuples to records, whose fields go by position, because tuples have no names."""
    return _of_object_fields(np.asarray(values, _with_objects(dtype)), dtype, advice)


def _of_object_fields(
    objects: Array,
    dtype: np.dtype[Any],
    advice: str,
) -> Array:
    """Convert records of objects, whose fields have the names of `dtype`."""
    result = np.zeros(objects.shape, dtype)
    for name in dtype.names or ():
        base, _ = _parts(dtype[name])
        items = objects[name]
        if base.names is not None:
            result[name] = _of_object_fields(items, base, advice)
        else:
            result[name] = lossless(items.tolist(), base, advice)
    return result


def _with_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type of records with the same fields, which hold any object."""
    base, inner = _parts(dtype)
    if base.names is None:
        return np.dtype((object, inner)) if inner else np.dtype(object)
    fields = [(name, _with_objects(base[name])) for name in base.names]
    return np.dtype((np.dtype(fields), inner)) if inner else np.dtype(fields)


def _leaves_with_names(values: Any) -> Iterator[bool]:
    """Yield for each object in nested lists whether it is a record, or an array of records."""
    if isinstance(values, list):
        for each in values:
            yield from _leaves_with_names(each)
    else:
        yield getattr(getattr(values, "dtype", None), "names", None) is not None


# The comparison.


def _require_fit(
    array: Array,
    dtype: np.dtype[Any],
    advice: str,
) -> None:
    """Raise an error for an item that a cast to `dtype` would change, and name it."""
    # The range of times depends on their unit, but NumPy calls every cast to a finer unit safe.
    is_safe = np.can_cast(array.dtype, dtype, "safe") and dtype.kind not in "mM"
    if array.dtype == dtype or is_safe:
        return
    for box in boxes(array.shape, _PIECE):
        key: Any = (*box, ...)
        items = array[key]
        lost = _find_lost(items, dtype)
        if lost.any():
            (item, *_) = items[lost]
            kind = OverflowError if _holds_numbers(dtype) else ValueError
            # Only raw bytes have no common type; those that do not fit are longer.
            wider = array.dtype if dtype.kind == "V" else _wider(item, array.dtype, dtype)
            hint = advice.format(wider=wider, dtype=dtype)
            if wider.kind == "T":
                hint = hint.replace(f'"{wider}"', f"np.dtypes.{wider}")  # NumPy knows no name of this type
            raise kind(f"{_text(item)} does not fit items of type {dtype}; {hint}")


def _wider(
    item: Any,
    own: np.dtype[Any],
    dtype: np.dtype[Any],
) -> np.dtype[Any]:
    """Return a type for an item of the type `own` and for items of `dtype`."""
    wider = np.promote_types(own, dtype)
    if wider.kind not in "mM":
        return wider
    # A time that is too far away for the common unit needs a coarser one.
    coarser = (np.dtype(f"{wider.kind}8[{unit}]") for unit in ("us", "ms", "s"))
    holds = (kind for kind in (wider, *coarser) if _is_kept(item, kind))
    return next(holds, own)


def _is_kept(time: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a time, or a duration, is the same after a cast to `dtype`."""
    try:
        back = time.astype(dtype).astype(time.dtype)
    except OverflowError:  # by NumPy 2.5 and later; earlier ones wrap
        return False
    return bool(back == time or np.isnat(time))


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" or _is_extension(dtype)


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is a number of the package ml_dtypes."""
    return dtype.kind == "V" and dtype.type is not np.void


def _text(item: Any) -> str:
    """Return an item as it is shown in messages; long text is cut."""
    if isinstance(item, str):
        return f"{str(item)!r:.80}"
    return f"{bytes(item)!r:.80}" if isinstance(item, bytes) else f"{item!s:.80}"


def _find_lost_times(items: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the times, or durations, that a cast to `dtype` would change."""
    try:
        back = items.astype(dtype).astype(items.dtype)
    except OverflowError:  # by NumPy 2.5 and later, which does not say which items are too far away
        lost = [not _is_kept(each, dtype) for each in items.ravel()]
        return np.array(lost, bool).reshape(items.shape)
    is_changed = back != items
    is_missing = np.isnat(items)
    return np.asarray(is_changed & ~is_missing)


def _find_lost(
    items: Array,
    dtype: np.dtype[Any],
) -> npt.NDArray[np.bool_]:
    """Return a mask of the items that a cast to `dtype` would change, apart from the rounding of floats."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # Items that wrap twice, such as 2**63 of uint64 in int64, would come back unchanged.
        is_low = items < limits.min
        is_high = items > limits.max
        return np.asarray(is_low | is_high)
    if items.dtype.kind in "mM" and dtype.kind in "mM":
        return _find_lost_times(items, dtype)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        stored = items.astype(dtype)
        if dtype.kind in "fc":
            overflows = ~np.isfinite(stored)
            return np.asarray(np.isfinite(items) & overflows)
        if _is_extension(dtype):
            before = items.astype(float)
            after = stored.astype(float)
            return _find_far(before, after)
        if dtype.kind in "SU":
            # NumPy finds the width for all items; for items of StringDType, it must see them as objects.
            unsized = items.astype(object) if items.dtype.kind == "T" else items
            whole = unsized.astype(dtype.kind)
            return np.asarray(whole != stored)
        back = stored.astype(items.dtype)
    lost = np.asarray(back != items)
    if items.dtype.kind in "mM":
        is_missing = np.isnat(items)
        both_missing = is_missing & np.isnat(back)
        lost &= ~both_missing
    return lost


def _find_far(
    numbers: npt.NDArray[np.float64],
    stored: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Return a mask of the numbers that changed by more than half: some small types have a largest number, others wrap.

    Between the numbers of a type, the distances are at most a half.
    """
    sizes = np.abs(numbers)
    changes = np.abs(stored - numbers)
    # A change that is not a number is large.
    is_near = changes <= sizes / 2
    is_large = sizes > 1
    return np.isfinite(numbers) & is_large & ~is_near

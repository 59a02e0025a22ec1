"""Reductions that leave out what is NaN, as NumPy's functions of the same names do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from b2array.compute.readable import Readable
from b2array.compute.reductions import Axis, reduce

__all__ = ["nanargmax", "nanargmin", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar"]


def _variant(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Axis = None, **options: Any) -> Any:
        if isinstance(a, Readable):
            return reduce(a, name, axis, skipna=True, **options)
        return getattr(np, f"nan{name}")(a, axis=axis, **options)

    function.__name__ = function.__qualname__ = f"nan{name}"
    function.__doc__ = f"""Reduce an array or a view chunk by chunk as `numpy.nan{name}` does, with the same keywords.

        With ``progress=True``, show on stderr how far it has come.
        """
    return function


nanargmax, nanargmin, nanmax, nanmin = map(_variant, ("argmax", "argmin", "max", "min"))
nanmean, nanprod, nanstd, nansum, nanvar = map(_variant, ("mean", "prod", "std", "sum", "var"))

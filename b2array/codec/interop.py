"""Parameters with which the C library misreads frames, or cannot read them, although its own files may have them.

This applies to python-blosc2 4.14: it uses the dictionary of one chunk for the next, and undoes the filter delta
without the first block of a chunk when it reads another block. After the filter delta, `pipeline_backward` of the C
library may use the same buffer for the input and the output of a filter. This happens if there is another delta, or if
there are five or six filters. python-blosc2 stores the parameter of a filter in one signed byte.
"""

from __future__ import annotations

from dataclasses import replace

from b2array.codec.chunk_header import FilterId
from b2array.codec.cparams import CParams
from b2array.errors import UnsupportedError

__all__ = ["readable", "require_readable"]

_LARGEST_META = 127
_MOST_WITH_DELTA = 4
"""The maximum number of filters, delta among them, that the C library undoes correctly."""
_WAY_OUT = "interop=False writes them all the same"


def require_readable(params: CParams, typesize: int, *, delta: bool) -> None:
    """Raise UnsupportedError for parameters with which stock Blosc2 would misread items.

    `delta` states whether stock Blosc2 can read such chunks with the filter delta.
    """
    if FilterId.DELTA in params.filter_slots and not delta:
        raise UnsupportedError(
            "stock Blosc2 reads parts of arrays with the delta filter wrongly when a chunk has several blocks, and of "
            f"super-chunks always; {_WAY_OUT}"
        )
    filters = [each for each in params.filter_slots if each != FilterId.NOFILTER]
    # Rounding within bounds may put one more filter into the chunks.
    count = len(filters) + params.is_lossy
    if filters.count(FilterId.DELTA) > 1 or (FilterId.DELTA in filters and count > _MOST_WITH_DELTA):
        raise UnsupportedError(
            f"stock Blosc2 undoes the delta filter wrongly if it is there twice, or with more than"
            f" {_MOST_WITH_DELTA - 1} other filters (rounding is one); {_WAY_OUT}"
        )
    if params.use_dict:
        raise UnsupportedError(
            f"stock Blosc2 reads parts of arrays whose chunks have dictionaries wrongly, or not at all; {_WAY_OUT}"
        )
    if max(params.metas_for(typesize)) > _LARGEST_META:
        raise UnsupportedError(
            f"python-blosc2 opens no frames with filters_meta beyond 0 to {_LARGEST_META} (for the truncating "
            f"filters: say how many bits to keep, not how many to drop; bytedelta has the size of an item); {_WAY_OUT}"
        )


def readable(params: CParams) -> CParams:
    """Return the parameters of another array for a new one: without dictionaries, which stock Blosc2 may not read."""
    return replace(params, use_dict=False) if params.use_dict else params

"""Registered codecs of the Blosc project that are not built in: ids, names and functions that make codecs.

Source: the registry of codecs in the documentation of C-Blosc2, "Registered plugins in Blosc".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from numcodecs.abc import Codec

from b2array.codec import jpeg2000, ndlz, zfp

__all__ = ["PLUGINS", "MakeCodec", "Plugin", "plugin_id"]

MakeCodec = Callable[[int, int, tuple[int, ...] | None], Codec]


class Plugin(NamedTuple):
    """A codec: its name, the function that makes it, and the maximum ratio of data to payload, if there is a limit.

    Codecs that are not `writable` can only decode.
    """

    name: str
    make: MakeCodec
    max_ratio: int | None
    writable: bool = True


def _zfp(mode: zfp.Mode) -> Plugin:
    make = partial(zfp.Zfp, mode)
    return Plugin(mode.name.lower(), make, zfp.MAX_RATIO)


PLUGINS: dict[int, Plugin] = {
    32: Plugin("ndlz", ndlz.Ndlz, ndlz.MAX_RATIO, writable=False),
    **{mode: _zfp(mode) for mode in zfp.Mode},
    36: Plugin("openhtj2k", partial(jpeg2000.Jpeg2000, planes=True), None, writable=False),
    37: Plugin("grok", jpeg2000.Jpeg2000, None, writable=False),
    39: Plugin("j2k", jpeg2000.Jpeg2000, None, writable=False),
    40: Plugin("htj2k", jpeg2000.Jpeg2000, None, writable=False),
}
"""The codecs of the registry by id."""


def plugin_id(name: str) -> int | None:
    """Return the id of the codec with this name, or None.

    Examples
    --------
    >>> plugin_id("zfp_acc"), plugin_id("zip")
    (33, None)
    """
    for number, plugin in PLUGINS.items():
        if plugin.name == name:
            return int(number)
    return None

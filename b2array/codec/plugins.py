"""Codecs that the Blosc project numbers but does not build in: each id with its name and what makes the codec.

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
    """A codec: its name, what makes it, and the most bytes that one byte of payload can stand for, if there is a limit.

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
"""Codecs of the registry by their ids."""


def plugin_id(name: str) -> int | None:
    """Return the id of the codec of this name, or None.

    Examples
    --------
    >>> plugin_id("zfp_acc"), plugin_id("zip")
    (33, None)
    """
    for number, plugin in PLUGINS.items():
        if plugin.name == name:
            return int(number)
    return None

"""`NewFrame`: makes the frame of a new member; `copier_of`: makes it as a copy of another frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from b2array.array.drafts import AnyPlace, FreePlace, Kind, place_new
from b2array.commit.copied_states import KeptState, states_to_copy
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle
from b2array.commit.prepare import copy_frame
from b2array.format.frame_header import FrameType
from b2array.store.base import Store
from b2array.store.open import open_store

__all__ = ["NewFrame", "copier_of"]


class NewFrame(Protocol):
    """A function that makes the draft of a new member's frame."""

    def __call__(self, url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Return a draft of the frame at a URL or place, or in memory for None.

        With `overwrite`, it may replace a frame. `layout` applies if the user does not choose one.
        """
        ...


def copier_of(
    source: Handle,
    storage_options: Mapping[str, Any],
    *,
    keeps_layout: bool = False,
    snapshots: bool = True,
    earlier: Sequence[KeptState] = (),
) -> NewFrame:
    """Return a function that makes a new member as a copy of a frame, without compressing the chunks again.

    With `keeps_layout`, or in the same kind of store, the copy has the layout of the frame; otherwise the usual layout
    of its store. With `snapshots`, the copy keeps the states of the frame's own snapshots, and the `earlier` states,
    which snapshots of its group name. `storage_options` are for the URL of the copy.
    """
    own: Kind = "sparse" if source.frame.frame_type == FrameType.SPARSE else "contiguous"

    def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
        """Copy the chunks to a place, and return a draft of the copy."""
        if layout == "auto" and (keeps_layout or _is_alike(source.store, url, storage_options)):
            layout = own
        place = place_new(url, layout, storage_options, overwrite=overwrite)
        origin = source.source
        states: list[KeptState] = []
        if snapshots:
            states = [*states_to_copy(origin), *earlier]
            states.sort(key=lambda each: each.entry.time)
        return copy_frame(
            origin,
            place.store,
            place.kind,
            overwrite=overwrite,
            kept=states,
            first=place.first,
        )

    return new


def _is_alike(store: Store, place: AnyPlace, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a store and a place are both on a local disk, or both in an object store."""
    if place is None:
        return False
    if isinstance(place, FreePlace):
        return store.can.local == place.store.can.local
    other = open_store(place, storage_options=storage_options)
    return store.can.local == other.can.local

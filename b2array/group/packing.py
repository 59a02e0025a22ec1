"""Write a group as a ``.b2z`` file: a zip archive that stores the frame of each member without compressing it again.

Source: "APPNOTE.TXT - .ZIP File Format Specification", through `zipfile`. The frame in which python-blosc2 keeps small
members must be there, and is empty.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from b2array.group import embedded
from b2array.group.archive import MAGIC
from b2array.group.directory import NewFrame
from b2array.group.manifest import EMBEDDED
from b2array.store.atomic import AtomicFile, require_free
from b2array.store.open import open_store

__all__ = ["packing"]


@contextmanager
def packing(
    url: str, *, overwrite: bool = False, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Callable[[str, NewFrame], None]]:
    """Write an archive. It appears when the block ends without an error.

    Yields a function that adds a member. It takes the member's path in the archive, and a function that makes its frame
    in a local file. One such file at a time is beside the archive. Archives in memory and in object stores are written
    from a temporary file.
    """
    store = open_store(url, storage_options=storage_options)
    require_free(store, {"": MAGIC[0][:2]}, "an archive", overwrite=overwrite)
    with AtomicFile(store, overwrite=overwrite) as path, zipfile.ZipFile(path, "w") as archive:
        archive.writestr(EMBEDDED, embedded.nothing())

        def add(member: str, new: NewFrame) -> None:
            with tempfile.TemporaryDirectory(suffix=".b2tmp", dir=Path(path).parent) as directory:
                frame = str(Path(directory, "frame"))
                new(frame, overwrite=False, layout="contiguous").commit()
                archive.write(frame, member)

        yield add

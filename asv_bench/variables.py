"""Opening a group of many variables beside zarr with consolidated metadata: time, and sizes of pickles.

    python asv_bench/variables.py [--variables N] [--rounds N]

The two take turns. The table gives medians of wall and processor time in milliseconds, and the ratio of processor
times; below 1 means that b2array takes less. Files are in a temporary directory that is removed at the end.
"""

import argparse
import gc
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from timing import in_turns

import b2array
from b2array.array import frozen
from b2array.xarray_io import to_b2array

Verb = Callable[[], Any]


def dataset(variables: int) -> xr.Dataset:
    """Return variables with attributes, and a coordinate, which xarray reads when it opens them."""
    items = np.random.default_rng(0).random((4, 32, 32))
    described = {"units": "K", "long_name": "temperature of the air"}
    named = {f"v{n:02}": (("t", "y", "x"), items, {**described, "number": n}) for n in range(variables)}
    return xr.Dataset(named, {"t": np.arange(4)})


def unpickled(content: bytes) -> Any:
    """Unpickle as a process does that has met none of it before."""
    frozen._known.clear()
    return pickle.loads(content)


def members(group: Any) -> list[Any]:
    """Open everything in a group."""
    return [each for _, each in group.arrays()] if isinstance(group, zarr.Group) else [*group.arrays().values()]


def timed(verbs: dict[str, Verb], rounds: int) -> dict[str, tuple[float, float]]:
    """Return medians of wall and processor time in milliseconds."""

    def collected(verb: Verb) -> Callable[[int], Verb]:
        def prepared(_: int) -> Verb:
            gc.collect()
            return verb

        return prepared

    found = in_turns({name: collected(verb) for name, verb in verbs.items()}, rounds)
    return {name: (1e3 * wall, 1e3 * processor) for name, (wall, processor) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variables", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=21)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = str(Path(directory, "a.b2d")), str(Path(directory, "a.zarr"))
        to_b2array(dataset(asked.variables), ours)
        dataset(asked.variables).to_zarr(theirs, consolidated=True)

        def open_ours() -> xr.Dataset:
            return xr.open_dataset(ours, engine="b2array")

        def open_theirs() -> xr.Dataset:
            return xr.open_dataset(theirs, engine="zarr", consolidated=True)

        held, beside = open_ours(), open_theirs()
        content, other = pickle.dumps(held), pickle.dumps(beside)
        pairs: dict[str, tuple[Verb, Verb]] = {
            "open_dataset": (open_ours, open_theirs),
            "open the group's arrays": (
                lambda: members(b2array.open_group(ours)),
                lambda: members(zarr.open_consolidated(theirs)),
            ),
            "pickle, opened": (lambda: pickle.dumps(held), lambda: pickle.dumps(beside)),
            "open and pickle": (lambda: pickle.dumps(open_ours()), lambda: pickle.dumps(open_theirs())),
            "unpickle": (lambda: unpickled(content), lambda: pickle.loads(other)),
            "unpickle and read one": (
                lambda: unpickled(content)["v01"].values,
                lambda: pickle.loads(other)["v01"].values,
            ),
            "open and read all": (lambda: open_ours().load(), lambda: open_theirs().load()),
        }
        print(f"{asked.variables} variables; pickles of {len(content)} and {len(other)} bytes")
        print(f"{'':24}{'b2array':>18}{'zarr':>18}{'ratio':>8}")
        for name, (mine, other_verb) in pairs.items():
            found = timed({"mine": mine, "other": other_verb}, asked.rounds)
            (wall, processor), (wall2, processor2) = found["mine"], found["other"]
            print(f"{name:24}{wall:9.2f}{processor:9.2f}{wall2:9.2f}{processor2:9.2f}{processor / processor2:8.2f}")


if __name__ == "__main__":
    main()

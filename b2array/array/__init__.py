"""Arrays, as users see them, and the functions that make them.

described    `Opened`, `Described`, `Attributes`: what arrays and super-chunks say of themselves without reading items
items        `Indexed`: `a[key] = value`, `chunk_view`, `explain`, `iter_chunks`, ...
array        `NDArray`: an `Indexed`, so a `Described`, so an `Opened` and a `compute.Readable`; `View`; `array_at`
schunk       `SChunk`; `create_schunk` (`b2array.open` is in `group.addressing`)
tensors      `from_bytes`; what a frame gives: an array or a super-chunk, also what python-blosc2's `pack_tensor` made
drafts       `ArrayOptions` -> the transaction of a new array, in a place where it may go
copying      the transaction of a copy: of an array, an array-like that may be larger than memory, blocks
unstorable   what to store in the place of values that are no data, such as times with time zones
making       `make`: a new frame at a URL, alone or as the member of a group
creation     `create`, `zeros`, `asarray`, ...
chunkwise    `map`: a function of pieces of arrays -> an array
downsampling `downsample`: one item for each block of items
joining      `concatenate`, `stack`: chunks are copied where the grids fit
many         `read_many`: selections of several arrays in common waves of requests
sequences    `arange`, `linspace`, `eye`, `fromiter`
snapshots    states under names, as users see them; which boxes of two states differ
times        which snapshot a moment stands for
appender     `append`; `Appender`: takes a simulation's steps, writes whole chunks
dask         graphs that read and write one array
dask_chunks  cuts that respect chunks
frozen       what the tasks of a graph share: the committed state that they read, pickled once
"""

"""Arrays, as users see them, and the functions that make them.

described        `Opened`, `Described`, `Attributes`: the metadata of arrays and super-chunks
items            `Indexed`: `a[key] = value`, `chunk_view`, `explain`, `iter_chunks`, ...
array            `NDArray`, which inherits from `Indexed`, `Described`, `Opened` and `compute.Readable`; `View`;
                 `array_at`
schunk           `SChunk`; `create_schunk` (`b2array.open` is in `group.addressing`)
tensors          `from_bytes`; opens a frame as an array or a super-chunk, and results of python-blosc2's `pack_tensor`
drafts           `ArrayOptions` -> the transaction of a new array, in a free place
array_copying    the transaction of a copy of an array, of a large array-like, or of blocks
wide_text        warns of text whose items all have the size of the longest one
unstorable       advice on values that cannot be stored, such as times with time zones
frame_making     `make`: a new frame at a URL, alone or as the member of a group
creation         `create`, `zeros`, `asarray`, ...
chunkwise        `map`: applies a function to pieces of arrays, and stores the results
downsampling     `downsample`: reduces each block of items to one item
joining          `concatenate`, `stack`: chunks are copied where the grids fit
many             `read_many`: reads selections of several arrays with shared requests
sequences        `arange`, `linspace`, `eye`, `fromiter`
array_snapshots  snapshots, as users see them; the boxes in which two states differ
at_times         the snapshot for a moment in time
objects          reads sequences of Python objects that python-blosc2 stored
appender         `append`; `Appender`: collects a simulation's steps and writes whole chunks
dask             graphs that read and write one array
dask_chunks      divisions into pieces of whole chunks
frozen           values that the tasks of a graph share: the committed state to read, pickled once
"""

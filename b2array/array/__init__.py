"""What users hold: arrays, and the functions that make them.

options      `ArrayOptions`: the options of a new array
placing      where a new frame goes, and what may be in its place
drafts       options -> the transaction of a new array
streaming    arrays of other libraries, read a part at a time
copying      the transaction of a copy: of an array, an array-like, blocks
opened       what arrays and super-chunks have in common
described    what is known of an array without reading items
items        `Indexed`: `a[key] = value`, `chunk_view`, `explain`, `iter_chunks`, ...
dask         graphs that read and write one array
frozen       the committed state that the tasks of a graph read
dask_chunks  cuts that respect chunks
shared       values that many tasks share, pickled once
appender     `Appender`: takes a simulation's steps, writes whole chunks
array        `NDArray`, which inherits `items.Indexed` <- `described.Described` <- `opened.Opened`, `compute.Readable`
following    `Follower`: a handle that always shows the last commit
sequences    `arange`, `linspace`, `eye`, `fromiter`
schunk       `SChunk`
opening      `open_schunk`, `create_schunk`; `open` of an array alone (`b2array.open` is in `group.addressing`)
creation     `create`, `zeros`, `asarray`, `copy`, ...
info         `NDArray.info`: a table of what is known
"""

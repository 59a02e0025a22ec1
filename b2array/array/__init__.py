"""What users hold: arrays, and the functions that make them.

options      `ArrayOptions`: how a new array is made
placing      where a new frame goes, and what may be in its place
drafts       options -> the transaction of a new array
streaming    arrays of other libraries, read a part at a time
copying      the transaction of a copy: of an array, an array-like, blocks
opened       what arrays and super-chunks have in common
described    what is known of an array without reading items
items        reading and assigning items
dask         graphs that read and write one array
frozen       the committed state that the tasks of a graph read
dask_chunks  cuts that respect chunks
shared       values that many tasks share
appender     output step by step
array        `NDArray`, which inherits `items.Indexed` <- `described.Described` <- `opened.Opened`, `compute.Readable`
following    `Follower`: a handle that always shows the last commit
sequences    `arange`, `linspace`, `eye`, `fromiter`
schunk       `SChunk`
opening      `open`, `open_schunk`, `create_schunk`
creation     `create`, `zeros`, `asarray`, `copy`, ...
info         how handles are shown
"""

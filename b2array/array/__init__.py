"""What users hold: arrays, and the functions that make them.

array        `NDArray`
described    what is known of an array without reading items
opened       what arrays and super-chunks have in common
schunk       `SChunk`
indexers     `oindex`, `vindex`, `chunk_view`
creation     `open`, `create`, `zeros`, `asarray`, ...
copying      copies in another layout, arrays made of blocks
opening      super-chunks by URL, and the place of a new frame
appender     output step by step
dask         graphs that read and write one array
dask_chunks  cuts that respect chunks
shared       values that many tasks share
info         how handles are shown
"""

"""Geometry: how an array is cut into chunks and blocks, and which items a key selects. No bytes are involved.

selection     a NumPy key -> a product of factors, each with positions along one axis or several axes together
index_arrays  the index arrays and masks of a key
partition     cuts a product along a grid: array -> chunks, chunk -> blocks; `take` and `put` move items that index
              arrays select
tiling        the plan of a read or write: the chunks of a selection, the steps to read one, the blocks to write
assignment    the value of an assignment, checked and broadcast as NumPy does it
lossless      the values that functions such as `append` add: converted without loss, or refused
windows       the order of a copy from one grid to another, so that no block is read many times
layout        shape, chunks and blocks of one array, and quantities derived from them
chunking      automatic shapes of chunks and blocks
text_items    text and bytes in arrays of objects, and types for them
runs          blocks of text, which are runs of a chunk
text_chunks   the automatic choice of chunks and blocks for text
advice        finds keys that chunks and blocks serve badly, and better shapes
"""

"""Reads one committed state of a frame. This package does not change stores, and knows no groups.

To read `a[1:3]`, `read` asks the `cache` for the blocks of each chunk. `fetch` gets the other blocks from the store by
way of the `Revision`, and compares them with their checksums. `read` decodes these blocks, leaves them in the cache,
and copies the items.

source        `Source`: a revision, or a transaction on top of one, from which `read` and `fetch` read
revision      `Revision`: one committed state in a store; `read_frame`; `Owner`: knows which state of a frame counts
kept_states   loads the states that a frame keeps under names
fetch         wanted chunks and blocks -> bytes, compared with their checksums
small_chunks  many small chunks -> their data, together
text_blocks   blocks of text -> items
cache         decoded blocks that the process keeps
read          blocks -> the items of a selection
"""

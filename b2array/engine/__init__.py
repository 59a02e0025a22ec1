"""Where format meets store: one committed state is read, the next one is written.

A read of `a[1:3]` goes `read` -> `cache` -> `fetch` -> `Snapshot.place`, `Snapshot.gather` -> bytes compared with
their checksums -> blocks decoded -> items. A write of `a[1:3] = x` goes `Handle.changes` -> `write` -> (`fetch` of
chunks that are written in part) -> `OpenChunk` -> `Overlay.store_chunk` -> `Staging.put`. In a transaction, chunks that
are written in part stay open; `Overlay.flush` encodes them. `Transaction.commit` compares the store with its base,
packs the next `State` and swaps the index. Opening goes `snapshot.load` -> `format.frame`, `format.state` ->
`Snapshot`.

source       `Source`: what chunks are read from, a snapshot or a transaction
snapshot     `Snapshot`: one committed state in a store; `load`, `reload`
fetch        chunks and blocks wanted -> bytes, compared with their checksums
cache        decoded blocks that the process keeps
read         a selection of items, from the blocks of chunks
open_chunk   `OpenChunk`: blocks that are being changed, on top of a stored chunk
write        the values of a selection, into new chunks
staging      new chunks, where no index refers to them yet
overlay      changes on top of a snapshot: chunks, index, metadata
transaction  `Transaction`: an overlay that is committed, on top of other writers' commits
replacing    new frames that replace frames of the other layout
handle       `Handle`: the state that is shown, transactions, attempts after conflicts
attributes   the mapping of attributes
edits        insert, update, delete and reorder chunks
resize       resize, append, insert, delete along an axis
"""

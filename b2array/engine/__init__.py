"""Where format meets store: one committed state is read, the next one is written.

To read `a[1:3]`, `read` asks the `cache` for the blocks of each chunk. `fetch` gets the others from the `Snapshot`, and
compares them with their checksums. `read` decodes them, leaves them in the cache, and copies the items.

To write `a[1:3] = x`, the array hands `write.assign` to `Handle.change`, which calls it with a new `Transaction`. It
puts the values into an `OpenChunk`, on top of the old chunk if it is written in part, encodes it, and gives it to
`Overlay.store_chunk`, which calls `Staging.put`; `Overlay.set_code` refers to it. Inside ``with a.transaction()``, a
chunk that is written in part, or is the only one of its write, stays open until `Overlay.flush` encodes it.
`Transaction.commit` puts the changes on top of what others committed meanwhile, packs the next `State`, and swaps the
index. Where others changed the same chunks, `Handle.change` makes the change again.

source       `Source`: what `read` and `fetch` read from, a snapshot or an overlay; `Target`: what `write` writes to
snapshot     `Snapshot`: one committed state in a store; `load`, `reload`
fetch        chunks and blocks wanted -> bytes, compared with their checksums
cache        decoded blocks that the process keeps
read         blocks -> the items of a selection
open_chunk   `OpenChunk`: a chunk that is being changed; encoded at the end
write        the values of a selection -> new chunks
staging      new chunks, where no index refers to them yet
overlay      changes on top of a snapshot: chunks, index, metadata
transaction  `Transaction`: an overlay, and its commit on top of what other writers committed
manifest     `Manifest`, `Entry`: what a group's manifest says (no I/O)
redo         reads members of a group through the redo log in its manifest, and carries it out; `writers_lock`
handle       `Handle`: shows a state, begins transactions, tries again after conflicts
edits        insert, update, delete and reorder chunks
resize       resize, append, insert, delete along an axis
"""

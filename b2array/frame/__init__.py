"""Reads one committed state of a frame. This package does not change stores.

To read `a[1:3]`, `read` asks the `cache` for the blocks of each chunk. `fetch` gets the other blocks from the store by
way of the `Snapshot`, and compares them with their checksums. `read` decodes these blocks, leaves them in the cache,
and copies the items.

source       `Source`: a snapshot, or a transaction on top of one, from which `read` and `fetch` read
manifest     `Manifest`, `Row`, `Entry`: the contents of a group's manifest (no I/O)
places       `Place`: the group that a URL leads into, and the name in it
catalog      reads manifests; `Catalog`, the last manifest that this process has seen
snapshot     `Snapshot`: one committed state in a store; `load`, `reload`, `load_member`
log          local groups: determines the step that an entry of the log still requires; reads members by the log
kept         states that a frame or its group keeps under a name, and whether their chunks are intact
listing      the ledger of a group's snapshots, and the members of each snapshot
fetch        wanted chunks and blocks -> bytes, compared with their checksums
text_blocks  blocks of text -> items
cache        decoded blocks that the process keeps
read         blocks -> the items of a selection
"""

"""Named arrays below one URL, changed together by one commit.

`Group.transaction` calls `changing.begin`, which makes a `LocalTransaction` or, in an object store, a `RowTransaction`.
It collects the changes until the end of the block. Then `entries.commit_entries` or `many.commit_rows` of
`b2array.commit` writes the manifest once, which makes all of them visible.

addressing   `open`: opens the array, super-chunk or group that a URL names
sources      `load`, `copy`, `open_schunk`: read arrays and super-chunks by their URLs
making       makes the member that a URL names
group        `Group`, the mapping that users hold, and `open_group`
attributes   a group's attributes as a mapping
fork         `Changes`, the common base of transactions and forks of a group; forks for workers
changing     `begin`: begins a transaction of a group in any store
transaction  `Transaction`, the common base of both kinds of transactions
local_transaction  collects changes of several members of a local group for one commit (`b2array.commit.entries`)
rows         does the same for a group in an object store (`b2array.commit.many`)
row_change   the changes of a transaction in an object store as data; checks whether they still fit
snapshot_changes   the snapshots that a transaction makes, drops and copies
snapshots_on_disk  writes the data of a local group's snapshots during a commit
restoring    restores a snapshot, in a transaction
copying      copies the snapshots of another group, in a transaction
kept         a group at a snapshot; frames that keep states of deleted members
snapshots    lists the snapshots of a group, and compares two of them
local        members in a local directory
listed       members in a prefix of an object store, which the manifest lists
whole        finds, makes, completes, describes and removes a whole group
summaries    opens members from their summaries in the manifest
members      `Members`: names, and the groups that they make; `check_new`
archive      members in a `.b2z` archive, for reading
unpacked     members of an archive that is being made or changed, in a directory beside it
tree         draws groups as text
ragged       `Rows`: rows of different lengths, in two arrays
tables       `Table`: reads tables of python-blosc2
embedded     members inside one frame (`.b2e`), for reading
"""

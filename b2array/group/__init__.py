"""Named arrays below one URL, changed together by one commit.

addressing   `open`: what a URL names
sources      `load`, `copy`, `open_schunk`: read what `open` finds
making       makes the member that a URL names
group        `Group`, the mapping that users hold, and `open_group`
attributes   a group's attributes as a mapping
fork         `Changes`, what transactions and forks of a group have in common; forks for workers
changing     `begin`: begins a transaction, wherever the group is
transaction  `Transaction`, what both kinds of transactions have in common
local_transaction  collects changes of several members of a local group for one commit (`b2array.commit.entries`)
rows         collects them in an object store (`b2array.commit.many`)
row_change   the changes of such a transaction as data; checks whether they still fit
snapshot_changes   the snapshots that a transaction makes, drops and copies
snapshots_on_disk  writes what snapshots of a local group need, during its commit
restoring    goes back to a snapshot, in a transaction
copying      copies the snapshots of another group, in a transaction
kept         a group at one moment; frames that keep states of members that went
snapshots    snapshots of a group, as users see them; how two moments differ
local        members in a local directory
listed       members in a prefix of an object store, which the manifest lists
whole        finds, makes, completes, describes and removes a whole group
summaries    opens members from what the manifest says of them
members      `Members`: names, and the groups that they make; `check_new`
archive      members in a `.b2z` archive, for reading
unpacked     members of an archive that is being made or changed, in a directory beside it
tree         draws groups as text
embedded     members inside one frame (`.b2e`), for reading
"""

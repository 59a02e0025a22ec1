"""Named arrays below one URL, changed together by one commit.

`Group.transaction` calls `transaction.begin`, which makes a `Transaction`. It collects the changes until the end of the
block. Then `b2array.commit.group_commit.commit_group` commits them. What they need of the members is written down in
`homes`. `LocalGroup` and `ListedGroup` are the homes of groups in each kind of storage, which `listed_group.group_at`
chooses.

addressing        `open`: opens the array, super-chunk or group that a URL names
sources           `load`, `copy`, `open_schunk`: read arrays and super-chunks by their URLs
member_making     makes the member that a URL names
group             `Group`, the mapping that users hold, and `open_group`
group_attributes  a group's attributes as a mapping
group_forks       `Changes`, the common base of transactions and forks of a group; forks for workers
transaction       `Transaction`: collects changes of several members for one commit
group_snapshot    `SnapshotHome`: a group at a snapshot
snapshot_writing  makes, restores and copies snapshots, as a part of a transaction
snapshots_on_disk, snapshots_in_bucket: the same, in each kind of storage
snapshot_list     lists the snapshots of a group, and compares two of them
snapshot_bytes    counts the bytes that only one snapshot needs
homes             `Home`, `GroupHome`: what groups and transactions need of the members
new_members       `NewFrame`, `copier_of`: make the frames of new members
local_group       `LocalGroup`: members in a local directory
listed_group      `ListedGroup`: members in a prefix of an object store, which the manifest lists
whole             finds, makes, completes, describes and removes a whole group
summaries         opens members from their summaries in the manifest
archive           members in a `.b2z` archive, for reading
unpacked          members of an archive that is being made or changed, in a directory beside it
tree              draws groups as text
ragged            `Rows`: rows of different lengths, in two arrays
blosc2_tables     `Table`: reads tables of python-blosc2
embedded          members inside one frame (`.b2e`), for reading
"""

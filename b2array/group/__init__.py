"""Named arrays below one URL, changed together by one commit.

addressing   `open`, and the groups that a URL leads through
group        `Group` and `open_group`, the mapping that users hold
attributes   a group's attributes as a mapping
transaction  several members, one commit: prepare, replace the manifest, apply
directory    members in a local directory or a prefix of an object store
whole        find a group, make it, complete it, describe all of its members, remove it
redo         the redo log in a manifest: read members through it, apply it
summaries    opening members from what the manifest says of them
manifest     names, paths, and the object that lists members and changes (no I/O)
archive      members in a `.b2z` archive, for reading
tree         how groups are shown
embedded     members inside one frame (`.b2e`), for reading
"""

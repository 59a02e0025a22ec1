"""Named arrays below one URL, changed together by one commit.

group        `Group` and `open_group`
directory    members in a directory or prefix
manifest     the object that lists the members
transaction  several members, one commit
archive      members in a `.b2z` archive, to read
embedded     members in one frame (`.b2e`), to read
"""

"""The command line, and the functions behind its commands.

cli, options             the program `b2array`
anatomy, describing      `info`, `ls`, `tree`: describe the bytes of a frame, arrays and groups
comparing, output        `diff` of two places; the .npy and .csv output of `cat`
member_commands  `rm`, `mv`, `attrs`
verify           `verify`: check whether a frame is intact
repair, salvage          `repair`: restore a proven state, or rebuild a frame from its readable parts
vacuum    `vacuum` and `repack`: free space
expire    `expire`: drop old snapshots
unlisted  finds objects in an object store that neither a group nor its snapshots need
members   identifies the object at a URL, and iterates over the members of a group
results   the return values of these functions, as text and as tables
demo, bench              the demonstration; measures reads
"""

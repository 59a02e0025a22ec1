"""The command line, and the functions behind its commands.

cli, options             the program `b2array`
anatomy, describing      `info`, `ls`, `tree`: the bytes of a frame; what is at a path
comparing, output        `diff` of two places; what `cat` writes: .npy and .csv
changing                 `rm`, `mv`, `attrs`
verify                   `verify`: is a frame in order?
repair, salvage          `repair`: restore a proven state, or put a frame together from its readable parts
vacuum                   `vacuum` and `repack`: free space
expire                   `expire`: drop old snapshots
members                  finds out what is at a URL, and goes through the members of a group
results                  what these functions return, as text and as tables
demo, bench              the demonstration; measures reads
"""

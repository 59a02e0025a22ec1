"""The command line, and the functions behind its commands.

cli, options             the program `b2array`
anatomy, describing      `info`, `ls`, `tree`: the bytes of a frame; what is at a path
verify                   `verify`: is a frame in order?
repair, salvage          `repair`: restore a proven state, or put a frame together from its readable parts
vacuum                   `vacuum` and `repack`: free space
results                  what these functions return, as text and as tables
members                  calls them for all members of a group
demo, bench              the demonstration; measures reads
"""

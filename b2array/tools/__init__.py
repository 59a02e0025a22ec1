"""The command line, and the functions behind its commands.

cli, options             the program `b2array`
anatomy, describing      `info`
verify                   `verify`: is a frame in order?
repair, salvage          `repair`: restore a proven state, or put a frame together from its readable parts
vacuum                   `vacuum` and `repack`: free space
convert                  `convert`, and how it tells formats apart
formats, zarr, hdf5      files of each format
demo, bench              the demonstration; measuring reads
"""

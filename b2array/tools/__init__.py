"""What is run: the command line, and the functions behind its commands.

cli, options, keys       the program `b2array`
anatomy, describing      `info`
verify                   `verify`: is a frame in order?
repair, salvage          `repair`: restore what is proven, put the rest together from its readable parts
vacuum                   `vacuum` and `repack`: free space
convert, formats, sources, zarr, hdf5   other formats
demo, bench              the demonstration; measuring reads
"""

"""What is run: the command line, and the functions behind its commands.

cli, options, keys       the program `b2array`
anatomy, describing      `info`
inspection, integrity    `verify`, `repair`, `vacuum`, `repack`
salvage, healing         what a damaged frame still says; damage that can be undone
convert, formats, sources, zarr, hdf5   other formats
demo, bench              the demonstration; measuring reads
"""

"""Arrays and groups from one file format to another.

convert      `b2array.convert`: one array or many, piece by piece
places       what a path or URL names: a format, and a member
formats      what a format is; `.b2nd`, `.npy` and `.blp`
groups       groups of Blosc2 frames: directories, prefixes, `.b2z` archives
hdf5, zarr   files and hierarchies of other libraries
netcdf3      files of netCDF-3, which can only be read
"""

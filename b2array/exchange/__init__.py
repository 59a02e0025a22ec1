"""Copying arrays and groups from one file format to another.

convert  `b2array.convert`: copies one array or many, piece by piece
places   finds the format and the member that a path or URL names
formats  `Format`, the interface of a format; `.b2nd`, `.npy` and `.blp`
groups   groups of Blosc2 frames: directories, prefixes, `.b2z` archives
hdf5, zarr   files and hierarchies of other libraries
hdf5_chunks       chunks of HDF5 that Blosc compresses, without HDF5's filters
hdf5_links        follows links in an HDF5 file without leaving the file
hdf5_ragged       HDF5 datasets of variable-length rows
dimension_scales  names of dimensions in HDF5 and netCDF files
netcdf3           files of netCDF-3, read-only
"""

"""Displays handles as tables and drawings, in terminals and notebooks, without reading items.

drawing      boxes cut along a grid, as SVG
text_tables  tables of names and values, as text and as HTML, with the drawings between them
reading      `NDArray.explain`: the cost of reading a selection, in numbers and as a drawing
"""

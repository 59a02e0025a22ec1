"""Shows handles to people: tables and drawings for terminals and notebooks. It reads no items.

drawing   boxes cut along a grid, as SVG
tables    tables of names and values, as text and as HTML, with the drawings between them
reading   `NDArray.explain`: what a selection will read, in numbers and as a drawing
"""

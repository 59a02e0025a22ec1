"""How handles are shown to people: tables and drawings for terminals and notebooks, without reading items.

drawing   boxes cut along a grid, as SVG
tables    HTML around tables and drawings
reading   what a selection will read, in numbers and as a drawing
"""

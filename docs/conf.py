"""Configuration of Sphinx."""

import inspect
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

import b2array

project = "b2array"
author = "The b2array developers"
copyright = "2026, The b2array developers"
release = version = metadata.version("b2array")

extensions = ["numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
default_role = "py:obj"
python_maximum_signature_line_length = 88

autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"b2array {release}"
html_show_sourcelink = False
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}


def directive(name: str, value: object) -> str:
    """Return the reStructuredText that documents one public name."""
    if isinstance(value, ModuleType):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if not inspect.isclass(value):
        return f".. autofunction:: b2array.{name}\n"
    if issubclass(value, Exception):
        return f".. autoexception:: b2array.{name}\n   :show-inheritance:\n"
    options = ":members:", ":inherited-members:", ":special-members: __getitem__, __setitem__, __array__"
    return "\n   ".join([f".. autoclass:: b2array.{name}", *options, ""])


def home(value: object) -> str:
    """Return the module that defines a public name."""
    return value.__name__ if isinstance(value, ModuleType) else value.__module__


def reference() -> str:
    """Return the sections of the reference: what ``b2array.__all__`` holds, by the module that defines it."""
    public = {name: getattr(b2array, name) for name in b2array.__all__ if not name.startswith("_")}
    sections = defaultdict(list)
    for name, value in sorted(public.items(), key=lambda item: not isinstance(item[1], ModuleType)):
        sections[home(value)].append(directive(name, value))
    return "\n".join(section(module, sections[module]) for module in sorted(sections))


def section(module: str, directives: list[str]) -> str:
    """Return one section, with the first paragraph of the module's docstring unless all of it follows."""
    title = module.removeprefix("b2array.")
    whole = directives[0].startswith(".. automodule::")
    summary = "" if whole else inspect.getdoc(sys.modules[module]).partition("\n\n")[0]
    return "\n".join([title, "-" * len(title), "", summary, "", *directives])


def fill_in_reference(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the reference where the page asks for it."""
    if docname == "api":
        source[0] = source[0].replace(".. reference", reference())


def setup(app: Sphinx) -> None:
    """Connect the event handlers."""
    app.connect("source-read", fill_in_reference)

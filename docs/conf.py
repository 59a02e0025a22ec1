"""Configuration of Sphinx."""

import inspect
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from pydoc import locate

from docutils import nodes
from docutils.parsers.rst.directives.images import Image
from sphinx import addnodes
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
PACKAGES = {path.parent.name for path in DOCS.parent.glob("b2array/*/__init__.py")} - {"bloscpack", "xarray_io"}
"""Internal packages. Some classes in them are documented, because functions return them."""
DOCUMENTED = re.compile(r"^\.\. documented::\n\n(?P<names>(?: {3}\S+\n)+)", re.MULTILINE)
sys.path.insert(0, str(DOCS.parent))

project = "b2array"
author = "The b2array developers"
copyright = "2026, The b2array developers"
release = version = metadata.version("b2array")

extensions = [
    "myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "sphinx_copybutton",
]  # fmt: skip
exclude_patterns = ["_build"]
source_suffix = {".rst": "restructuredtext", ".ipynb": "myst-nb", ".md": "myst-nb"}
nb_execution_mode = "off"
default_role = "py:obj"
python_maximum_signature_line_length = 72

autodoc_typehints = "none"
autosummary_generate = False
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False

# The button copies the input of an example, without prompts and without its output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"b2array {release}"
html_static_path = ["_static"]
html_css_files = ["b2array.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1864ab", "color-brand-content": "#1864ab"},
    "dark_css_variables": {"color-brand-primary": "#74c0fc", "color-brand-content": "#74c0fc"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


class Picture(Image):
    """Put a drawing into the page itself, where it follows the light or dark colours of the page.

    The pages name it as any image, so that code hosts show it, too.
    """

    def run(self) -> list[nodes.Node]:
        """Return a drawing as HTML, and any other image as it is."""
        path = Path(self.state.document.current_source or "").parent / self.arguments[0]
        if path.resolve().parent != DOCS / "drawings":
            return super().run()
        self.state.document.settings.record_dependencies.add(str(path))
        svg = path.read_text(encoding="utf-8")
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{self.options["alt"]}" ', 1)
        return [nodes.raw("", f'<div class="drawing">{svg}</div>', format="html")]


def names_of(block: re.Match[str]) -> str:
    """Return the names that a page of the reference documents, as links."""
    text = (DOCS / "reference" / f"{block['page']}.rst").read_text(encoding="utf-8")
    names = "".join(found["names"] for found in DOCUMENTED.finditer(text)).split()
    prefix = "b2array."
    return ", ".join(f"`{name.removeprefix(prefix)} <{prefix}{name.removeprefix(prefix)}>`" for name in names)


def documented(block: re.Match[str]) -> str:
    """Return a table of the names in a block of the reference, and the documentation of each."""
    names = [name.removeprefix("b2array.") for name in block["names"].split()]
    table = [f"   {'~' * (name.partition('.')[0] in PACKAGES)}{name}" for name in names]
    return "\n".join([".. autosummary::", "   :nosignatures:", "", *table, "", *map(directive, names), ""])


def directive(name: str) -> str:
    """Return the reStructuredText that documents a public name of b2array, such as ``NDArray.append``."""
    path, _, member = f"b2array.{name}".rpartition(".")
    owner = locate(path)
    value = getattr(owner, member)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
    elif not inspect.isclass(owner):
        kind = "autofunction" if callable(value) else "autodata"
    elif isinstance(inspect.getattr_static(owner, member), property):
        kind = "autoproperty"
    else:
        kind = "automethod" if callable(value) else "autoattribute"
    options = {"autoexception": "   :show-inheritance:\n", "autodata": "   :no-value:\n"}.get(kind, "")
    return f".. {kind}:: b2array.{name}\n{options}"


def expand(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Fill in the blocks ``.. documented::`` and ``.. names::``, and empty the empty lines of transcripts."""
    source[0] = source[0].replace("   <BLANKLINE>\n", "\n")
    source[0] = DOCUMENTED.sub(documented, source[0])
    source[0] = re.sub(r"\.\. names:: (?P<page>\S+)", names_of, source[0])


def name_plainly(_app: Sphinx, domain: str, _kind: str, content: addnodes.desc_content) -> None:
    """Leave out the names of internal modules."""
    if domain == "py":
        for node in list(content.parent.findall(addnodes.desc_addname)):
            if node.astext().removeprefix("b2array.").partition(".")[0] in PACKAGES:
                node.parent.remove(node)


def fetch_notebooks(_app: Sphinx) -> None:
    """Copy the notebooks to where Sphinx looks for pages."""
    shutil.rmtree(DOCS / "notebooks", ignore_errors=True)
    shutil.copytree(DOCS.parent / "notebooks", DOCS / "notebooks", ignore=shutil.ignore_patterns(".*"))


def setup(app: Sphinx) -> None:
    """Connect the event handlers."""
    app.connect("builder-inited", fetch_notebooks)
    app.add_directive("image", Picture, override=True)
    app.connect("source-read", expand)
    app.connect("object-description-transform", name_plainly)

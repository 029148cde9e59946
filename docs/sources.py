"""A hook of MkDocs (`mkdocs.yml`): pages of docs/ link to files of the checkout, as GitHub shows
them, and the site has a page for each of these files, so that it names nothing that it lacks.

A Markdown file becomes a page of its own, whose links are followed in turn; a notebook its cells;
a directory the first line of what each file in it says; any other file its text.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".tf": "hcl", ".sh": "bash", ".yml": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of all files that are linked, and of notebooks."""
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    waiting += [ROOT / "docs" / file.src_uri for file in files if file.src_uri.endswith(".ipynb")]
    known = {*waiting}
    while waiting:
        path = waiting.pop()
        uri = page_uri(path)
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, content=page_text(path)))
        if path.suffix == ".md":
            linked = {_target(path, link[1]) for link in LINK.finditer(path.read_text("utf-8"))}
            new = {one for one in linked - known if one.exists() and not _is_asset(one)}
            known |= new
            waiting += sorted(new)
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Lead the links of a Markdown file, or of a notebook, to the pages of what they name."""
    uri = page.file.src_uri
    path = ROOT / uri.removeprefix("source/") if uri.startswith("source/") else ROOT / "docs" / uri
    path = path if path.is_file() else path.with_suffix(".ipynb")
    if not path.is_file() or path.suffix not in (".md", ".ipynb"):
        return markdown

    def led(link: re.Match[str]) -> str:
        target = _target(path, link[1])
        if not target.exists() or target == path:  # a notebook's own file is there to download
            return link[0]
        return f"]({posixpath.relpath(page_uri(target), posixpath.dirname(uri))}{link[2]})"

    return LINK.sub(led, markdown)


def page_uri(path: Path) -> str:
    """Where the site's page of a file or directory of the checkout lies, below docs/."""
    name = path.relative_to(ROOT).as_posix()
    ours = path.is_relative_to(ROOT / "docs") and path.suffix != ".py"
    name = name.removeprefix("docs/") if ours else f"source/{name}"
    if _is_asset(path):
        return name
    return f"{name.removesuffix('.ipynb').removesuffix('.md')}.md"


def page_text(path: Path) -> str:
    """The page of a file or directory of the checkout, as Markdown."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    head = f"---\ntitle: {path.name}\nsearch: {{ exclude: true }}\n---\n\n# `{name}`\n\n"
    if path.suffix == ".ipynb":
        cells = [_cell(one) for one in json.loads(path.read_text(encoding="utf-8"))["cells"]]
        return "\n\n".join([*cells, f"[Download this notebook]({path.name})", ""])
    if path.is_dir():
        listed = [one for one in sorted(path.iterdir()) if one.is_file()]
        rows = [f"| `{one.name}` | {_first_line(one)} |" for one in listed]
        return head + "\n".join(["| file | |", "|---|---|", *rows, ""])
    return head + _fenced(path.read_text(encoding="utf-8"), LANGUAGES.get(path.suffix, "text"))


def _target(path: Path, link: str) -> Path:
    """What a link of a file names; of a directory its README, where it has one, as on GitHub."""
    target = Path(posixpath.normpath(path.parent.as_posix() + "/" + link))
    return target / "README.md" if (target / "README.md").exists() else target


def _is_asset(path: Path) -> bool:
    """Whether MkDocs serves it as it is: a picture of docs/."""
    return path.suffix in (".png", ".svg") and path.is_relative_to(ROOT / "docs")


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else _fenced(text, "python")


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _first_line(path: Path) -> str:
    """What a Python file says that it is; of another file nothing."""
    if path.suffix != ".py":
        return ""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", said.partition("\n\n")[0]).replace("|", r"\|")

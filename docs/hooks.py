"""Hooks of mkdocs, which add the notebook, and the linked pages and files outside docs/, to the site.

Links in Markdown point to files in the repository, so that they work on GitHub. On the site, the folder docs/ is the
root, and all other files keep their path in the repository. For example, results/README.md is the page results/README/.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HOME, NOTEBOOK = "docs/README.md", "docs/start/notebook.ipynb"
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"^( *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all files that are linked from pages of the site, directly or through other pages."""
    sources = [f"docs/{page.src_uri}" for page in files.documentation_pages()]
    files.append(File.generated(config, site_path(NOTEBOOK), content=notebook()))
    while sources:
        source = sources.pop()
        for target in linked(source):
            path = site_path(target)
            if target != NOTEBOOK and (ROOT / target).is_file() and files.get_file_from_path(path) is None:
                files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
                sources += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from paths in the repository to paths on the site. Links to folders lead to the repository."""
    inside = Path(page.file.abs_src_path or ROOT / NOTEBOOK)
    source = (inside if inside.is_relative_to(ROOT) else ROOT / NOTEBOOK).relative_to(ROOT).as_posix()
    folder = Path(page.file.src_uri).parent

    def rewrite(link: re.Match[str]) -> str:
        target = resolve(source, link[2])
        if (ROOT / target).is_dir():
            return f"]({config.repo_url}/tree/main/{target})" if config.repo_url else "](# 'a folder of files')"
        return link[1] + os.path.relpath(site_path(target), folder) + link[3]

    # Without this attribute, Python-Markdown does not render the text inside <details>. GitHub does not need it.
    parts = CODE.split(markdown.replace("<details>", '<details markdown="1">'))
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(rewrite, part) for part in parts)


def linked(source: str) -> Iterator[str]:
    """Yield the paths in the repository to which a page links."""
    for _, path, _ in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
        yield resolve(source, path)


def resolve(source: str, path: str) -> str:
    """Return the path in the repository of a link, or of the README if the link leads to a folder that has one."""
    target = os.path.normpath(Path(source).parent / path)
    return f"{target}/README.md" if (ROOT / target / "README.md").is_file() else target


def site_path(path: str) -> str:
    """Return the path on the site of a file in the repository, where README.md is the first page of the site."""
    path = {"README.md": HOME, NOTEBOOK: NOTEBOOK.replace(".ipynb", ".md")}.get(path, path)
    return path.removeprefix("docs/")


def notebook() -> str:
    """Convert the notebook to Markdown, with its committed outputs."""
    parts = []
    for cell in json.loads((ROOT / NOTEBOOK).read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts += [text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"]
        parts += [shown(output["data"]) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def shown(data: dict[str, Any]) -> str:
    """Convert an output to HTML, if it has HTML, or to text.

    Empty lines are removed from HTML, because Markdown would end a block of HTML at an empty line.
    """
    if "text/html" not in data:
        return f"```text\n{''.join(data['text/plain'])}\n```"
    return '<div class="output">' + re.sub(r"\n\s*", "\n", "".join(data["text/html"])) + "</div>"

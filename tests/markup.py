"""What a page, or a table in HTML or Markdown, holds, for tests."""

from html.parser import HTMLParser


class Markup(HTMLParser):
    """Tags with their attributes, words by section ("" outside of all), and the cells of tables by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections, self.inside = {"": ""}, ""
        self.rows: list[list[str]] = []
        self.feed(str(text))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.inside = dict(attrs).get("id") or ""
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.sections[self.inside] = self.sections.get(self.inside, "") + data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of a table in Markdown, without its rule."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines]

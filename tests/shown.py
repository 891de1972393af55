"""What the README and the pages of docs show: blocks of code, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
}
SHELLS = ("bash", "console", "sh", "shell")
PROGRAMS = ("hasfl", "make", "pip", "python", ".", "tensorboard", "mlflow")
FENCE = re.compile(r"^```(\w*)(.*)$")
ITEM = re.compile(r"^\s*([-*]|\d+\.)\s")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: str
    line: int
    language: str
    title: str | None  # the name of the file that a reader puts the block into
    text: str

    @property
    def at(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of every command; in a `console`, commands come after a dollar and the rest is output."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if self.language == "console" and not line.startswith("$ "):
                continue
            if words := shlex.split(line.removeprefix("$ "), comments=True):
                yield words


def blocks(page: str) -> list[Block]:
    """The blocks of a page, those between fences and those that are indented."""
    return [
        Block(page, line, language or _guessed(text), title, text)
        for line, language, title, text in _pieces(PAGES[page].read_text())
        if language is not None
    ]


def prose(page: str) -> str:
    """A page without its blocks."""
    return "\n\n".join(text for _, language, _, text in _pieces(PAGES[page].read_text()) if language is None)


def links(page: str) -> list[str]:
    """The targets of all links to files and headings of this repository."""
    found = LINK.findall(SPAN.sub("", prose(page)))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(file: Path) -> set[str]:
    """What a link to a heading of this file may end with, as code hosts name headings."""
    text = "\n".join(text for _, language, _, text in _pieces(file.read_text()) if language is None)
    slugs: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


Piece = tuple[int, str | None, str | None, str]  # first line, language of a block or None, title, text


def _pieces(text: str) -> Iterator[Piece]:
    """Prose and blocks in turns."""
    lines = text.splitlines()
    at, start, in_list = 0, 0, False
    while at < len(lines):
        line = lines[at]
        if fence := FENCE.match(line):
            yield start + 1, None, None, "\n".join(lines[start:at])
            end = lines.index("```", at + 1)
            title = re.search(r'title="([^"]+)"', fence[2])
            yield at + 2, fence[1], title and title[1], "\n".join(lines[at + 1 : end])
            at = start = end + 1
        elif line.startswith("    ") and not in_list and at > 0 and not lines[at - 1].strip():
            yield start + 1, None, None, "\n".join(lines[start:at])
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield at + 1, "", None, "\n".join(each[4:] for each in lines[at:end]).rstrip()
            at = start = end
        else:
            if ITEM.match(line):
                in_list = True
            elif line.strip() and not line.startswith(" ") and at > 0 and not lines[at - 1].strip():
                in_list = False
            at += 1
    yield start + 1, None, None, "\n".join(lines[start:])


def _guessed(text: str) -> str:
    """The language of a block that does not say it."""
    first = text.split()[0] if text.split() else ""
    return "bash" if first in PROGRAMS else "toml" if first.startswith("[") else "text"

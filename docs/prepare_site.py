"""Prepares what `make docs` builds the site from: a copy of docs in which every link leads to a page.

On a code host, pages link to files outside docs: examples, sources, reports of measurements. The site has a
page for each of these files, in the folder `files`, and links lead there.

    python docs/prepare_site.py FOLDER
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}
FENCED = re.compile(r"(^```.*?^```$)", flags=re.M | re.S)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")  # a path; web addresses have a colon


def place_on_site(file: Path) -> Path:
    """Where a file of the repository is on the site: a file of docs keeps its place."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    kept = file.suffix in (".md", *PICTURES)
    return Path("files") / file.relative_to(ROOT).with_name(file.name if kept else f"{file.name}.md")


def linked(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for part in FENCED.split(page.read_text())[::2]:
        yield from ((page.parent / path).resolve() for path in LINK.findall(part))


def text_on_site(file: Path) -> str:
    """A page with its links as they are on the site; other files become a page that shows them."""
    if file.suffix != ".md":
        shown = f"```{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n```"
        return f"# `{file.relative_to(ROOT)}`\n\n{shown}\n"
    here = place_on_site(file).parent

    def led(path: re.Match[str]) -> str:
        target = place_on_site((file.parent / path[0]).resolve())
        return Path(os.path.relpath(target, here)).as_posix()

    parts = FENCED.split(file.read_text())
    return "".join(LINK.sub(led, part) if number % 2 == 0 else part for number, part in enumerate(parts))


def prepare(folder: Path) -> None:
    """Write the pages of docs, the files that they link to, and so on, with the configuration beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    waiting = [path for path in DOCS.rglob("*") if path.suffix in (".md", *PICTURES)]
    known = set(waiting)
    for file in waiting:  # the list grows
        target = folder / "docs" / place_on_site(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in PICTURES:
            shutil.copy(file, target)
            continue
        target.write_text(text_on_site(file))
        if file.suffix == ".md":
            new = [path for path in linked(file) if path.is_file() and path not in known]
            waiting += dict.fromkeys(new)
            known |= set(new)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))

"""What pages show works as shown, links lead somewhere, and the site has every page."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

import hasfl
from tests.following import NOT_RUN, OTHER_FILES, OTHER_PROGRAMS, Reader, unknown_options
from tests.shown import DOCS, PAGES, ROOT, SHELLS, SPAN, Block, anchors, blocks, links, prose

BLOCKS = {page: blocks(page) for page in PAGES}
NAV = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
LONG = ("docs/compare-strategies.md", "docs/report.md", "docs/tour.md")
FOLLOWED = [
    pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
    for page in PAGES
    if page != "README.md" and any(block.language in (*SHELLS, "python", "toml") for block in BLOCKS[page])
]  # tests/test_readme.py follows the README


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_can_be_followed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader.at(tmp_path, monkeypatch)
    for block in BLOCKS[page]:
        reader.follow(block)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bash", "hasfl plna examples/demo.toml"),
        ("bash", "hasfl runs nowhere"),
        ("bash", "hasfl serve fed --kyes keys/fed"),
        ("bash", "make nothing"),
        ("bash", "pip install '.[never]'"),
        ("bash", "python -m benchmarks.never"),
        ("bash", "python never.py"),
        ("bash", "unheard of"),
        ("console", "$ hasfl plan never.toml\nnot a command"),
        ("python", "import hasfl\nhasfl.never"),
        ("toml", "[training]\nlerning_rate = 1"),
    ],
)
def test_what_is_wrong_is_noticed(
    language: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader.at(tmp_path, monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011 - of any kind, by parser, command or code
        reader.follow(Block("a page", 1, language, None, text))


def test_verbs_and_options_in_sentences_are_noticed() -> None:
    assert unknown_options(["plna", "FILE"]) == ["plna"]
    assert unknown_options(["serve", "local", "FILE", "--devcies", "4"]) == ["--devcies"]
    assert unknown_options(["serve", "local", "FILE", "--devices", "4"]) == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page: str) -> None:
    for span in SPAN.findall(prose(page)):
        words = span.split()
        if len(words) > 1 and words[0] == "hasfl":
            assert unknown_options(words[1:]) == [], f"{page}: {span}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in links(page):
        path, _, heading = target.partition("#")
        file = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        assert file.exists(), f"{page}: {target}"
        assert not heading or heading in anchors(file), f"{page}: {target}"


def test_every_page_is_on_the_site() -> None:
    on_site = {(DOCS / page).resolve() for page in NAV}
    listed = {(DOCS / "decisions" / target).resolve() for target in links("docs/decisions/index.md")}
    assert len(on_site) == len(NAV)
    assert on_site | listed == set(DOCS.rglob("*.md"))


def test_links_of_the_site_stay_on_the_site(tmp_path: Path) -> None:
    """Files outside docs become pages of their own."""
    runpy.run_path(str(DOCS / "prepare_site.py"))["prepare"](tmp_path)
    pages = list((tmp_path / "docs").rglob("*.md"))
    assert tmp_path / "docs" / "files" / "examples" / "own_data.py.md" in pages
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for page in pages:
        for target in re.findall(
            r"\]\(([^)\s#:]+)[)#]", re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.S)
        ):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_reference_has_every_public_name() -> None:
    here = {
        name for name, value in vars(hasfl).items() if getattr(value, "__module__", "").startswith("hasfl.")
    }
    public = {name for name in here | set(hasfl.LAZY) if not name.startswith("_")}
    shown = re.findall(r"^::: hasfl\.(\w+)$", (DOCS / "reference.md").read_text(), flags=re.M)
    assert sorted(shown) == sorted(public)


def test_pages_quote_the_examples() -> None:
    """The examples of a strategy, a rule and a term, and the scenario of the tour."""
    quoted = [*BLOCKS["docs/write-a-strategy.md"], *BLOCKS["docs/training.md"]]
    titled = [block for block in quoted if block.title]
    assert len(titled) == 3
    for block in titled:
        assert block.text in (ROOT / "examples" / str(block.title)).read_text()
    scenario = next(block for block in BLOCKS["docs/tour.md"] if block.language == "toml")
    assert tomllib.loads(scenario.text) == tomllib.loads((ROOT / "examples" / "demo.toml").read_text())


def test_nothing_is_excused_in_vain() -> None:
    commands = [
        shlex.join(words)
        for page in BLOCKS.values()
        for block in page
        if block.language in SHELLS
        for words in block.commands()
    ]
    commands += [" ".join(span.split()) for page in PAGES for span in SPAN.findall(prose(page))]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, each) for each in commands)] == []
    assert set(OTHER_FILES) <= {block.title for page in BLOCKS.values() for block in page}
    assert set(OTHER_PROGRAMS) - {"mlflow"} <= {each.split()[0] for each in commands if each.strip()}

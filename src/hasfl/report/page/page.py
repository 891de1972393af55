"""The shell of every page: one HTML file with its styles, scripts and data inside (docs/decisions/0021).

Names of runs and devices, notes and scenarios are other people's text. Three things keep it from acting:

1. Text in the page is escaped here. The scripts make nodes and never HTML.
2. The data are JSON in which `<`, `>` and `&` are written as escapes, so no text can end its element.
3. The page's policy allows no network, and only the scripts and styles whose hashes it names.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

ASSETS = files("hasfl.report.page") / "assets"
SHARED = ("page.js", "charts.js")  # scripts of every page, which come before the page's own scripts
PLOTLY = "plotly/plotly-basic.min.js"  # chart library of some pages; docs/decisions/0021 names its version
# Text of a style element that the policy must allow: plotly adds an empty one, and the policy does not check
# the rules that plotly then inserts.
EMPTY = ""
ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


@dataclass(frozen=True, slots=True)
class Section:
    """One question and its answer in words; the page's scripts draw below them."""

    id: str  # scripts draw into `page.body(id)`
    title: str
    answer: str = ""  # one or a few sentences; may be empty


def page(
    title: str,
    sections: Sequence[Section],
    data: Mapping[str, Any],
    scripts: Sequence[str],
    *,
    subtitle: str = "",
    served: bool = False,
) -> str:
    """A whole page. `scripts` are names of files in `assets`; they read the data with `page.data`.

    A page that is `served` may send requests to its own server, and to no other.
    """
    style = asset("page.css")
    styles = [style, EMPTY] if PLOTLY in scripts else [style]
    codes = [asset(name) for name in (*SHARED, *scripts)]
    links = [f'<li><a href="#{escape(each.id)}">{escape(each.title)}</a></li>' for each in sections]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(styles, codes, served=served)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#content">Skip to the content</a>',
            f'<header><div><h1>{escape(title)}</h1><p class="note">{escape(subtitle)}</p></div>',
            '<div id="tools"></div></header>',
            f'<nav aria-label="Questions"><ol>{"".join(links)}</ol></nav>',
            "<noscript><p>The charts need JavaScript. The answers in words do not.</p></noscript>",
            f'<main id="content">{"".join(map(_section, sections))}</main>',
            f'<script id="data" type="application/json">{as_script_data(data)}</script>',
            *(f"<script>{code}</script>" for code in codes),
            "</body>",
            "</html>",
            "",
        ]
    )


def asset(name: str) -> str:
    """The text of a file in `assets`, such as a script."""
    return (ASSETS / name).read_text(encoding="utf-8")


def as_script_data(data: Mapping[str, Any]) -> str:
    """Data as JSON that is safe inside a `script` element; raises ValueError for NaN and infinity."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.translate(ESCAPES)


def _policy(styles: Sequence[str], codes: Sequence[str], *, served: bool) -> str:
    """The page's content security policy: its own scripts, styles and, if `served`, server; nothing else."""
    allowed = {"script-src": codes, "style-src": styles}
    hashes = "; ".join(f"{name} {' '.join(map(_hash, texts))}" for name, texts in allowed.items())
    own_server = "connect-src 'self'; " if served else ""
    return f"default-src 'none'; {hashes}; {own_server}base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _section(section: Section) -> str:
    answer = section.answer.replace(" %", "\N{NO-BREAK SPACE}%")  # "97 %" stays on one line
    return (
        f'<section id="{escape(section.id)}" aria-labelledby="{escape(section.id)}-title">'
        f'<h2 id="{escape(section.id)}-title">{escape(section.title)}</h2>'
        f'<p class="answer">{escape(answer)}</p><div class="body"></div></section>'
    )

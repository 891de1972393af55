"""The shell of pages: one file that can do nothing but show itself."""

import base64
import hashlib
import json
import re

import pytest

from hasfl.report.page.page import PLOTLY, Section, as_script_data, asset, page

# docs/decisions/0021: whoever changes the file says there which version it is, and where it came from.
PLOTLY_SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
HOSTILE = "</script><script>alert(1)</script><!-- & \u2028 'x' \"y\""


def made(scripts: tuple[str, ...] = (PLOTLY, "plots.js")) -> str:
    return page(HOSTILE, [Section("one", HOSTILE, HOSTILE)], {"text": HOSTILE}, scripts, subtitle=HOSTILE)


def elements(html: str, tag: str) -> list[str]:
    """What stands inside the elements of a kind, as a browser sees it."""
    return re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)


def test_plotly_is_the_file_that_the_decision_names() -> None:
    found = asset(PLOTLY)
    assert hashlib.sha256(found.encode()).hexdigest() == PLOTLY_SHA256
    assert "Permission is hereby granted" in asset("plotly/LICENSE")
    assert found.lstrip().startswith("/**\n* plotly.js (basic - minified) v4.1.1\n")


def test_the_policy_allows_the_scripts_and_styles_of_the_page_and_nothing_else() -> None:
    html = made()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))

    def hashes(texts: list[str]) -> str:
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    assert rules == {
        "default-src": "'none'",
        "script-src": hashes(elements(html, "script")),
        "style-src": hashes([*elements(html, "style"), ""]),  # plotly begins with an empty style element
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert hashes([""]) not in made(("plots.js",))  # other pages do not need it


def test_text_cannot_become_markup() -> None:
    html = made()
    assert html.count("alert(1)</script>") == 0
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data) == {"text": HOSTILE}
    outside = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", outside)  # links lead to places in the page alone


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_script_data({"loss": float("nan")})

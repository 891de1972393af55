"""Writes the figures and the page of claims of the results that a folder has."""

from collections.abc import Sequence
from pathlib import Path

from hasfl.replacing import replace_file, write_text
from hasfl.report.figures import FORMATS, save_figure
from hasfl.runs.document import read_text, read_toml
from reproduction.claims.page import claims_page
from reproduction.claims_file import ClaimsFile
from reproduction.experiment import Experiment
from reproduction.figures import draw
from reproduction.files import ALL, read_experiments
from reproduction.results import Results

FIGURES, CLAIMS, RECIPE = "figures", "claims.md", "recipe.md"


def write_figure(experiment: Experiment, results: Results, out: Path) -> list[Path]:
    """Draw the figure of an experiment, as PNG and as SVG."""
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    figure, paths = draw(experiment, results), []
    for ending in FORMATS:
        paths.append(out / FIGURES / f"{experiment.name}{ending}")
        save_figure(figure, paths[-1])
    return paths


def write_claims(
    folder: Path, results: Results, out: Path, *, quick: bool, seeds: Sequence[int] | None = None
) -> Path:
    """Judge every claim by the results that are there, and write the page."""
    texts = read_toml(str(folder / "claims.toml"), ClaimsFile)
    experiments = {each.name: each for each in read_experiments([ALL], folder, quick=quick, seeds=seeds)}
    recipe = folder / RECIPE
    page = claims_page(
        experiments,
        results,
        texts,
        quick=quick,
        recipe=read_text(str(recipe)) if recipe.exists() else "",
        pictures={path.stem for path in (out / FIGURES).glob("*.svg")},
    )
    path = out / CLAIMS
    replace_file(path, lambda file: write_text(file, page))
    return path

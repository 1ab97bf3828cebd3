"""Tables of claims in the pages of reproductions, generated from the stored results.

`docs/evidence/results/SYSTEM.json` is what `cargo run --release -p kaskade-papers -- SYSTEM --json` printed: system, claims, assumptions
and files. Its claims stand between `<!-- claims of SYSTEM.json -->` and `<!-- end of claims -->`, its series by prompt between
`<!-- series of SYSTEM.json -->` and `<!-- end of series -->`. `python3 docs/check.py --write` writes the tables, and
`python3 docs/check.py` compares them.
"""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "evidence/results"
CLAIMS = re.compile(r"(<!-- claims of ([\w.]+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
SERIES = re.compile(r"(<!-- series of ([\w.]+) -->\n).*?(<!-- end of series -->)", re.DOTALL)

# A claim whose result is a series: `MODEL: WHAT by PROMPT, A / B (FIGURE)` with `128: 1.0 / 2.0; 256: ...`.
NAMED = re.compile(r"(\S+): \S+ by (\w+), ([^(]+) \(")
POINTS = re.compile(r"\d+: [^;]+(; \d+: [^;]+)+")


def result(file):
    return json.loads((RESULTS / file).read_text())


def is_series(claim):
    return NAMED.match(claim["name"]) and POINTS.fullmatch(claim["ours"])


def claims_table(file):
    claims = result(file)["claims"]
    met = sum(claim["met"] for claim in claims)
    yield f"{len(claims)} claims: **{met} met, {len(claims) - met} not.**\n"
    yield "| claim | paper | here | met |"
    yield "|---|---|---|---|"
    for claim in claims:
        ours = "in the table below" if is_series(claim) else claim["ours"]
        yield f"| {claim['name']} | {claim['paper']} | {ours} | {'yes' if claim['met'] else 'no'} |"


def series_table(file):
    heads = None
    for claim in filter(is_series, result(file)["claims"]):
        model, axis, columns = NAMED.match(claim["name"]).groups()
        if heads is None:
            heads = ["model", axis, *columns.split(" / ")]
            yield f"| {' | '.join(heads)} |"
            yield "|" + "---|" * len(heads)
        for point in claim["ours"].split("; "):
            at, _, figures = point.partition(": ")
            yield f"| {model} | {at} | {' | '.join(figures.split(' / '))} |"


def filled(text):
    """The text of a page with its tables as the stored results have them."""
    text = CLAIMS.sub(lambda found: found[1] + "\n" + "\n".join(claims_table(found[2])) + "\n\n" + found[3], text)
    return SERIES.sub(lambda found: found[1] + "\n" + "\n".join(series_table(found[2])) + "\n\n" + found[3], text)


def stale():
    pages = {page: page.read_text() for page in sorted(RESULTS.glob("*.md"))}
    for page, text in pages.items():
        if filled(text) != text:
            yield f"docs/evidence/results/{page.name}: a table is not that of the stored result; `python3 docs/check.py --write` writes it"
    for path in sorted(RESULTS.glob("*.json")):
        if "claims" in result(path.name) and not any(f"<!-- claims of {path.name} -->" in text for text in pages.values()):
            yield f"docs/evidence/results/{path.name}: no page has its claims"


def write():
    for page in sorted(RESULTS.glob("*.md")):
        page.write_text(filled(page.read_text()))

"""Tables of claims in the pages of reproductions, generated from the stored results.

`docs/evidence/results/SYSTEM.json` is what `cargo run --release -p kaskade-papers -- SYSTEM --json` printed: system, claims, assumptions
and files. Its claims stand between `<!-- claims of SYSTEM.json -->` and `<!-- end of claims -->`, its series by prompt between
`<!-- series of SYSTEM.json -->` and `<!-- end of series -->`. The rows of a study stand between `<!-- study of STUDY.json -->` and
`<!-- end of study -->`. `python3 docs/check.py --write` writes the tables, and
`python3 docs/check.py` compares them. Claims of live runs stand in tables written by hand, with the date and the load of the run.

The evidence page has a row for each paper: its claims that are met and those that are not, generated and live ones together. The page and
the README and the first page state the sums. `sums` compares them with the pages.
"""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "evidence/results"
CLAIMS = re.compile(r"(<!-- claims of ([\w.]+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
SERIES = re.compile(r"(<!-- series of ([\w.]+) -->\n).*?(<!-- end of series -->)", re.DOTALL)

STUDY = re.compile(r"(<!-- study of ([\w.]+) -->\n).*?(<!-- end of study -->)", re.DOTALL)

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


def study_table(file):
    """Systems side by side: what each missed, and its accuracy."""
    rows = result(file)["rows"]
    names = [system["system"] for system in rows[0]["systems"]]
    yield f"| pipeline | load | {' | '.join(names)} |"
    yield "|" + "---|" * (len(names) + 2)
    for row in rows:
        cells = (f"{system['missed_percent']:.2f} % ({system['accuracy_percent']:.1f})" for system in row["systems"])
        yield f"| {row['pipeline']} | {row['load']} | {' | '.join(cells)} |"


def filled(text):
    """The text of a page with its tables as the stored results have them."""
    text = CLAIMS.sub(lambda found: found[1] + "\n" + "\n".join(claims_table(found[2])) + "\n\n" + found[3], text)
    text = STUDY.sub(lambda found: found[1] + "\n" + "\n".join(study_table(found[2])) + "\n\n" + found[3], text)
    return SERIES.sub(lambda found: found[1] + "\n" + "\n".join(series_table(found[2])) + "\n\n" + found[3], text)


def counted(text):
    """Claims that are met and that are not, by the cells `yes` and `no` of a page's tables of claims."""
    cells = [
        cell.strip(" *")
        for table in re.findall(r"^\| claim \|.*(?:\n\|.*)*", text, re.MULTILINE)
        for cell in table.replace("\n", "").split("|")
    ]
    return cells.count("yes"), cells.count("no")


def sums(evidence, readme, index):
    """What the evidence page and the README state of the papers' claims and the pages of results do not."""
    all_met = all_missed = 0
    rows = re.findall(r"^\| \[[^\]]*\]\(results/(\w+\.md)\) \| (\d+) \| (\d+) \|", evidence, re.MULTILINE)
    for page, stated_met, stated_missed in rows:
        met, missed = counted((RESULTS / page).read_text())
        if (met, missed) != (int(stated_met), int(stated_missed)):
            yield f"docs/evidence/index.md: {page} has {met} claims that are met and {missed} that are not"
        all_met, all_missed = all_met + met, all_missed + missed
    for name, text, sentence in [
        ("docs/evidence/index.md", evidence, f"Of {all_met + all_missed} claims, **{all_met} are met and {all_missed} are not**"),
        ("README.md", readme, f"{all_met} claims are met, {all_missed} are not"),
        ("docs/index.md", index, f"{all_met} claims are met, {all_missed} are not"),
    ]:
        if sentence not in text:
            yield f"{name}: the pages of results have it that `{sentence}`"


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

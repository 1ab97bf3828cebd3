//! The results of a run as a line, and as the table in docs/evidence/results/faults.md.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::scenarios::Scenario;
use super::verdict::Verdict;

/// The suite writes the part of the document between these two lines.
const MARKS: [&str; 2] = ["<!-- faults -->", "<!-- /faults -->"];

/// The result of one run, printed when it ends.
pub(super) fn line(one: &Scenario, verdict: &Verdict, took: Duration) -> String {
    if let Some(why) = &verdict.skipped {
        return format!("\n!! {} WAS NOT RUN: {why}\n", one.name);
    }
    let mark = if verdict.broken.is_empty() {
        "held  "
    } else {
        "BROKEN"
    };
    let mut line = format!("{mark} {:<28} {:>5.1} s", one.name, took.as_secs_f64());
    if let Some(figures) = &verdict.figures {
        let _ = write!(
            line,
            "  {} requests, {} answered, {} lost, {} twice, {} late",
            figures.requests, figures.answered, figures.lost, figures.doubled, figures.late
        );
        if !figures.faults.is_empty() {
            let _ = write!(line, ", errors: {}", figures.faults);
        }
        if let Some(recovery) = figures.recovery {
            let _ = write!(line, ", recovered in {}", millis(recovery));
        }
    }
    for note in &verdict.notes {
        let _ = write!(line, "\n         {note}");
    }
    for broken in &verdict.broken {
        let _ = write!(line, "\n         BROKEN: {broken}");
    }
    line
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Writes the table into docs/evidence/results/faults.md.
pub(super) fn write(rows: &[(Scenario, Verdict)]) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/evidence/results/faults.md");
    let text = std::fs::read_to_string(&path)?;
    let [from, to] = MARKS;
    let parts = text.split_once(from).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(to)?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        anyhow::bail!("{} lacks the marks of the table: {from} ... {to}", path.display());
    };
    std::fs::write(&path, format!("{before}{from}\n{}{to}{after}", table(rows)))?;
    Ok(())
}

fn table(rows: &[(Scenario, Verdict)]) -> String {
    let mut text = String::from(
        "| fault | what is done, and what must hold | requests | answered | typed errors | lost | twice | late | recovery | seen |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (one, verdict) in rows {
        let held = if verdict.skipped.is_some() {
            "not run"
        } else if verdict.broken.is_empty() {
            "held"
        } else {
            "**broken**"
        };
        let mut seen = vec![held.to_owned()];
        seen.extend(verdict.notes.iter().cloned());
        seen.extend(verdict.broken.iter().map(|broken| format!("**not: {broken}**")));
        let cells = verdict.figures.as_ref().map_or_else(
            || vec![String::new(); 7],
            |figures| {
                vec![
                    figures.requests.to_string(),
                    figures.answered.to_string(),
                    figures.faults.clone(),
                    figures.lost.to_string(),
                    figures.doubled.to_string(),
                    figures.late.to_string(),
                    figures.recovery.map(millis).unwrap_or_default(),
                ]
            },
        );
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            one.name,
            one.what,
            cells.join(" | "),
            seen.join("; ")
        );
    }
    text
}

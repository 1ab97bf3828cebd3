//! The papers' headline comparisons: claims beside the results of this code.

use std::path::PathBuf;

use kaskade_app::report::table::{Align, table};
use serde::Serialize;

/// The result of a reproduction.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Reproduction {
    /// The system whose paper it is.
    pub system: &'static str,
    /// The paper's claim, and the result.
    pub claims: Vec<Claim>,
    /// Assumptions.
    pub assumptions: Vec<String>,
    /// The pictures that were drawn.
    pub files: Vec<PathBuf>,
}

/// One claim of a paper.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    /// Name.
    pub name: String,
    /// The paper's figure.
    pub paper: String,
    /// The result of this code.
    pub ours: String,
    /// Whether the result confirms the claim.
    pub met: bool,
    /// Why the claim is not met; otherwise a remark.
    pub note: String,
}

impl Reproduction {
    /// Formats the claims as a table for people, followed by the notes.
    pub fn as_text(&self) -> String {
        let rows = self.claims.iter().map(|claim| {
            [
                claim.name.clone(),
                claim.paper.clone(),
                claim.ours.clone(),
                if claim.met { "yes" } else { "no" }.to_owned(),
            ]
        });
        let claims = table(
            [
                ("claim", Align::Left),
                ("the paper", Align::Left),
                ("here", Align::Left),
                ("met", Align::Left),
            ],
            rows,
        );
        let explained = self.claims.iter().filter(|claim| !claim.note.is_empty());
        let notes: Vec<String> = explained
            .map(|claim| format!("- {}: {}", claim.name, claim.note))
            .collect();
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        format!(
            "{claims}\n{}\n\nassumed:\n{}\n\ndrawn: {}",
            notes.join("\n"),
            self.assumptions
                .iter()
                .map(|line| format!("- {line}"))
                .collect::<Vec<_>>()
                .join("\n"),
            files.join(", ")
        )
    }
}

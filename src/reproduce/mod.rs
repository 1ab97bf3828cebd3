//! The papers' headline comparisons, run again (DESIGN §5c): claims beside what was found here.

mod abreast;
pub(crate) mod cascadeserve;
pub(crate) mod hybridcache;
pub(crate) mod hybridserve;
pub(crate) mod loki;

use std::path::PathBuf;

use serde::Serialize;

use crate::report::table::{Align, table};

/// Everything that a reproduction ends with.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Reproduction {
    /// The system whose paper it is.
    pub(crate) system: &'static str,
    /// What the paper says, and what was found.
    pub(crate) claims: Vec<Claim>,
    /// What had to be assumed.
    pub(crate) assumptions: Vec<String>,
    /// The pictures that were drawn.
    pub(crate) files: Vec<PathBuf>,
}

/// One claim of a paper.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Claim {
    /// What it is about.
    pub(crate) name: String,
    /// What the paper says.
    pub(crate) paper: String,
    /// What was found.
    pub(crate) ours: String,
    /// Whether that bears the claim out; computed.
    pub(crate) met: bool,
    /// Why not, where it does not; otherwise what there is to say.
    pub(crate) note: String,
}

impl Reproduction {
    /// For people: the claims as a table, then the notes.
    pub(crate) fn as_text(&self) -> String {
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

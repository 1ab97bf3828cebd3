//! The family file: task, classes, variants and data that several apps share.

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::App;
use super::data::DataSets;
use super::error::{ConfigError, line_of, malformed, read};
use super::task::Task;
use super::variant::VariantConfig;

/// A family in a file of its own: the tables of app.toml that do not depend on the deployment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FamilyFile {
    /// Task of the models.
    #[serde(default)]
    pub task: Task,
    /// Names of the classes in the order of the answers.
    #[serde(default)]
    pub classes: Vec<String>,
    /// The variants, smallest to largest.
    pub variants: Vec<VariantConfig>,
    /// Labelled samples to profile and to evaluate on.
    #[serde(default)]
    pub data: DataSets,
}

impl FamilyFile {
    /// Parses a family from TOML.
    ///
    /// # Errors
    /// Line and reason of the first malformed value.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error| malformed(text, &error))
    }

    /// Loads a family file. Paths in it become relative to its folder, as in [`App::load`].
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`], or [`ConfigError::Malformed`] with the line of the first malformed value.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let mut family = Self::parse(&text).map_err(|(line, reason)| ConfigError::Malformed {
            path: path.to_owned(),
            line,
            reason,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for variant in &mut family.variants {
            variant.resolve(folder);
        }
        family.data.resolve(folder, |name| std::env::var_os(name));
        Ok(family)
    }
}

impl App {
    /// Replaces the file that `family` names by this family.
    #[must_use]
    pub fn with_family(self, family: FamilyFile) -> Self {
        let FamilyFile {
            task,
            classes,
            variants,
            data,
        } = family;
        Self {
            family: None,
            task,
            classes,
            variants,
            data,
            ..self
        }
    }
}

/// The tables that an app has in its own file or in its family file.
#[derive(Deserialize)]
struct Tables {
    family: Option<IgnoredAny>,
    task: Option<Spanned<IgnoredAny>>,
    classes: Option<Spanned<IgnoredAny>>,
    variants: Option<Spanned<IgnoredAny>>,
    data: Option<Spanned<IgnoredAny>>,
}

/// Checks that an app has its family inline or in a file, not both.
///
/// # Errors
/// Line and reason of the first such table in a file with `family`.
pub(super) fn check_tables(text: &str) -> Result<(), (usize, String)> {
    let tables: Tables = toml::from_str(text).map_err(|error| malformed(text, &error))?;
    if tables.family.is_none() {
        return Ok(());
    }
    let inline = [
        ("task", tables.task),
        ("classes", tables.classes),
        ("variants", tables.variants),
        ("data", tables.data),
    ];
    let first = inline
        .into_iter()
        .filter_map(|(name, table)| Some((table?.span().start, name)))
        .min();
    match first {
        None => Ok(()),
        Some((start, name)) => Err((
            line_of(text, start),
            format!(
                "`{name}` belongs to the family file that `family` names; keep it there, or leave `family` out"
            ),
        )),
    }
}

//! The part of a checkpoint that one model is, such as the language model of one that also reads images.

use super::Weights;
use super::elements::stored_type;

/// How the names of a part's tensors begin in the file.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The prefix of its tensors; empty if the file is one model.
    prefix: &'static str,
    /// Whether the base model's prefix follows it.
    has_base: bool,
}

impl Part {
    /// Returns the names that a tensor may have in the file.
    pub(super) fn names(&self, name: &str) -> impl Iterator<Item = String> {
        let with_prefix = (!self.prefix.is_empty()).then(|| format!("{}{name}", self.prefix));
        [Some(name.to_owned()), with_prefix].into_iter().flatten()
    }

    /// Returns the name of a tensor of the file within its part.
    pub(super) fn inside<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(self.prefix).unwrap_or(name)
    }

    /// Returns the name that a tensor would have in the file; `base` is the prefix of the base model's tensors.
    pub(super) fn expected(&self, name: &str, base: &str) -> String {
        match name.strip_prefix(base) {
            _ if self.has_base => format!("{}{name}", self.prefix),
            Some(rest) if !self.prefix.is_empty() => format!("{}{rest}", self.prefix),
            _ => name.to_owned(),
        }
    }
}

impl Weights {
    /// Keeps the tensors of one model of several in the file. Its tensors begin with the first of `prefixes` that the file has,
    /// those of its head perhaps with none; `base` is the prefix of its base model's tensors, which may follow or not. Drops
    /// tensors that begin with one of `others`, also behind `model.`.
    pub(crate) fn keep_part(&mut self, prefixes: &[&'static str], base: &str, others: &[&str]) {
        self.remaining.retain(|name, _| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            !others.iter().any(|other| name.starts_with(other))
        });
        self.stored = stored_type(self.remaining.values().map(|(_, info)| info));
        let mut known = prefixes.iter().copied();
        self.part = match known.find(|prefix| self.contains_prefix(prefix)) {
            Some(prefix) => Part {
                prefix,
                has_base: self.contains_prefix(&format!("{prefix}{base}")),
            },
            None => Part::default(),
        };
    }
}

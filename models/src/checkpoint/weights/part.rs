//! Selects one model of a checkpoint with several, such as the language model of a multimodal model.

use super::Weights;
use super::elements::stored_type;

/// Name prefixes of a part's tensors in the file.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Prefix of the part; empty if the file contains one model.
    prefix: &'static str,
    /// Whether the base model's prefix follows `prefix`.
    has_base: bool,
}

impl Part {
    /// Returns the possible names of a tensor in the file.
    pub(super) fn names(&self, name: &str) -> impl Iterator<Item = String> {
        let with_prefix = (!self.prefix.is_empty()).then(|| format!("{}{name}", self.prefix));
        [Some(name.to_owned()), with_prefix].into_iter().flatten()
    }

    /// Strips the prefix of the part from a tensor name.
    pub(super) fn inside<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(self.prefix).unwrap_or(name)
    }

    /// Returns the expected name of a tensor in the file; `base` is the prefix of the base model's tensors.
    pub(super) fn expected(&self, name: &str, base: &str) -> String {
        match name.strip_prefix(base) {
            _ if self.has_base => format!("{}{name}", self.prefix),
            Some(rest) if !self.prefix.is_empty() => format!("{}{rest}", self.prefix),
            _ => name.to_owned(),
        }
    }
}

impl Weights {
    /// Keeps the tensors of one model of several in the file. Its prefix is the first of `prefixes` that occurs; the
    /// tensors of its head may lack it, and `base`, the prefix of its base model, may follow it. Drops tensors with a
    /// prefix in `others`, also after `model.`.
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

//! Validation of a pipeline. The planners rely on it and do not repeat its checks.

use std::collections::{BTreeMap, BTreeSet};

use super::{PathAccuracy, Pipeline, ProfiledPath, Task, TaskTree, TaskVariant};
use crate::fan_in::MAX_BRANCHES;
use crate::invalid::{Invalid, Path, Problem};

impl Pipeline {
    /// Checks everything that the types cannot express: names, the tree, ranges, batch sizes, and that every path has an accuracy.
    ///
    /// # Errors
    /// The first [`Invalid`] found, with the path to it.
    pub fn validate(&self) -> Result<(), Invalid> {
        let root = Path::Root;
        root.field("name").name(&self.name)?;
        root.field("slo_us").positive(self.slo_us as f64)?;
        batches(&root.field("batches"), &self.batches)?;
        let list = root.field("tasks");
        list.not_empty(&self.tasks)?;
        let mut names = BTreeSet::new();
        for (index, task) in self.tasks.iter().enumerate() {
            list.index(index).field("name").new_name(&task.name, &mut names)?;
        }
        let tree = TaskTree::new(self)?;
        let mut names = BTreeSet::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let path = list.index(index);
            let path = path.field("variants");
            path.not_empty(&task.variants)?;
            for (index, variant) in task.variants.iter().enumerate() {
                let path = path.index(index);
                path.field("name").new_name(&variant.name, &mut names)?;
                self.variant_is_sound(&path, task, variant)?;
            }
        }
        match &self.path_accuracy {
            PathAccuracy::Product => Ok(()),
            PathAccuracy::Profiled { paths } => self.paths_are_sound(&tree, paths),
        }
    }

    fn variant_is_sound(&self, path: &Path<'_>, task: &Task, variant: &TaskVariant) -> Result<(), Invalid> {
        path.field("accuracy").unit_interval(variant.accuracy)?;
        let factor = path.field("multiplicative_factor");
        factor.not_negative(variant.multiplicative_factor)?;
        let latency = path.field("latency");
        latency.not_empty(&variant.latency)?;
        for (index, sample) in variant.latency.iter().enumerate() {
            let path = latency.index(index);
            let expected = self.batches.get(index).copied();
            if expected != Some(sample.batch) {
                return path.field("batch").fail(Problem::Hole {
                    found: sample.batch,
                    expected,
                });
            }
            path.field("us").positive(sample.us)?;
        }
        let ratios = path.field("branch_ratios");
        // First, since a misspelt child is also one without a ratio.
        let stray = |child: &&String| !task.children.contains(*child);
        if let Some(name) = variant.branch_ratios.keys().find(stray) {
            return ratios.fail(Problem::Unknown {
                what: "child",
                name: name.clone(),
            });
        }
        for child in &task.children {
            let ratio = variant.branch_ratios.get(child);
            let at = ratios.key(child);
            at.unit_interval(ratio.copied().unwrap_or(f64::NAN))?;
            // A plan refuses more, and its fields are not what the user wrote.
            factor.within(
                variant.multiplicative_factor,
                variant.multiplicity(child) <= MAX_BRANCHES as f64,
                "a factor of at most 4096 requests to each child, as many branches as are gathered",
            )?;
        }
        Ok(())
    }

    fn paths_are_sound(&self, tree: &TaskTree, paths: &[ProfiledPath]) -> Result<(), Invalid> {
        let root = Path::Root;
        let at = root.field("path_accuracy");
        let list = at.field("paths");
        let mut known = BTreeSet::new();
        for (index, path) in paths.iter().enumerate() {
            let at = list.index(index);
            at.field("accuracy").unit_interval(path.accuracy)?;
            let variants = at.field("variants");
            let trail = self.trail(&variants, tree, path)?;
            if !known.insert(trail) {
                let name = path.variants.join(" -> ");
                return variants.fail(Problem::Twice { name });
            }
        }
        let expected = |sink: &usize| -> usize {
            let variants = |task: &usize| self.tasks.get(*task).map_or(0, |task| task.variants.len());
            tree.trail(*sink).iter().map(variants).product()
        };
        let expected = tree.sinks.iter().map(expected).sum();
        if known.len() == expected {
            Ok(())
        } else {
            let found = known.len();
            list.fail(Problem::Paths { found, expected })
        }
    }

    fn trail(
        &self,
        at: &Path<'_>,
        tree: &TaskTree,
        path: &ProfiledPath,
    ) -> Result<Vec<(usize, usize)>, Invalid> {
        let mut trail: Vec<(usize, usize)> = Vec::new();
        for (index, name) in path.variants.iter().enumerate() {
            let Some(place) = self.variant(name) else {
                return at.index(index).fail(Problem::Unknown {
                    what: "variant",
                    name: name.clone(),
                });
            };
            if tree.parent(place.0) != trail.last().map(|(task, _)| *task) {
                let name = path.variants.join(" -> ");
                return at.fail(Problem::NotAPath { name });
            }
            trail.push(place);
        }
        match trail.last() {
            Some((task, _)) if tree.sinks.contains(task) => Ok(trail),
            _ => at.fail(Problem::NotAPath {
                name: path.variants.join(" -> "),
            }),
        }
    }

    /// Profiled accuracies by the variants' places, from the root to a sink; `None` where products stand in.
    pub fn profiled(&self) -> Option<BTreeMap<Vec<(usize, usize)>, f64>> {
        let PathAccuracy::Profiled { paths } = &self.path_accuracy else {
            return None;
        };
        let place = |path: &ProfiledPath| {
            let places = path.variants.iter().map(|name| self.variant(name));
            Some((places.collect::<Option<Vec<_>>>()?, path.accuracy))
        };
        Some(paths.iter().filter_map(place).collect())
    }
}

fn batches(path: &Path<'_>, batches: &[u32]) -> Result<(), Invalid> {
    path.not_empty(batches)?;
    let mut least = 1;
    for (index, batch) in batches.iter().enumerate() {
        let fits = *batch >= least && (index > 0 || *batch == 1);
        path.index(index)
            .within(f64::from(*batch), fits, "ascending from 1")?;
        least = batch.saturating_add(1);
    }
    Ok(())
}

//! The shape of a pipeline, in numbers: tasks by their place in the list.

use std::collections::BTreeMap;

use super::Pipeline;
use crate::invalid::{Invalid, Path, Problem};

/// Parents, children and sinks of a checked pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskTree {
    /// Parent of each task.
    pub parent: Vec<Option<usize>>,
    /// Children of each task, in the order in which they are listed.
    pub children: Vec<Vec<usize>>,
    /// The root first, parents before their children.
    pub order: Vec<usize>,
    /// The tasks without children, in that order.
    pub sinks: Vec<usize>,
}

impl TaskTree {
    /// The tree of a pipeline whose names are sound.
    ///
    /// # Errors
    /// An [`Invalid`] that names the task: an unknown child, a second parent, a second root, a cycle.
    pub fn new(pipeline: &Pipeline) -> Result<Self, Invalid> {
        let tasks = Path::Root.field("tasks");
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for (place, task) in pipeline.tasks.iter().enumerate() {
            places.entry(task.name.as_str()).or_insert(place);
        }
        let mut parent: Vec<Option<usize>> = vec![None; pipeline.tasks.len()];
        let mut children = vec![Vec::new(); pipeline.tasks.len()];
        for (place, task) in pipeline.tasks.iter().enumerate() {
            let (at, list) = (tasks.index(place), &mut children);
            let at = at.field("children");
            for (index, child) in task.children.iter().enumerate() {
                let at = at.index(index);
                let Some(target) = places.get(child.as_str()) else {
                    let name = child.clone();
                    return at.fail(Problem::Unknown { what: "task", name });
                };
                let slot = parent.get_mut(*target);
                if let Some(first) = slot.as_ref().and_then(|slot| **slot) {
                    return at.fail(Problem::SecondParent {
                        task: child.clone(),
                        first: name(pipeline, first),
                        second: task.name.clone(),
                    });
                }
                if let (Some(slot), Some(list)) = (slot, list.get_mut(place)) {
                    *slot = Some(place);
                    list.push(*target);
                }
            }
        }
        let order = order(pipeline, &parent, &children)?;
        let is_sink = |task: &usize| children.get(*task).is_some_and(Vec::is_empty);
        let sinks = order.iter().copied().filter(is_sink).collect();
        Ok(Self {
            parent,
            children,
            order,
            sinks,
        })
    }

    /// The children of a task, as they are listed.
    pub fn children(&self, task: usize) -> &[usize] {
        self.children.get(task).map_or(&[], Vec::as_slice)
    }

    /// The parent of a task; `None` for the root.
    pub fn parent(&self, task: usize) -> Option<usize> {
        self.parent.get(task).copied().flatten()
    }

    /// The tasks from the root to this one.
    pub fn trail(&self, task: usize) -> Vec<usize> {
        let up = std::iter::successors(Some(task), |task| self.parent(*task));
        let mut trail: Vec<usize> = up.collect();
        trail.reverse();
        trail
    }
}

fn name(pipeline: &Pipeline, task: usize) -> String {
    let task = pipeline.tasks.get(task);
    task.map(|task| task.name.clone()).unwrap_or_default()
}

/// Parents first. What the root does not reach has a parent each, so it goes in a circle.
fn order(
    pipeline: &Pipeline,
    parent: &[Option<usize>],
    children: &[Vec<usize>],
) -> Result<Vec<usize>, Invalid> {
    let tasks = Path::Root.field("tasks");
    let mut roots = (0..parent.len()).filter(|task| parent.get(*task).is_some_and(Option::is_none));
    let Some(root) = roots.next() else {
        return tasks.fail(Problem::Cycle {
            task: name(pipeline, 0),
        });
    };
    if let Some(second) = roots.next() {
        return tasks.index(second).fail(Problem::SecondRoot {
            first: name(pipeline, root),
            second: name(pipeline, second),
        });
    }
    let mut order = vec![root];
    let mut next = 0;
    while let Some(task) = order.get(next).copied() {
        order.extend(children.get(task).into_iter().flatten());
        next += 1;
    }
    match (0..parent.len()).find(|task| !order.contains(task)) {
        Some(task) => tasks.index(task).fail(Problem::Cycle {
            task: name(pipeline, task),
        }),
        None => Ok(order),
    }
}

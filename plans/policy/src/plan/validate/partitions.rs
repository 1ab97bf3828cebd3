//! Validation of a chain of partitions (HybridServe §V-A): they follow each other by `next`, with no stage in between.

use super::super::{Edge, Exit, Partition, Stage, Target, Wiring};
use crate::invalid::{Invalid, Path, Problem};
use crate::partition::ModelPart;

/// Checks that every partition but the last leads to the next one, every other edge to a whole model or a first partition, and that only
/// `next` pairs senders with receivers.
pub(super) fn chained(path: &Path<'_>, wiring: &Wiring) -> Result<(), Invalid> {
    let stages = path.field("stages");
    for (index, stage) in wiring.stages.iter().enumerate() {
        inside(&stages.index(index).field("partition"), stage.partition)?;
    }
    enters(&path.field("entry"), &wiring.entry, wiring)?;
    let ensemble = path.field("ensemble");
    for (index, edge) in wiring.ensemble.iter().enumerate() {
        enters(&ensemble.index(index), edge, wiring)?;
    }
    for (index, stage) in wiring.stages.iter().enumerate() {
        exits(&stages.index(index), stage, wiring)?;
    }
    Ok(())
}

/// A partition is one of those that there are.
fn inside(path: &Path<'_>, partition: Option<Partition>) -> Result<(), Invalid> {
    partition.map_or(Ok(()), |partition| {
        path.field("index").within(
            f64::from(partition.index),
            partition.index < partition.of,
            "below the number of partitions `of`",
        )
    })
}

/// A partition that is not the last leads to the next; whatever else a stage leads to begins there.
fn exits(path: &Path<'_>, stage: &Stage, wiring: &Wiring) -> Result<(), Invalid> {
    let exit = path.field("exit");
    if let Some(partition) = stage
        .partition
        .filter(|partition| partition.index + 1 < partition.of)
    {
        return match &stage.exit {
            Exit::Next { to } => follows(&exit.field("to"), stage, partition, to, wiring),
            _ => exit.fail(Problem::NotChained {
                partition: ModelPart(Some(partition)),
            }),
        };
    }
    match &stage.exit {
        Exit::Reply => Ok(()),
        Exit::Next { to } => begins(&exit.field("to"), to, wiring),
        Exit::FanOut { children } => {
            let path = exit.field("children");
            let mut children = children.iter().enumerate();
            children.try_for_each(|(index, child)| enters(&path.index(index).field("to"), &child.to, wiring))
        }
        Exit::Bands { bands } => {
            let path = exit.field("bands");
            bands
                .iter()
                .enumerate()
                .try_for_each(|(index, band)| match &band.to {
                    Target::Reply => Ok(()),
                    Target::Stage(edge) => {
                        enters(&path.index(index).field("to").field("stage"), edge, wiring)
                    }
                })
        }
    }
}

/// An edge that is no `next`.
fn enters(path: &Path<'_>, edge: &Edge, wiring: &Wiring) -> Result<(), Invalid> {
    if !edge.pairs.is_empty() {
        return path.field("pairs").fail(Problem::PairsOutsideNext);
    }
    begins(path, edge, wiring)
}

/// The edge leads to a whole model or a first partition.
fn begins(path: &Path<'_>, edge: &Edge, wiring: &Wiring) -> Result<(), Invalid> {
    match target(edge, wiring) {
        Some((stage, Some(partition))) if partition.index > 0 => {
            path.field("stage").fail(Problem::BrokenChain {
                variant: stage.variant.clone(),
                found: ModelPart(Some(partition)),
                expected: ModelPart(Some(Partition {
                    index: 0,
                    ..partition
                })),
            })
        }
        _ => Ok(()),
    }
}

/// The edge leads to the partition after this one.
fn follows(
    path: &Path<'_>,
    stage: &Stage,
    partition: Partition,
    edge: &Edge,
    wiring: &Wiring,
) -> Result<(), Invalid> {
    let next = Some(Partition {
        index: partition.index + 1,
        of: partition.of,
    });
    match target(edge, wiring) {
        Some((to, found)) if to.variant != stage.variant || found != next => {
            path.field("stage").fail(Problem::BrokenChain {
                variant: to.variant.clone(),
                found: ModelPart(found),
                expected: ModelPart(next),
            })
        }
        _ => Ok(()),
    }
}

/// Returns the stage and partition that an edge leads to; that it leads somewhere is checked with the graph.
fn target<'a>(edge: &Edge, wiring: &'a Wiring) -> Option<(&'a Stage, Option<Partition>)> {
    let mut stages = wiring.stages.iter();
    let stage = stages.find(|stage| stage.name == edge.stage)?;
    Some((stage, stage.partition))
}

#[cfg(test)]
mod tests;

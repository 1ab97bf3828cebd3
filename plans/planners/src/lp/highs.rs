//! HiGHS, linked in. It is C++ and needs cmake, a C++ compiler and libclang to build, hence a feature.

use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};

use super::program::{Limits, LpError, Program, Relation};

/// The values of a program's variables, unchecked.
pub(super) fn solve(program: &Program, limits: &Limits) -> Result<Vec<f64>, LpError> {
    let mut problem = RowProblem::default();
    let columns: Vec<Col> = program
        .columns
        .iter()
        .map(|column| {
            problem.add_column_with_integrality(column.cost, column.low..=column.high, column.integer)
        })
        .collect();
    for constraint in &program.constraints {
        let terms: Vec<(Col, f64)> = constraint
            .terms
            .iter()
            .filter_map(|(place, factor)| Some((*columns.get(*place)?, *factor)))
            .collect();
        match constraint.relation {
            Relation::AtMost => problem.add_row(..=constraint.right, terms),
            Relation::Equal => problem.add_row(constraint.right..=constraint.right, terms),
            Relation::AtLeast => problem.add_row(constraint.right.., terms),
        }
    }
    let mut model = problem.optimise(Sense::Minimise);
    model.make_quiet();
    if let Some(time) = limits.time {
        model.set_option("time_limit", time.as_secs_f64());
    }
    if let Some(nodes) = limits.nodes {
        model.set_option("mip_max_nodes", i32::try_from(nodes).unwrap_or(i32::MAX));
    }
    model.set_option("mip_rel_gap", limits.gap);
    // With it, version 1.15 calls answers optimal that are not: on the published pipeline at 1,500 requests/s the flow with one batch size
    // lost 0.9 points. Without it these programs take as long.
    model.set_option("presolve", "off");
    // Planning happens beside serving: it may have one core.
    model.set_option("threads", 1);
    let solved = model
        .try_solve()
        .map_err(|status| LpError::Failed(format!("HiGHS ended with {status:?}")))?;
    match solved.status() {
        HighsModelStatus::Infeasible => return Err(LpError::Infeasible),
        HighsModelStatus::Unbounded => return Err(LpError::Unbounded),
        // Nothing can be asked about a search that ended before it had anything.
        _ if solved.int_info_value(c"primal_solution_status") == Ok(HighsSolutionStatus::Feasible as i64) => {
        }
        _ => return Err(LpError::Interrupted),
    }
    Ok(solved.get_solution().columns().to_vec())
}

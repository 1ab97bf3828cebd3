//! The embedded solver, microlp.

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolutionStatus, SolveOptions};

use super::program::{Limits, LpError, Program, Relation, Solution};

pub(super) fn solve(program: &Program, limits: &Limits) -> Result<Solution, LpError> {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let variables: Vec<microlp::Variable> = program
        .columns
        .iter()
        .map(|column| {
            if column.integer {
                problem.add_integer_var(column.cost, (column.low as i32, column.high as i32))
            } else {
                problem.add_var(column.cost, (column.low, column.high))
            }
        })
        .collect();
    for constraint in &program.constraints {
        let terms: Vec<(microlp::Variable, f64)> = constraint
            .terms
            .iter()
            .filter_map(|(variable, factor)| Some((*variables.get(*variable)?, *factor)))
            .collect();
        let relation = match constraint.relation {
            Relation::AtMost => ComparisonOp::Le,
            Relation::Equal => ComparisonOp::Eq,
            Relation::AtLeast => ComparisonOp::Ge,
        };
        problem.add_constraint(terms.as_slice(), relation, constraint.right);
    }
    let options = options(limits, &variables);
    // Sometimes a node of the search is so nearly infeasible that the simplex method fails although the program is sound:
    // without presolve and start the search takes another path.
    let again = || {
        let mut plain = options.clone();
        (plain.presolve, plain.warm_start) = (false, None);
        problem.solve_with(plain)
    };
    let outcome = match problem.solve_with(options.clone()) {
        Err(microlp::Error::InternalError(_)) if program.integers() > 0 => again(),
        first => first,
    };
    let outcome = outcome.map_err(|error| match error {
        microlp::Error::Infeasible => LpError::Infeasible,
        microlp::Error::Unbounded => LpError::Unbounded,
        other => LpError::Failed(other.to_string()),
    })?;
    let solution = outcome.solution().ok_or(LpError::Interrupted)?;
    let value = |(variable, column): (&microlp::Variable, &super::program::Column)| {
        let value = solution.var_value(*variable);
        if column.integer { value.round() } else { value }
    };
    Ok(Solution {
        cost: solution.objective(),
        proven: solution.status() == SolutionStatus::Optimal,
        values: variables.iter().zip(&program.columns).map(value).collect(),
    })
}

fn options(limits: &Limits, variables: &[microlp::Variable]) -> SolveOptions {
    let mut options = SolveOptions::default();
    options.node_limit = limits.nodes;
    options.time_limit = limits.time;
    options.mip_gap = limits.gap;
    if limits.start.len() == variables.len() && !variables.is_empty() {
        let start = variables.iter().copied().zip(limits.start.iter().copied());
        options.warm_start = Some(start.collect());
    }
    options
}

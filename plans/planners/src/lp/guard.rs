//! Verifies the solutions of another solver: some call the incumbent of a time-out an optimum, or round to seven digits.
//! Only the integers are taken. They are rounded and fixed, the rest of the program is solved by the embedded solver, and the result
//! is checked against every constraint.

use super::embedded;
use super::program::{Limits, LpError, Program, Solution, Solver};

/// Tolerance of an integer.
const WHOLE: f64 = 1e-3;

/// Tolerance of a constraint, relative to its right side.
const SLACK: f64 = 1e-6;

/// The solution that these values of the integer variables lead to, with nothing proven of it.
///
/// # Errors
/// [`LpError::InvalidSolution`] if a value is not whole, is out of bounds, or leaves the program infeasible.
#[cfg_attr(
    not(any(feature = "external-solvers", feature = "highs", test)),
    expect(dead_code, reason = "only other solvers' solutions are verified")
)]
pub(super) fn verified(program: &Program, solver: Solver, values: &[f64]) -> Result<Solution, LpError> {
    let invalid = |reason: String| Err(LpError::InvalidSolution { solver, reason });
    if values.len() != program.columns.len() {
        let (found, expected) = (values.len(), program.columns.len());
        return invalid(format!("{found} values for {expected} variables"));
    }
    let mut fixed = program.clone();
    for (place, (column, value)) in fixed.columns.iter_mut().zip(values).enumerate() {
        if !column.integer {
            continue;
        }
        let whole = value.round();
        // Written so that NaN fails too.
        if !((value - whole).abs() <= WHOLE && whole >= column.low && whole <= column.high) {
            return invalid(format!("variable {place} is {value}"));
        }
        (column.low, column.high, column.integer) = (whole, whole, false);
    }
    let solution = match embedded::solve(&fixed, &Limits::NONE) {
        Err(LpError::Infeasible) => {
            return invalid("the program is infeasible with its integer values fixed".to_owned());
        }
        other => other?,
    };
    let missed = program.violation(&solution.values);
    if missed > SLACK {
        return Err(LpError::Failed(format!("a constraint is violated by {missed:e}")));
    }
    Ok(Solution {
        cost: program.cost(&solution.values),
        proven: program.integers() == 0,
        values: solution.values,
    })
}

//! Linear programs, stated without a word of who solves them.
//!
//! The solver is embedded and pure Rust. Planners build a [`Program`] and read a [`Solution`]; a better solver, or one that is
//! licensed, would be changed in here.

use microlp::{ComparisonOp, OptimizationDirection, Problem};
use thiserror::Error;

/// A linear program over variables that are not negative: minimise a cost subject to rows.
///
/// Keep the coefficients of a row, and those of a variable, within six orders of magnitude of each other, by choice of units.
#[derive(Debug, Clone, Default)]
pub struct Program {
    costs: Vec<f64>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    terms: Vec<(usize, f64)>,
    relation: Relation,
    right: f64,
}

/// How the two sides of a row compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Left is at most right.
    AtMost,
    /// The sides are equal.
    Equal,
    /// Left is at least right.
    AtLeast,
}

/// A variable of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable(usize);

/// An optimum.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The cost.
    pub cost: f64,
    values: Vec<f64>,
}

impl Solution {
    /// The value of a variable; 0 for one of another program.
    pub fn value(&self, variable: Variable) -> f64 {
        self.values.get(variable.0).copied().unwrap_or(0.0)
    }
}

/// Why there is no optimum.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LpError {
    /// No values meet all rows.
    #[error("no values meet all rows of the linear program")]
    Infeasible,
    /// The cost falls without end.
    #[error("the cost of the linear program falls without end; a row is missing")]
    Unbounded,
    /// The solver gave up.
    #[error("the linear program was not solved: {0}; check the range of its coefficients")]
    Failed(String),
}

impl Program {
    /// A program without variables and rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable of at least 0, at this cost per unit.
    pub fn variable(&mut self, cost: f64) -> Variable {
        self.costs.push(cost);
        Variable(self.costs.len() - 1)
    }

    /// Adds a row: the sum of coefficients times variables stands in this relation to `right`.
    pub fn row(&mut self, terms: impl IntoIterator<Item = (Variable, f64)>, relation: Relation, right: f64) {
        self.rows.push(Row {
            terms: terms
                .into_iter()
                .map(|(variable, factor)| (variable.0, factor))
                .collect(),
            relation,
            right,
        });
    }

    /// Minimises the cost. The same program has the same solution, to the last bit.
    ///
    /// # Errors
    /// An [`LpError`] if there is no optimum, or none was found.
    pub fn minimise(&self) -> Result<Solution, LpError> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let variables: Vec<microlp::Variable> = self
            .costs
            .iter()
            .map(|cost| problem.add_var(*cost, (0.0, f64::INFINITY)))
            .collect();
        for row in &self.rows {
            let terms: Vec<(microlp::Variable, f64)> = row
                .terms
                .iter()
                .filter_map(|(variable, factor)| Some((*variables.get(*variable)?, *factor)))
                .collect();
            let relation = match row.relation {
                Relation::AtMost => ComparisonOp::Le,
                Relation::Equal => ComparisonOp::Eq,
                Relation::AtLeast => ComparisonOp::Ge,
            };
            problem.add_constraint(terms.as_slice(), relation, row.right);
        }
        let outcome = problem.solve().map_err(|error| match error {
            microlp::Error::Infeasible => LpError::Infeasible,
            microlp::Error::Unbounded => LpError::Unbounded,
            other => LpError::Failed(other.to_string()),
        })?;
        let solution = outcome
            .solution()
            .ok_or_else(|| LpError::Failed("it was interrupted".to_owned()))?;
        Ok(Solution {
            cost: solution.objective(),
            values: variables
                .iter()
                .map(|variable| solution.var_value(*variable))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_program_is_solved() {
        let mut program = Program::new();
        let (x, y) = (program.variable(1.0), program.variable(2.0));
        program.row([(x, 1.0), (y, 1.0)], Relation::AtLeast, 4.0);
        program.row([(x, 1.0)], Relation::AtMost, 3.0);
        let solution = program.minimise().unwrap();
        assert!((solution.cost - 5.0).abs() < 1e-9);
        assert!((solution.value(x) - 3.0).abs() < 1e-9 && (solution.value(y) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_has_no_optimum_says_why() {
        let mut program = Program::new();
        let x = program.variable(-1.0);
        assert_eq!(program.minimise(), Err(LpError::Unbounded));
        program.row([(x, 1.0)], Relation::Equal, 1.0);
        program.row([(x, 1.0)], Relation::AtLeast, 2.0);
        assert_eq!(program.minimise(), Err(LpError::Infeasible));
        let mut broken = Program::new();
        broken.variable(f64::NAN);
        assert!(matches!(broken.minimise(), Err(LpError::Failed(_))));
    }
}

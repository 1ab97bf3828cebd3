//! A linear program, its solution, and their errors.

use std::time::Duration;

use thiserror::Error;

/// A linear program: minimise a cost subject to constraints. Variables are not negative; some may only be whole.
///
/// Keep the coefficients of a constraint, and those of a variable, within six orders of magnitude of each other, by choice of units.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(super) columns: Vec<Column>,
    pub(super) constraints: Vec<Constraint>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) cost: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) integer: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Constraint {
    pub(super) terms: Vec<(usize, f64)>,
    pub(super) relation: Relation,
    pub(super) right: f64,
}

/// Relation between the two sides of a constraint.
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
pub struct Variable(pub(super) usize);

impl Variable {
    /// Returns the variable's index in the order in which variables were added.
    pub fn place(self) -> usize {
        self.0
    }
}

/// The solver of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Solver {
    /// The embedded one, microlp.
    #[default]
    Embedded,
    /// HiGHS, linked in with the feature `highs`.
    Highs,
    /// COIN-OR's `cbc` on the path, with the feature `external-solvers`.
    Cbc,
    /// GNU's `glpsol`, likewise.
    Glpk,
    /// `gurobi_cl`, likewise; it needs a licence.
    Gurobi,
    /// `cplex`, likewise; it needs a licence.
    Cplex,
}

/// When to stop the search. Only programs with integers are searched.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Node limit of the embedded solver and of HiGHS: the same on every machine.
    pub nodes: Option<u64>,
    /// Time limit of HiGHS and of an external program, by its own clock; the embedded solver has none. External programs count whole
    /// seconds, at least one, and are killed soon after.
    pub time: Option<Duration>,
    /// Relative gap between the cost and its lower bound at which the search stops.
    pub gap: f64,
    /// A value per variable, in their order, to begin from. Ignored if it is infeasible or the solver does not support it.
    pub start: Vec<f64>,
}

impl Limits {
    /// No limit: the search ends at a proven optimum.
    pub const NONE: Self = Self {
        nodes: None,
        time: None,
        gap: 0.0,
        start: Vec::new(),
    };
}

/// An optimum, or the best that was found within the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The cost.
    pub cost: f64,
    /// Whether it is proven optimal. Another solver's claim does not count.
    pub proven: bool,
    pub(super) values: Vec<f64>,
}

impl Solution {
    /// The value of a variable; 0 for one of another program. Integer variables are whole to the last bit.
    pub fn value(&self, variable: Variable) -> f64 {
        self.values.get(variable.0).copied().unwrap_or(0.0)
    }
}

/// A program cannot be solved.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum LpError {
    /// No values meet all constraints.
    #[error("the linear program is infeasible")]
    Infeasible,
    /// The cost is unbounded below.
    #[error("the linear program is unbounded; a constraint is missing")]
    Unbounded,
    /// The solver gave up.
    #[error("the linear program was not solved: {0}; check the range of its coefficients")]
    Failed(String),
    /// The limits ended the search before anything was found.
    #[error("the search ended before any solution was found; raise its limits or give it a start")]
    Interrupted,
    /// This build lacks the solver.
    #[error(
        "this build has no {solver:?}; build it with the feature `{feature}`, or use the embedded solver"
    )]
    NotBuilt {
        /// The requested solver.
        solver: Solver,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The solver's program cannot be started.
    #[error(
        "`{program}` cannot be started: {reason}; install it, put it on the path, or use the embedded solver"
    )]
    Missing {
        /// Name of the program.
        program: String,
        /// The system's message.
        reason: String,
    },
    /// The solver's program did not end in time and was killed.
    #[error(
        "`{program}` did not end within {limit_s} s and was killed; raise the limit or use another solver"
    )]
    Hung {
        /// Name of the program.
        program: String,
        /// The limit and its grace period, seconds.
        limit_s: f64,
    },
    /// The solver's solution is invalid.
    #[error("{solver:?} gave an invalid solution: {reason}; use another solver")]
    InvalidSolution {
        /// The solver.
        solver: Solver,
        /// The error.
        reason: String,
    },
}

impl Program {
    /// A program without variables and constraints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable of at least 0, at this cost per unit.
    pub fn variable(&mut self, cost: f64) -> Variable {
        self.add(cost, f64::INFINITY, false)
    }

    /// Adds a variable from 0 to `high`, at this cost per unit.
    pub fn bounded(&mut self, cost: f64, high: f64) -> Variable {
        self.add(cost, high, false)
    }

    /// Adds a whole variable from 0 to `high`, at this cost per unit.
    pub fn integer(&mut self, cost: f64, high: u32) -> Variable {
        self.add(cost, f64::from(high), true)
    }

    fn add(&mut self, cost: f64, high: f64, integer: bool) -> Variable {
        self.columns.push(Column {
            cost,
            low: 0.0,
            high,
            integer,
        });
        Variable(self.columns.len() - 1)
    }

    /// Adds a constraint: the sum of coefficients times variables has this relation to `right`.
    pub fn constraint(
        &mut self,
        terms: impl IntoIterator<Item = (Variable, f64)>,
        relation: Relation,
        right: f64,
    ) {
        self.constraints.push(Constraint {
            terms: terms
                .into_iter()
                .map(|(variable, factor)| (variable.0, factor))
                .collect(),
            relation,
            right,
        });
    }

    /// Returns the number of variables.
    pub fn variables(&self) -> usize {
        self.columns.len()
    }

    /// Returns the number of integer variables.
    pub fn integers(&self) -> usize {
        self.columns.iter().filter(|column| column.integer).count()
    }

    /// The cost of these values.
    pub(super) fn cost(&self, values: &[f64]) -> f64 {
        let costs = self.columns.iter().zip(values);
        costs.map(|(column, value)| column.cost * value).sum()
    }

    /// Returns the largest violation of a bound or a constraint, relative to its right side; 0 if the values are feasible.
    pub(super) fn violation(&self, values: &[f64]) -> f64 {
        let bounds = self.columns.iter().zip(values);
        let bounds = bounds.map(|(column, value)| (column.low - value).max(value - column.high));
        let constraints = self.constraints.iter().map(|constraint| {
            let terms = constraint.terms.iter();
            let left: f64 = terms
                .map(|(place, factor)| factor * values.get(*place).copied().unwrap_or(0.0))
                .sum();
            let missed = match constraint.relation {
                Relation::AtMost => left - constraint.right,
                Relation::Equal => (left - constraint.right).abs(),
                Relation::AtLeast => constraint.right - left,
            };
            missed / (1.0 + constraint.right.abs())
        });
        bounds.chain(constraints).fold(0.0, f64::max)
    }
}

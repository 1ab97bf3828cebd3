//! Linear programs, with or without integers, independent of the solver.
//!
//! Planners build a [`Program`] and read a [`Solution`]. The embedded solver is pure Rust and always there. Others can be chosen
//! [at run time](Solver) if this build has them: HiGHS with the feature `highs`, and CBC, GLPK, Gurobi and CPLEX as separate
//! programs with the feature `external-solvers`. The answers of other solvers are verified: only their integers are taken, and the rest
//! is solved again by the embedded solver (`guard`), so that a solver that hangs or errs costs time and nothing else.

mod embedded;
#[cfg(feature = "external-solvers")]
mod external;
mod guard;
#[cfg(feature = "highs")]
mod highs;
mod program;

pub use program::{Limits, LpError, Program, Relation, Solution, Solver, Variable};

impl Program {
    /// Minimises the cost with the embedded solver, without limits. The same program has the same solution, to the last bit.
    ///
    /// # Errors
    /// An [`LpError`] if there is no optimum, or none was found.
    pub fn minimise(&self) -> Result<Solution, LpError> {
        embedded::solve(self, &Limits::NONE)
    }

    /// Minimises the cost with this solver, within these limits.
    ///
    /// # Errors
    /// An [`LpError`] if there is no optimum, if none was found in time, or if the solver is not built in, is missing, hangs or returns an invalid solution. The
    /// caller can fall back on the embedded solver.
    pub(crate) fn minimise_by(&self, solver: Solver, limits: &Limits) -> Result<Solution, LpError> {
        match solver {
            Solver::Embedded => embedded::solve(self, limits),
            Solver::Highs => {
                #[cfg(feature = "highs")]
                return guard::verified(self, solver, &highs::solve(self, limits)?);
                #[cfg(not(feature = "highs"))]
                Err(solver.not_built("highs"))
            }
            Solver::Cbc | Solver::Glpk | Solver::Gurobi | Solver::Cplex => {
                #[cfg(feature = "external-solvers")]
                return guard::verified(self, solver, &external::solve(self, solver, None, limits)?);
                #[cfg(not(feature = "external-solvers"))]
                Err(solver.not_built("external-solvers"))
            }
        }
    }
}

impl Solver {
    /// Checks that this build has the solver: a search may need it late, or for some inputs alone.
    ///
    /// # Errors
    /// [`LpError::NotBuilt`], with the feature that brings it.
    pub fn check_built(self) -> Result<(), LpError> {
        let (is_built, feature) = match self {
            Self::Embedded => return Ok(()),
            Self::Highs => (cfg!(feature = "highs"), "highs"),
            Self::Cbc | Self::Glpk | Self::Gurobi | Self::Cplex => {
                (cfg!(feature = "external-solvers"), "external-solvers")
            }
        };
        is_built.then_some(()).ok_or_else(|| self.not_built(feature))
    }

    const fn not_built(self, feature: &'static str) -> LpError {
        LpError::NotBuilt {
            solver: self,
            feature,
        }
    }
}

#[cfg(test)]
mod tests;

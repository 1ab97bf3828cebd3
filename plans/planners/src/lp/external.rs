//! Solvers that are separate programs: CBC, GLPK, Gurobi, CPLEX.
//!
//! This is the one place of the crate that touches the system: it writes a temporary file, starts a process and reads a file. It is
//! here and not in an actor because a planner that is handed another solver must not become another planner, and it is behind a
//! feature so that it is opt-in. `lp-solvers` writes and reads the files. It does not start the process: it would wait
//! for it without a time limit.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use lp_solvers::lp_format::{Constraint, LpObjective, LpProblem as _};
use lp_solvers::problem::{Problem, StrExpression, Variable};
use lp_solvers::solvers::{
    CbcSolver, Cplex, GlpkSolver, GurobiSolver, Solution, SolverProgram, SolverWithSolutionParsing, Status,
    WithMaxSeconds,
};

use super::program::{Limits, LpError, Program, Relation, Solver};

/// Time beyond its limit that a solver gets to write its answer, before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Interval at which a running solver is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The default time limit.
const MAX_SECONDS: u32 = 60;

/// The values of a program's variables, from the solver: single precision, unchecked. `command` replaces the solver's
/// usual name, in tests and where it is not on the path.
///
/// # Errors
/// [`LpError::Missing`], [`LpError::Hung`], [`LpError::InvalidSolution`] if the output cannot be read, and the solver's verdict on the program.
pub(super) fn solve(
    program: &Program,
    solver: Solver,
    command: Option<&str>,
    limits: &Limits,
) -> Result<Vec<f64>, LpError> {
    // A limit below a second becomes none at all on its way to some solvers.
    let wanted = limits.time.map(|time| time.as_secs_f64().ceil().max(1.0) as u32);
    let seconds = wanted.unwrap_or(MAX_SECONDS).min(MAX_SECONDS);
    let problem = written(program);
    let named = |usual: &str| command.unwrap_or(usual).to_owned();
    let solution = match solver {
        Solver::Glpk => {
            let glpk = GlpkSolver::new().command_name(named("glpsol"));
            run(&glpk.with_max_seconds(seconds), solver, &problem, seconds)
        }
        Solver::Gurobi => {
            let gurobi = GurobiSolver::new().command_name(named("gurobi_cl"));
            run(&gurobi, solver, &problem, seconds)
        }
        Solver::Cplex => {
            let cplex = Cplex::with_command(named("cplex"));
            run(&cplex, solver, &problem, seconds)
        }
        _ => {
            let cbc = CbcSolver::new().command_name(named("cbc"));
            run(&cbc.with_max_seconds(seconds), solver, &problem, seconds)
        }
    }?;
    let name = |place: usize| variable(place);
    let value = |place: usize| solution.get(&name(place)).copied().map(f64::from);
    Ok((0..program.variables())
        .map(|place| value(place).unwrap_or(0.0))
        .collect())
}

fn variable(place: usize) -> String {
    format!("x{place}")
}

fn written(program: &Program) -> Problem {
    let expression = |terms: &mut dyn Iterator<Item = (usize, f64)>| {
        let mut text = String::new();
        for (place, factor) in terms {
            let sign = if factor < 0.0 { '-' } else { '+' };
            // Writing to a string cannot fail.
            let _ = write!(text, " {sign} {} {}", factor.abs(), variable(place));
        }
        if text.is_empty() {
            // A sum of nothing is no expression in this format.
            text.push_str(" 0 x0");
        }
        StrExpression(text)
    };
    let costs = program.columns.iter().map(|column| column.cost).enumerate();
    let constraint = |constraint: &super::program::Constraint| Constraint {
        lhs: expression(&mut constraint.terms.iter().copied()),
        operator: match constraint.relation {
            Relation::AtMost => std::cmp::Ordering::Less,
            Relation::Equal => std::cmp::Ordering::Equal,
            Relation::AtLeast => std::cmp::Ordering::Greater,
        },
        rhs: constraint.right,
    };
    let column = |(place, column): (usize, &super::program::Column)| Variable {
        name: variable(place),
        is_integer: column.integer,
        lower_bound: column.low,
        upper_bound: column.high,
    };
    Problem {
        name: "kaskade".to_owned(),
        sense: LpObjective::Minimize,
        objective: expression(&mut costs.filter(|(_, cost)| *cost != 0.0)),
        variables: program.columns.iter().enumerate().map(column).collect(),
        constraints: program.constraints.iter().map(constraint).collect(),
    }
}

/// Runs a solver's program on a problem file, for this long and a little, and reads what it wrote.
fn run<S: SolverProgram + SolverWithSolutionParsing>(
    program: &S,
    solver: Solver,
    problem: &Problem,
    seconds: u32,
) -> Result<HashMap<String, f32>, LpError> {
    let failed = |error: std::io::Error| LpError::Failed(format!("cannot create a temporary file: {error}"));
    let model = problem.to_tmp_file().map_err(failed)?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let suffix = program.solution_suffix().unwrap_or(".sol");
    let answer: PathBuf = folder.path().join(format!("answer{suffix}"));
    let name = program.command_name();
    let mut command = Command::new(name);
    command.args(program.arguments(model.path(), &answer));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = command.spawn().map_err(|error| LpError::Missing {
        program: name.to_owned(),
        reason: error.to_string(),
    })?;
    let limit = Duration::from_secs(u64::from(seconds)) + GRACE;
    wait(child, limit).ok_or_else(|| LpError::Hung {
        program: name.to_owned(),
        limit_s: limit.as_secs_f64(),
    })?;
    let solution =
        parse(program, &answer, problem).map_err(|reason| LpError::InvalidSolution { solver, reason })?;
    match solution.status {
        Status::Infeasible => Err(LpError::Infeasible),
        Status::Unbounded => Err(LpError::Unbounded),
        Status::NotSolved => Err(LpError::Interrupted),
        _ => Ok(solution.results),
    }
}

/// Waits for a process and kills it when its time is over; `None` if that was needed. Counts polls instead of reading a clock.
fn wait(mut child: Child, limit: Duration) -> Option<()> {
    // Nothing is ever sent: waiting for it is how to sleep without holding anything.
    let (_sender, never) = mpsc::channel::<()>();
    let polls = limit.as_millis() / POLL_INTERVAL.as_millis();
    for _ in 0..polls {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Some(());
        }
        let _ = never.recv_timeout(POLL_INTERVAL);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Reads an answer. The reader indexes into lines that it expects and panics on others: that is no reason to take a planner down.
fn parse<S: SolverWithSolutionParsing>(
    program: &S,
    answer: &Path,
    problem: &Problem,
) -> Result<Solution, String> {
    let file = File::open(answer).map_err(|error| format!("it wrote no answer ({error})"))?;
    let read = || program.read_specific_solution(&file, Some(problem));
    let read = std::panic::AssertUnwindSafe(read);
    std::panic::catch_unwind(read).unwrap_or_else(|_| Err("its answer cannot be read".to_owned()))
}

#[cfg(test)]
mod tests;

//! Against scripts that stand in for solvers: one that answers, one that is missing, one that hangs, some that lie.

use std::os::unix::fs::PermissionsExt as _;

use super::super::guard;
use super::*;

/// Two items to choose from, of which one can be carried; the second has the higher value.
fn program() -> Program {
    let mut program = Program::new();
    let (x, y) = (program.integer(-1.0, 1), program.integer(-2.0, 1));
    program.constraint([(x, 1.0), (y, 1.0)], Relation::AtMost, 1.0);
    program
}

/// Calls a script in the place of CBC. CBC's last argument is the file to answer in.
fn cbc(script: &str) -> Result<super::super::Solution, LpError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cbc");
    std::fs::write(&path, format!("#!/bin/sh\nfor answer; do :; done\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let limits = Limits {
        time: Some(Duration::from_millis(200)),
        ..Limits::NONE
    };
    let values = solve(&program(), Solver::Cbc, Some(path.to_str().unwrap()), &limits)?;
    guard::verified(&program(), Solver::Cbc, &values)
}

fn answer(text: &str) -> String {
    format!("printf '{text}' > \"$answer\"")
}

#[test]
fn an_answer_is_read_and_checked() {
    let solution = cbc(&answer("Optimal - objective value -2\\n 1 x1 1 -2\\n")).unwrap();
    assert!((solution.cost + 2.0).abs() < 1e-9);
}

#[test]
fn the_model_that_is_handed_over_can_be_read() {
    // The second argument is the model; the script is the check that its constraints and integers are there.
    let script = format!(
        "grep -q 'c0:  + 1 x0 + 1 x1 <= 1' \"$1\" && grep -q Generals \"$1\" && grep -q 'Minimize' \"$1\" && {}",
        answer("Optimal\\n")
    );
    assert!(cbc(&script).is_ok());
}

#[test]
fn a_limit_below_a_second_becomes_one() {
    let script = format!("case \"$*\" in *'seconds 1'*) {};; esac", answer("Optimal\\n"));
    assert!(cbc(&script).is_ok());
}

#[test]
fn a_missing_solver_is_an_error_that_names_it() {
    let error = solve(&program(), Solver::Cbc, Some("/nowhere/cbc"), &Limits::NONE).unwrap_err();
    assert!(matches!(&error, LpError::Missing { program, .. } if program == "/nowhere/cbc"));
}

#[test]
fn a_solver_that_hangs_is_killed() {
    let error = cbc("exec sleep 600").unwrap_err();
    assert!(
        matches!(error, LpError::Hung { limit_s, .. } if limit_s < 4.0),
        "{error}"
    );
}

#[test]
fn a_solver_that_lies_is_found_out() {
    for script in [
        answer("Optimal - objective value -3\\n 0 x0 1 -1\\n 1 x1 1 -2\\n"),
        answer("Optimal\\n 0 x0 0.5 -1\\n 1 x1 0.5 -2\\n"),
        answer("Optimal\\n 0 x0 7 -1\\n"),
        answer("Optimal\\n\\n"),
        answer("Optimal\\n 0 x0 nan -1\\n"),
        answer("Optimal\\n what\\n"),
        answer(""),
        "exit 0".to_owned(),
    ] {
        let error = cbc(&script).unwrap_err();
        assert!(
            matches!(error, LpError::InvalidSolution { .. }),
            "{script}: {error}"
        );
    }
}

#[test]
fn what_a_solver_says_of_the_program_is_passed_on() {
    assert_eq!(cbc(&answer("Infeasible\\n")), Err(LpError::Infeasible));
    assert_eq!(cbc(&answer("Unbounded\\n")), Err(LpError::Unbounded));
}

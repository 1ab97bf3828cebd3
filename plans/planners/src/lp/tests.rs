use proptest::prelude::*;

use super::*;

#[test]
fn a_small_program_is_solved() {
    let mut program = Program::new();
    let (x, y) = (program.variable(1.0), program.variable(2.0));
    program.constraint([(x, 1.0), (y, 1.0)], Relation::AtLeast, 4.0);
    program.constraint([(x, 1.0)], Relation::AtMost, 3.0);
    let solution = program.minimise().unwrap();
    assert!((solution.cost - 5.0).abs() < 1e-9 && solution.proven);
    assert!((solution.value(x) - 3.0).abs() < 1e-9 && (solution.value(y) - 1.0).abs() < 1e-9);
}

#[test]
fn what_has_no_optimum_says_why() {
    let mut program = Program::new();
    let x = program.variable(-1.0);
    assert_eq!(program.minimise(), Err(LpError::Unbounded));
    program.constraint([(x, 1.0)], Relation::Equal, 1.0);
    program.constraint([(x, 1.0)], Relation::AtLeast, 2.0);
    assert_eq!(program.minimise(), Err(LpError::Infeasible));
    let mut broken = Program::new();
    broken.variable(f64::NAN);
    assert!(matches!(broken.minimise(), Err(LpError::Failed(_))));
}

/// A knapsack: items with value and weight each, and a capacity.
fn knapsack(things: &[(f64, f64)], carried: f64) -> Program {
    let mut program = Program::new();
    let chosen: Vec<(Variable, f64)> = things
        .iter()
        .map(|(worth, weight)| (program.integer(-worth, 1), *weight))
        .collect();
    program.constraint(chosen, Relation::AtMost, carried);
    program
}

const THINGS: [(f64, f64); 4] = [(10.0, 5.0), (40.0, 4.0), (30.0, 6.0), (50.0, 3.0)];

#[test]
fn whole_variables_are_whole() {
    let solution = knapsack(&THINGS, 10.0).minimise().unwrap();
    assert!((solution.cost + 90.0).abs() < 1e-9 && solution.proven);
    assert_eq!(solution.values, [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_start_is_a_solution_even_without_a_search() {
    let program = knapsack(&THINGS, 10.0);
    let limits = Limits {
        nodes: Some(0),
        start: vec![0.0, 0.0, 1.0, 1.0],
        ..Limits::NONE
    };
    let solution = program.minimise_by(Solver::Embedded, &limits).unwrap();
    assert!(solution.cost <= -80.0 + 1e-9);
}

#[test]
fn bounds_hold() {
    let mut program = Program::new();
    let x = program.bounded(-1.0, 2.5);
    assert!((program.minimise().unwrap().value(x) - 2.5).abs() < 1e-9);
}

#[test]
fn only_the_integers_of_another_solver_are_used_and_the_rest_is_solved_again() {
    let mut program = knapsack(&THINGS, 10.0);
    let spare = program.bounded(-1.0, 5.0);
    program.constraint([(spare, 1.0)], Relation::AtMost, 4.0);
    let values = [0.0, 1.0, 0.0, 0.999_9, 777.0];
    let solution = guard::verified(&program, Solver::Highs, &values).unwrap();
    assert!((solution.cost + 94.0).abs() < 1e-9 && !solution.proven);
    assert!((solution.value(spare) - 4.0).abs() < 1e-9);
}

#[test]
fn values_that_break_a_constraint_are_no_solution() {
    let program = knapsack(&THINGS, 10.0);
    for values in [
        &[1.0, 1.0, 1.0, 1.0][..],
        &[0.0, 0.5, 0.0, 1.0],
        &[0.0, f64::NAN, 0.0, 1.0],
        &[0.0, 2.0, 0.0, 0.0],
        &[0.0],
    ] {
        let error = guard::verified(&program, Solver::Highs, values).unwrap_err();
        assert!(
            matches!(
                error,
                LpError::InvalidSolution {
                    solver: Solver::Highs,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_solver_that_is_not_built_in_is_named_with_its_feature() {
    let program = knapsack(&THINGS, 10.0);
    #[cfg(not(feature = "highs"))]
    assert!(matches!(
        program.minimise_by(Solver::Highs, &Limits::NONE),
        Err(LpError::NotBuilt { feature: "highs", .. })
    ));
    #[cfg(feature = "highs")]
    assert!((program.minimise_by(Solver::Highs, &Limits::NONE).unwrap().cost + 90.0).abs() < 1e-9);
    assert!(program.minimise().is_ok());
    assert_eq!(Solver::Embedded.check_built(), Ok(()));
    for (solver, feature, is_built) in [
        (Solver::Highs, "highs", cfg!(feature = "highs")),
        (
            Solver::Cbc,
            "external-solvers",
            cfg!(feature = "external-solvers"),
        ),
    ] {
        let missing = Err(LpError::NotBuilt { solver, feature });
        assert_eq!(solver.check_built(), if is_built { Ok(()) } else { missing });
    }
}

proptest! {
    #[test]
    fn no_other_choice_is_better(
        things in prop::collection::vec((1.0..9.0_f64, 1.0..9.0_f64), 1..7),
        carried in 1.0..20.0_f64,
    ) {
        let solution = knapsack(&things, carried).minimise().unwrap();
        for set in 0_u32..1 << things.len() {
            let chosen = things.iter().enumerate().filter(|(place, _)| set >> place & 1 == 1);
            let (worth, weight) = chosen.fold((0.0, 0.0), |sum, (_, thing)| (sum.0 + thing.0, sum.1 + thing.1));
            prop_assert!(weight > carried || worth <= -solution.cost + 1e-6);
        }
    }
}
